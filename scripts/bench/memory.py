"""What fencegate holds in memory: for an idle session, while much passes through it, and when that is over.

Owns a proxy of its own, so that nothing else has been through it. Resident memory, as Linux counts it."""

import struct, time
from pathlib import Path

from crowd import Member
from servers import POLICIES

SESSIONS = 1000
LINE, LINES = 1_000_000, 1000
ROW = 100_000_000
# Time for the memory to go back.
AFTER = 60


def status(process, name):
    """In KiB."""
    return int(Path(f"/proc/{process}/status").read_text().split(f"{name}:")[1].split()[0])


def send(member, tag, body):
    member.socket.sendall(tag + struct.pack("!i", len(body) + 4) + body)


class Memory:
    def __init__(self, servers):
        self.servers, self.proxy = servers, servers.another("memory", POLICIES)

    def member(self):
        return Member(self.proxy.folder, self.proxy.port)

    def resident(self):
        return status(self.proxy.process, "VmRSS")

    def measure(self):
        """Pairs of what was measured, and how much it is."""
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
        """What so many idle sessions add, in KiB."""
        before, members = self.resident(), [self.member() for _ in range(number)]
        for member in members:
            member.run("SELECT count(*) FROM results")
        added = self.resident() - before
        for member in members:
            member.close()
        return added

    def grown(self, work):
        """The most that the work needs, in KiB."""
        member = self.member()
        member.run("SELECT count(*) FROM results")
        before = self.resident()
        # From here on the peak counts anew.
        Path(f"/proc/{self.proxy.process}/clear_refs").write_text("5")
        work(member)
        member.close()
        return status(self.proxy.process, "VmHWM") - before

    def copy_out(self, member):
        self.read_late(member, f"COPY (SELECT repeat('x', {LINE}) FROM generate_series(1, {LINES})) TO STDOUT")

    def row(self, member):
        self.read_late(member, f"SELECT repeat('x', {ROW})")

    def copy_in(self, member):
        send(member, b"Q", b"COPY lines FROM STDIN WHERE length(line) < 10\0")
        line = b"x" * (LINE - 1) + b"\n"
        for _ in range(LINES):
            send(member, b"d", line)
        send(member, b"c", b"")
        member.wait()

    def read_late(self, member, statement):
        """Reads only once the server has long been unable to send."""
        send(member, b"Q", statement.encode() + b"\0")
        query, looks, deadline = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'", 0, time.monotonic() + 60
        while looks < 20:
            looks = looks + 1 if self.servers.ask(query) == "1" else 0
            if time.monotonic() > deadline:
                raise SystemExit(f"{statement}: the server can always send")
        member.wait()
