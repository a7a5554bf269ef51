"""The servers of the benchmark: PostgreSQL, and in front of it fencegate with and without fences, HAProxy and PgBouncer.

All use Unix sockets in one temporary folder, and ports of 127.0.0.1 with TLS. Must never leave a process or a file behind."""

import os, pwd, shutil, signal, socket, subprocess, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
POLICIES = """version: 1
resources:
  - name: pgbench
    tables: [public.pgbench_accounts, public.pgbench_branches, public.pgbench_tellers, public.pgbench_history]
  - name: results
    tables: [public.results]
  - name: copied
    tables: [public.copied]
  - name: job/{job}
    tables: [{name: public.jobs, key: job}]
"""
HAPROXY = """global
    log /dev/null local0
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen postgres
    bind unix@{folder}/haproxy/.s.PGSQL.5432 mode 777
    bind 127.0.0.1:{port} ssl crt {folder}/certificate
    server postgres unix@{folder}/.s.PGSQL.5432
"""
PGBOUNCER = """[databases]
app = host={folder} port=5432 dbname=app user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
unix_socket_dir = {folder}/pgbouncer
listen_port = {port}
client_tls_sslmode = allow
client_tls_key_file = {folder}/certificate
client_tls_cert_file = {folder}/certificate
auth_type = any
auth_file =
pool_mode = session
max_client_conn = 1200
default_pool_size = 1100
ignore_startup_parameters = extra_float_digits,options
logfile = /dev/null
log_connections = 0
log_disconnections = 0
"""


