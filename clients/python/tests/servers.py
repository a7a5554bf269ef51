"""Throwaway servers: PostgreSQL with the fenced tables, a proxy, etcd."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

BINARY = os.environ["FENCEGATE_BINARY"]
DEADLINE = 120  # For Celery on a loaded machine.
POLICIES = """version: 1
resources:
  - {name: jobs, tables: [public.jobs]}
  - {name: scheduler, lease: cron/scheduler, tables: [public.ticks]}
"""
SCHEMA = """CREATE ROLE app LOGIN;
CREATE TABLE jobs (id bigserial PRIMARY KEY, run_by text);
CREATE TABLE ticks (tick text PRIMARY KEY, run_by text);
INSERT INTO ticks VALUES ('12:00');
GRANT ALL ON jobs, ticks, jobs_id_seq TO app;"""


def wait_until(what, condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE} s: {what}"
        time.sleep(0.01)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def postgres_program(name):
    versions = sorted(pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    return str(versions[-1]) if versions else name


def environment():
    """The tests' own, without settings that reach the servers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "FENCEGATE_", "ETCD"))}


class Program:
    """A program that runs until `stop`. `pause` stops all of its processes, as a hung machine would."""

    def __init__(self, command, log, stop_signal=signal.SIGTERM):
        self.log = log
        self._stop_signal = stop_signal
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(), cwd="/"
            )

    def _signal(self, number):
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        for pid in [self.process.pid, *map(int, pathlib.Path(children).read_text().split())]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def pause(self):
        self._signal(signal.SIGSTOP)

    def resume(self):
        self._signal(signal.SIGCONT)

    def stop(self):
        self.resume()
        self.process.send_signal(self._stop_signal)
        self.process.wait(DEADLINE)


def as_server():
    if os.getuid() != 0:
        return []
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


class Postgres(Program):
    def __init__(self, folder):
        self.port = free_port()
        folder.mkdir()
        data = folder / "data"
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        initdb = [postgres_program("initdb"), "--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"]
        subprocess.run([*as_server(), *initdb, "-D", data], check=True, stdout=subprocess.DEVNULL, cwd="/")
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        super().__init__(
            [*as_server(), postgres_program("postgres"), "-D", data, *options], f"{folder}.log", signal.SIGINT
        )
        wait_until("PostgreSQL listens", lambda: is_ready(self.port))
        subprocess.run(self._psql("postgres", "CREATE DATABASE app"), check=True, stdout=subprocess.DEVNULL)
        self.sql(SCHEMA)

    def _psql(self, database, query):
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", database]
        return [postgres_program("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", *address, "-c", query]

    def sql(self, query):
        return subprocess.run(self._psql("app", query), check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def url(self, role="app", port=None):
        return f"postgres://{role}@127.0.0.1:{port or self.port}/app"


class Proxy(Program):
    def __init__(self, folder, postgres):
        self.port = free_port()
        folder.mkdir()
        policies = folder / "policies"
        policies.mkdir()
        (policies / "policy.yaml").write_text(POLICIES)
        leases = ["--leases-for", "app", "--elections", "*"]
        init = [BINARY, "init", "--control", postgres.url("postgres"), *leases]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
        control = f"postgres://postgres@127.0.0.1:{postgres.port}/"
        addresses = ["--listen", f"127.0.0.1:{self.port}", "--upstream", f"postgres://127.0.0.1:{postgres.port}"]
        super().__init__(
            [BINARY, "proxy", *addresses, "--control", control, "--policies", policies], folder / "log"
        )
        wait_until("the proxy listens", lambda: is_ready(self.port))

    @property
    def url(self):
        return f"postgres://app@127.0.0.1:{self.port}/app"


class Etcd(Program):
    def __init__(self, folder):
        self.port, peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        peers = f"http://127.0.0.1:{peer}"
        arguments = ["--data-dir", folder, "--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        arguments += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        super().__init__(["etcd", *arguments, "--initial-cluster", f"default={peers}"], f"{folder}.log")
        wait_until("etcd answers", lambda: self.ctl("get", "/", check=False).returncode == 0)

    def ctl(self, *arguments, check=True):
        command = ["etcdctl", "--endpoints", self.url, *arguments]
        variables = {**environment(), "ETCDCTL_API": "3"}
        return subprocess.run(command, check=check, capture_output=True, text=True, env=variables)


def is_ready(port):
    command = [postgres_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(command).returncode == 0
