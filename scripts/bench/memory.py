"""Measures fencegate's resident memory: for an idle session, during large transfers, and after them.

Uses a separate proxy, so that no other load has affected its memory."""

import time
from pathlib import Path

from crowd import Member, message, simple
from servers import POLICIES

SESSIONS = 1000
LINE, LINES = 1_000_000, 1000
ROW = 100_000_000
# Maximum wait until the memory is released, in seconds.
AFTER = 60


def status(process, name):
    """Returns the value in KiB."""
    return int(Path(f"/proc/{process}/status").read_text().split(f"{name}:")[1].split()[0])


class Memory:
    def __init__(self, servers):
        self.servers, self.proxy = servers, servers.another("memory", POLICIES)

    def member(self):
        return Member(self.proxy.folder, self.proxy.port)

    def resident(self):
        return status(self.proxy.process, "VmRSS")

    def measure(self):
        """Returns pairs of a description and a value."""
        self.servers.psql("direct", "CREATE UNLOGGED TABLE lines (line text)")
        self.crowd(20)
        before = self.resident()
        each = self.crowd(SESSIONS) / SESSIONS
        result = [(f"an idle session, of {SESSIONS:,}", f"{each:.1f} KiB")]
        for name, work in [(f"COPY of 1 GB out, by a client that does not read for a while", self.copy_out),
                           ("COPY of 1 GB in", self.copy_in), ("a row of 100 MB, by a client that does not read for a while", self.row)]:
            result.append((f"growth by {name}", f"{self.grown(work) / 1024:.1f} MiB"))
        until = time.monotonic() + AFTER
        while self.resident() > before * 1.2 and time.monotonic() < until:
            time.sleep(1)
        result.append(("before all that", f"{before / 1024:.1f} MiB"))
        result.append(("after it, within a minute", f"{self.resident() / 1024:.1f} MiB"))
        return result

    def crowd(self, number):
        """Returns the memory that this number of idle sessions adds, in KiB."""
        before, members = self.resident(), [self.member() for _ in range(number)]
        for member in members:
            member.run("SELECT count(*) FROM results")
        added = self.resident() - before
        for member in members:
            member.close()
        return added

    def grown(self, work):
        """Returns the peak increase during the work, in KiB."""
        member = self.member()
        member.run("SELECT count(*) FROM results")
        before = self.resident()
        # Resets the peak.
        Path(f"/proc/{self.proxy.process}/clear_refs").write_text("5")
        work(member)
        member.close()
        return status(self.proxy.process, "VmHWM") - before

    def copy_out(self, member):
        self.read_late(member, f"COPY (SELECT repeat('x', {LINE}) FROM generate_series(1, {LINES})) TO STDOUT")

    def row(self, member):
        self.read_late(member, f"SELECT repeat('x', {ROW})")

    def copy_in(self, member):
        member.socket.sendall(simple("COPY lines FROM STDIN WHERE length(line) < 10"))
        line = b"x" * (LINE - 1) + b"\n"
        for _ in range(LINES):
            member.socket.sendall(message(b"d", line))
        member.socket.sendall(message(b"c", b""))
        member.wait()

    def read_late(self, member, statement):
        """Reads the result only after the server has been unable to send for a while."""
        member.socket.sendall(simple(statement))
        query, looks, deadline = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'", 0, time.monotonic() + 60
        while looks < 20:
            looks = looks + 1 if self.servers.ask(query) == "1" else 0
            if time.monotonic() > deadline:
                raise SystemExit(f"{statement}: the server can always send")
        member.wait()