def postgres_programs():
    """The directory of pgbench and psql."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1] if found else Path(shutil.which("postgres")).parent


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def program_at(name):
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


class Proxy:
    """A way to the database: the folder and port of its socket, and its process, if it is one."""

    def __init__(self, name, folder, port, process=None):
        self.name, self.folder, self.port, self.process = name, str(folder), port, process

    def environment(self, options):
        return os.environ | {"PGHOST": self.folder, "PGPORT": str(self.port), "PGUSER": "postgres", "PGDATABASE": "app",
                             "PGOPTIONS": options}

    def processor_time(self):
        """Returns user and system time of all threads so far, in seconds. Each proxy is one process."""
        if self.process is None:
            return (0.0, 0.0)
        fields = Path(f"/proc/{self.process}/stat").read_text().rsplit(") ", 1)[1].split()
        return tuple(int(field) / TICKS for field in fields[11:13])


class Servers:
    """Runs the servers for a `with` block."""

    def __init__(self, fencegate):
        self.fencegate, self.children, self.bin = fencegate, [], postgres_programs()

    def __enter__(self):
        self.folder = folder = Path(tempfile.mkdtemp(prefix="fencegate-bench-"))
        try:
            self.start(folder)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, folder):
        for name in ["policies", "none", "unfenced", "second", "haproxy", "pgbouncer"]:
            (folder / name).mkdir()
        (folder / "policies/bench.yaml").write_text(POLICIES)
        (folder / "none/none.yaml").write_text("version: 1\n")
        stopping, self.stop = os.pipe()
        os.set_inheritable(self.stop, False)
        # The guardian of the demo stops the servers when its input is closed.
        self.guardian = subprocess.Popen(
            ["sh", ROOT / "src/stage/guardian.sh", folder, self.bin, self.fencegate], stdin=stopping,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, env=os.environ | {"STAGE_CONNECTIONS": "2500", "FENCEGATE_MAX_CONNECTIONS": "1200"})
        os.close(stopping)
        if self.guardian.stdout.readline() != b"ready\n":
            raise SystemExit((folder / "log").read_text()[-2000:])
        fenced = self.fencegate_at(folder)
        for name, policies in [("unfenced", "none"), ("second", "policies")]:
            self.fencegate_child(folder / name, folder / policies)
        self.certificate = folder / "certificate"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=bench",
                        "-keyout", self.certificate, "-out", folder / "only"], check=True, capture_output=True)
        # HAProxy reads key and certificate from one file.
        self.certificate.write_bytes(self.certificate.read_bytes() + (folder / "only").read_bytes())
        if os.getuid() == 0:
            server = pwd.getpwnam("postgres")
            for name in ["haproxy", "pgbouncer", "certificate"]:
                os.chown(folder / name, server.pw_uid, server.pw_gid)
        self.tls_ports = {name: free_port() for name in ["haproxy", "pgbouncer", "tls"]}
        for name, text, command in [("haproxy", HAPROXY, ["haproxy", "-db", "-f"]), ("pgbouncer", PGBOUNCER, ["pgbouncer", "-q"])]:
            port = str(self.tls_ports[name])
            (folder / name / "conf").write_text(text.replace("{folder}", str(folder)).replace("{port}", port))
            self.child([program_at(command[0]), *command[1:], folder / name / "conf"], as_server=True)
        sockets = {"direct": (folder, 5432), "haproxy": (folder / "haproxy", 5432),
                   "pgbouncer": (folder / "pgbouncer", self.tls_ports["pgbouncer"]), "fenced": (folder, 6432),
                   "unfenced": (folder / "unfenced", 6432), "second": (folder / "second", 6432)}
        processes = {"unfenced": 0, "second": 1, "haproxy": 2, "pgbouncer": 3}
        self.proxies = {}
        for name, (where, port) in sockets.items():
            process = self.children[processes[name]].pid if name in processes else None
            self.proxies[name] = Proxy(name, where, port, fenced if name == "fenced" else process)
            self.wait_for(self.proxies[name])
        self.psql("direct", "CREATE TABLE jobs (job bigint, note text); CREATE TABLE results (n bigint); "
                  "CREATE UNLOGGED TABLE copied (n bigint, line text)")
        self.pgbench("direct", ["-i", "-q", "-s", "5"])

    def fencegate_at(self, folder):
        """The process id of the guardian's proxy."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"proxy" in command and str(folder / "policies").encode() in command and str(folder).encode() in command:
                return int(process.name)
        raise SystemExit("the proxy does not run")

    def control(self):
        """The connection string of fencegate's control connections."""
        return f"host={self.folder} port=5432 user=postgres dbname=app"

    def fencegate_child(self, where, policies, *settings):
        self.child([self.fencegate, "proxy", "--max-connections", "1200", "--listen", where, "--upstream", f"{self.folder}:5432",
                    "--control", self.control(),
                    "--allow-unauthenticated", "unix", "--policies", policies, *settings])

    def another(self, name, *policies, settings=()):
        """Starts another fencegate in front of the same server, with a file for each of these policies."""
        (self.folder / name).mkdir()
        (self.folder / name / "policies").mkdir()
        for number, text in enumerate(policies):
            (self.folder / name / f"policies/{number}.yaml").write_text(text)
        self.fencegate_child(self.folder / name, self.folder / name / "policies", *settings)
        self.proxies[name] = Proxy(name, self.folder / name, 6432, self.children[-1].pid)
        self.wait_for(self.proxies[name])
        return self.proxies[name]

    def child(self, command, as_server=False):
        # HAProxy and PgBouncer do not need root, and PgBouncer refuses to run as root.
        user = {"user": "postgres", "group": "postgres", "extra_groups": []} if as_server and os.getuid() == 0 else {}
        self.children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                              stderr=subprocess.DEVNULL, cwd="/", **user))

    def wait_for(self, proxy):
        deadline = time.monotonic() + 20
        while subprocess.run([self.bin / "psql", "-XAtqc", "SELECT 1"], env=proxy.environment(""), capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise SystemExit(f"{proxy.name} does not answer")
            time.sleep(0.05)

    def guard(self, *arguments):
        """`fencegate guard install` or `remove`."""
        subprocess.run([self.fencegate, "guard", *arguments, "--control", self.control()], check=True, capture_output=True)

    def psql(self, proxy, text):
        subprocess.run([self.bin / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text],
                       env=self.proxies[proxy].environment(""), check=True, stdout=subprocess.DEVNULL)

    def ask(self, query):
        """Queries a single value, directly from the server."""
        return subprocess.run([self.bin / "psql", "-XAtqc", query], env=self.proxies["direct"].environment(""), check=True,
                              capture_output=True, text=True).stdout.strip()

    def pgbench(self, proxy, arguments, options="", progress=False):
        """Runs pgbench and returns its output, or its progress reports."""
        done = subprocess.run([self.bin / "pgbench", *arguments], env=self.proxies[proxy].environment(options),
                              capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            raise SystemExit(f"pgbench {arguments} by {proxy}: {done.stderr}")
        return done.stderr if progress else done.stdout

    def __exit__(self, *_):
        for child in self.children:
            child.send_signal(signal.SIGTERM)
        for child in self.children:
            child.wait()
        if hasattr(self, "stop"):
            os.close(self.stop)
            self.guardian.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
