"""Functions for the shows of the examples: processes and their output, pauses, conditions, the log of commits, claims.

`stage` runs a show with its servers. A show can import this module. It waits for the output of a process or for data
in the database, and ends with `finish`. Must never leave a process behind: processes that a show starts die with it.
"""

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

DIRECT, PROXIED, ETCD, STAGE, FENCEGATE, PSQL = (
    os.environ[name] for name in ("DIRECT", "PROXIED", "ETCD", "STAGE", "FENCEGATE", "PSQL")
)
CONSOLE = PROXIED.replace("dbname=app", "dbname=fencegate")
# Maximum duration of a wait in seconds. Long enough for a loaded machine.
PATIENCE = 120

_changed = threading.Condition()
_actors = []
_failures = []
_scenes = 0


def scene(title):
    """Begins the next scene, and ends the actors of the previous one."""
    global _scenes
    dismiss()
    _scenes += 1
    print(f"\n{_scenes}. {title}", flush=True)


def say(text):
    now = time.time()
    stamp = time.strftime("%T", time.gmtime(now)) + f".{int(now * 1000) % 1000:03}"
    print(f"  {stamp} {text}", flush=True)


def wait(what, condition):
    """Waits until the condition is true. Returns its value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {PATIENCE} s: {what}")
        time.sleep(0.02)
    return value


def paused(pid):
    return _state(pid) == "T"


def pause(pid):
    """Suspends a process, like a long garbage collection. Returns when the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait(f"process {pid} is suspended", lambda: _state(pid) in "TZX")


def resume(pid):
    os.kill(pid, signal.SIGCONT)


def server(name):
    """Returns the process ID of one of the stage's servers, such as `etcd`."""
    with open(f"{STAGE}/{name}.pid", encoding="ascii") as file:
        return int(file.read())


class Actor:
    """A process and its output. Each line begins with the name of the process, and is shown with the time."""

    def __init__(self, *command, shown=True, **environment):
        self.lines, self._heard, self._shown = [], 0, shown
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command], env=os.environ | environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )
        self.pid = self._process.pid
        _actors.append(self)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        for line in self._process.stdout:
            with _changed:
                if self._shown:
                    say(line.rstrip("\n"))
                self.lines.append(line.rstrip("\n"))
                _changed.notify_all()

    def until(self, pattern, times=1):
        """Waits for the next matching line, after the last one that a wait has found. Returns the match."""
        for _ in range(times):
            match, _ = first([self], pattern)
        return match

    def said(self, pattern):
        return [match for line in list(self.lines) if (match := re.search(pattern, line))]

    def pause(self):
        """Suspends the process and all its child processes."""
        for pid in self._session():
            pause(pid)

    def resume(self):
        for pid in self._session():
            resume(pid)

    def terminate(self):
        self._process.terminate()

    def wait(self):
        """Waits until the process has ended. Returns its exit code."""
        code = self._process.wait(PATIENCE)
        self._listener.join(PATIENCE)
        return code

    def kill(self):
        while pids := self._session():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self._process.poll()
        self.wait()

    def _session(self):
        """Returns the live processes of the session, beginning with the session leader."""
        pids = sorted((int(entry) for entry in os.listdir("/proc") if entry.isdigit()), key=lambda pid: pid != self.pid)
        return [pid for pid in pids if _stat(pid)[3:4] == [str(self.pid)] and _state(pid) not in "ZX"]


def first(actors, pattern):
    """Waits for the next matching line of any of these actors. Returns the match and the actor."""
    deadline = time.monotonic() + PATIENCE
    with _changed:
        while True:
            for actor in actors:
                for place in range(actor._heard, len(actor.lines)):
                    if match := re.search(pattern, actor.lines[place]):
                        actor._heard = place + 1
                        return match, actor
            if not _changed.wait(deadline - time.monotonic()):
                raise TimeoutError(f"no line matched {pattern!r} within {PATIENCE} s")


def dismiss():
    """Ends all actors."""
    while _actors:
        _actors.pop().kill()


# Also if the show fails.
atexit.register(dismiss)


def sql(text, database=DIRECT):
    """Runs the text with psql. Returns the rows as lists of strings."""
    command = [PSQL, "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", text]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    return [line.split("|") for line in run.stdout.splitlines()]


def outcome(text, database):
    """Runs one statement. Returns its command tag, or the SQLSTATE of its error."""
    command = [PSQL, "-XAt", "-v", "VERBOSITY=sqlstate", "-d", database, "-c", text]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else run.stderr.strip().removeprefix("ERROR:  ")


def etcd(call, timeout=PATIENCE, **body):
    """Calls etcd's JSON gateway. Raises OSError if it is unreachable."""
    request = urllib.request.Request(f"{ETCD}/v3/{call}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def under(token, database):
    """Returns the connection string with this token."""
    return f"{database} options='-c lease.fence={token}'"


def follow_commits():
    """Makes the server keep its log from now on, because only the log has the order of commits."""
    sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'scene'")
    sql("SELECT pg_create_logical_replication_slot('scene', 'test_decoding')")


def committed(table):
    """Returns the rows written to the table since `follow_commits`, as dictionaries of strings, in the order of commits."""
    changes = sql("SELECT data FROM pg_logical_slot_peek_changes('scene', NULL, NULL)")
    rows = ["|".join(line).partition(f"table {table}: ")[2] for line in changes]
    rows = [row for row in rows if row.startswith(("INSERT: ", "UPDATE: "))]
    column = re.compile(r"(\w+)\[[^]]*\]:('(?:[^']|'')*'|\S+)")
    return [{name: value.strip("'") for name, value in column.findall(row)} for row in rows]


def stale(rows):
    """Returns the rows of deposed leaders: those committed after a row with a higher token."""
    highest, found = 0, []
    for row in rows:
        if int(row["token"]) < highest:
            found.append(row)
        highest = max(highest, int(row["token"]))
    return found


def claim(holds, text):
    """Checks a claim of the show."""
    if not holds:
        _failures.append(text)
        print(f"  DID NOT HOLD: {text}", flush=True)


def finish(text):
    """Ends the show. The exit code is 0 only if all claims hold."""
    dismiss()
    print()
    for failure in _failures:
        print(f"DID NOT HOLD: {failure}")
    if not _failures:
        print(f"All claims hold: {text}")
    sys.exit(1 if _failures else 0)


def _stat(pid):
    """Returns the fields of /proc/PID/stat from the state on, or an empty list if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid):
    return (_stat(pid) or ["Z"])[0]
