"""Measurements that pgbench cannot make: texts that never repeat in the extended protocol, TLS that each proxy ends itself, many logins at
once, and COPY of a large table."""

import multiprocessing, random, subprocess, time

from crowd import Member, extended, simple, storm
from servers import POLICIES

WAYS = ["haproxy", "pgbouncer", "fenced"]
SESSIONS, CLIENTS, STORM = 8, 2, 1000
READ = "SELECT abalance FROM pgbench_accounts WHERE aid "
LINES = "INSERT INTO copied SELECT n, repeat('x', 90) FROM generate_series(1, 1000000) n"
COPIES = {"out": "COPY copied TO STDOUT", "in": "COPY copied FROM STDIN"}


def repeated():
    return READ + "= 77"


def traced():
    return f"/*traceparent='00-{random.getrandbits(128):032x}-{random.getrandbits(64):016x}-01'*/ {READ}= 77"


def literals():
    return f"{READ}IN ({', '.join(str(random.randint(1, 500_000)) for _ in range(random.randint(1, 9)))})"


def written():
    return f"UPDATE pgbench_accounts SET abalance = {random.randint(1, 1000)} WHERE aid = {random.randint(1, 500_000)}"


KINDS = {"Parse, a repeated text": (extended, repeated), "Parse, a trace id in a comment": (extended, traced),
         "Parse, a list of literals": (extended, literals), "Parse, an UPDATE with literals": (extended, written),
         "Query, a trace id in a comment": (simple, traced), "Query, a list of literals": (simple, literals)}


def send(folder, port, kind, encode, text, seconds, gate, counts):
    """One client process: its sessions send at once, and all answers arrive before they send again."""
    members = [Member(folder, port, kind, options="-c lease.fence=1") for _ in range(SESSIONS // CLIENTS)]
    gate.wait()
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        for member in members:
            member.socket.sendall(encode(text()))
        for member in members:
            member.wait()
        count += len(members)
    gate.wait()
    counts.put(count)
    for member in members:
        member.close()


class More:
    def __init__(self, bench):
        self.bench, self.servers, self.tls = bench, bench.servers, None

    def each_way(self, ways, measure):
        """Returns the list of runs for each way."""
        runs = {way: [] for way in ways}
        for _ in range(self.bench.rounds):
            for way in ways:
                runs[way].append(measure(way))
        return runs

    def exchange(self, way, encode, text, tls=None):
        """Transactions a second; user and system time of the proxy for each, in microseconds."""
        proxy = self.servers.proxies["tls" if tls and way == "fenced" else way]
        port = self.servers.tls_ports[proxy.name] if tls else proxy.port
        kind = {None: None, True: "direct" if way == "haproxy" else "asked"}[tls]
        gate = multiprocessing.Barrier(CLIENTS + 1, timeout=120)
        counts = multiprocessing.Queue()
        clients = [multiprocessing.Process(target=send, args=(proxy.folder, port, kind, encode, text, self.bench.seconds, gate, counts))
                   for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        # The logins are not measured.
        gate.wait()
        before = proxy.processor_time()
        gate.wait()
        after = proxy.processor_time()
        count = sum(counts.get() for _ in clients)
        for client in clients:
            client.join()
        return (count / self.bench.seconds, *(1e6 * (end - start) / count for start, end in zip(before, after)))

    def texts(self):
        """Returns the runs of each way for each kind of text. PgBouncer reads no texts."""
        return {name: self.each_way(["haproxy", "fenced"], lambda way: self.exchange(way, *kind)) for name, kind in KINDS.items()}

    def encrypted(self):
        """The same over TLS, which each proxy ends itself, and the cipher that all of them use."""
        port, certificate = self.servers.tls_ports["tls"], self.servers.certificate
        self.servers.another("tls", POLICIES, settings=[
            "--listen", f"127.0.0.1:{port}", "--tls-cert", certificate, "--tls-key", certificate, "--allow-unauthenticated", "127.0.0.1"])
        ciphers = {Member("", port, "direct" if way == "haproxy" else "asked").socket.cipher()[0]
                   for way, port in self.servers.tls_ports.items()}
        if len(ciphers) > 1:
            raise SystemExit(f"several ciphers: {ciphers}")
        runs = {name: self.each_way(WAYS, lambda way: self.exchange(way, protocol, repeated, True))
                for name, protocol in [("extended", extended), ("simple", simple)]}
        return ciphers.pop(), runs

    def storms(self):
        """Logins per second of many clients that connect at once."""
        return self.each_way(["direct", *WAYS], lambda way: storm(self.servers.proxies[way].folder, self.servers.proxies[way].port, STORM))

    def copies(self):
        """For each direction, returns megabytes a second, and the proxy's user and system time for one, in microseconds."""
        self.servers.psql("direct", LINES)
        with open(self.servers.folder / "lines", "wb") as lines:
            self.psql("direct", COPIES["out"], stdout=lines)
        return {direction: self.each_way(["direct", *WAYS], lambda way: self.copy(way, direction)) for direction in COPIES}

    def copy(self, way, direction):
        proxy, file = self.servers.proxies[way], self.servers.folder / "lines"
        if direction == "in":
            self.servers.psql("direct", "TRUNCATE copied")
        before, begun = proxy.processor_time(), time.monotonic()
        with open(file, "rb") as lines:
            self.psql(way, COPIES[direction], stdin=lines, stdout=subprocess.DEVNULL)
        elapsed, megabytes = time.monotonic() - begun, file.stat().st_size / 1e6
        used = [1e6 * (after - before) / megabytes for before, after in zip(before, proxy.processor_time())]
        return (megabytes / elapsed, *used)

    def psql(self, way, text, **streams):
        subprocess.run([self.servers.bin / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text],
                       env=self.servers.proxies[way].environment("-c lease.fence=1"), check=True, **streams)
