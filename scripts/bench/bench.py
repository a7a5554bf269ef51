"""Compares the proxy with HAProxy and PgBouncer: throughput, CPU time, latency, connections, tokens, takeovers.

Runs of all ways are interleaved, so that other load on the machine affects all of them. Writes the measured part of docs/reference/performance.md,
and docs/performance.svg. Usage: bench.py FENCEGATE SECONDS ROUNDS"""

import os, platform, re, statistics, subprocess, sys, time
from pathlib import Path

from crowd import Member
from many import KINDS, RESOURCES, SESSIONS, many
from memory import Memory
from more import STORM, WAYS as PROXIES, More
from plot import main as draw_performance
from servers import ROOT, Servers, program_at

WAYS = ["direct", "haproxy", "pgbouncer", "fenced", "unfenced"]
NAMES = {"direct": "direct", "haproxy": "HAProxy tcp", "pgbouncer": "PgBouncer session", "fenced": "fencegate, fenced",
         "unfenced": "fencegate, nothing fenced"}
TOKEN = "-c lease.fence=1"
JOB = "\\set i :i + 1\n\\set key :client_id * 10000000 + :base + :i\nSET lease.fence = :key;\nINSERT INTO jobs VALUES (:key, 'done');\n"
TAKEOVERS = 20
CROWD, CROWDS = 1000, 5
# Number of transactions of all clients together, for each second of a run.
CROWDED = 60_000
# These updates cost the server more than the proxy.
UPDATES = KINDS["simple-update, 8 clients"]


class Bench:
    def __init__(self, servers, seconds, rounds):
        self.servers, self.seconds, self.rounds, self.jobs = servers, seconds, rounds, 0

    def run(self, way, arguments, options=""):
        """Returns transactions per second, and the proxy's user and system time per transaction in microseconds."""
        proxy = self.servers.proxies[way]
        before = proxy.processor_time()
        duration = [] if "-t" in arguments else ["-T", str(self.seconds)]
        said = self.servers.pgbench(way, ["-n", *duration, *arguments], options)
        used = [after - before for before, after in zip(before, proxy.processor_time())]
        count = int(re.search(r"actually processed: (\d+)", said)[1])
        failed = re.search(r"number of failed transactions: (\d+)", said)
        speed = re.search(r"tps = ([\d.]+)", said)
        if failed and int(failed[1]) or not speed or not count:
            raise SystemExit(f"{way}: {said}")
        return (float(speed[1]), *(1e6 * time / count for time in used))

    def cells(self, ways, arguments):
        """Returns the list of runs for each way."""
        runs = {way: [] for way in ways}
        for _ in range(self.rounds):
            for way in ways:
                # Only fencegate uses the token, but all ways receive it.
                runs[way].append(self.run(way, arguments, TOKEN))
        return runs

    def crowd(self, clients):
        """Returns transactions per second of many clients for each proxy and run, in the second half of the run. In the first half,
        new server processes fill their caches. PgBouncer's are not new: it reuses those of the run before."""
        # A fixed number of transactions, because a duration would include the logins.
        arguments = ["-n", "-S", "-M", "prepared", "-c", str(clients), "-j", "2", "-P", "1", "-t", str(CROWDED * self.seconds // clients)]
        runs = {way: [] for way in PROXIES}
        for _ in range(self.rounds):
            for way in PROXIES:
                progress = self.servers.pgbench(way, arguments, TOKEN, progress=True)
                speeds = [float(speed) for speed in re.findall(r"^progress: .* s, ([\d.]+) tps", progress, re.MULTILINE)]
                # In the last second, some clients have ended.
                runs[way].append((statistics.mean(speeds[len(speeds) // 2 : -1] or speeds[-1:]),))
        return runs

    def guarded(self):
        """Alternates updates through the fence with and without the guard."""
        runs = {"without": [], "with": []}
        for _ in range(self.rounds):
            for name, *guard in [("without", "remove"), ("with", "install", "--policies", self.servers.folder / "policies")]:
                self.servers.guard(*guard)
                # Not measured: the proxies read the catalog again.
                self.run("fenced", [*UPDATES, "-T", "1"], TOKEN)
                runs[name].append(self.run("fenced", UPDATES, TOKEN)[0])
        return runs

    def latency(self):
        """Returns sorted latencies of single transactions with one client for each way and run, in microseconds."""
        all_of = {way: [] for way in WAYS}
        for number in range(self.rounds):
            for way in WAYS:
                prefix = f"latency-{way}-{number}"
                self.servers.pgbench(way, ["-n", "-T", str(self.seconds), "-S", "-M", "prepared", "-l", "--log-prefix", prefix], TOKEN)
                times = []
                for log in self.servers.folder.glob(f"{prefix}.*"):
                    times += [int(line.split()[2]) for line in log.read_text().splitlines()]
                    log.unlink()
                all_of[way].append(sorted(times))
        return all_of

    def tokens(self, clients):
        """Measures jobs per second. Each job has its own token and key."""
        script = self.servers.folder / "job.sql"
        script.write_text(JOB)
        runs = {"direct": [], "haproxy": [], "fenced": []}
        for _ in range(self.rounds):
            for way in runs:
                self.jobs += 1
                base = f"base={self.jobs * 100_000_000_000}"
                arguments = ["-f", str(script), "-c", str(clients), "-D", "i=0", "-D", base]
                runs[way].append(self.run(way, arguments))
        return runs

    def takeovers(self):
        """Returns the duration of the new leader's first write for each kind of old leader, in milliseconds."""
        times, token = {}, 1_000_000
        for way, state in [("fenced", "idle"), ("fenced", "in a transaction"), ("second", "idle"), ("second", "in a transaction")]:
            kind = f"{'the same proxy' if way == 'fenced' else 'another proxy'}, {state}"
            times[kind] = []
            for _ in range(TAKEOVERS):
                token += 2
                old, new = Session(self.servers, way), Session(self.servers, "fenced")
                old.run(f"SET lease.fence = {token}")
                if state != "idle":
                    old.run("BEGIN")
                old.run("INSERT INTO results VALUES (1)")
                new.run(f"SET lease.fence = {token + 1}")
                times[kind].append(new.run("INSERT INTO results VALUES (2)"))
                old.close()
                new.close()
        times[f"another proxy, {CROWD:,} idle sessions"] = self.crowds(token)
        return times

    def crowds(self, token):
        """Returns the same durations while CROWD sessions of the old leader are admitted."""
        second, members, times = self.servers.proxies["second"], [], []
        # Like a candidate, the session stays connected while others lead. The first takeover opens connections to the database.
        new = Session(self.servers, "fenced")
        for _ in range(CROWDS):
            token += 2
            # Replace the sessions that the last takeover terminated.
            members = [member for member in members if member.run(f"SET lease.fence = {token}")]
            members += [Member(second.folder, second.port) for _ in range(CROWD - len(members))]
            for member in members:
                member.run(f"SET lease.fence = {token}; INSERT INTO results VALUES (1)")
            new.run(f"SET lease.fence = {token + 1}")
            times.append(new.run("INSERT INTO results VALUES (2)"))
        new.close()
        for member in members:
            member.close()
        return times


class Session:
    """A psql that stays open and reports the time of each statement."""

    def __init__(self, servers, way):
        # Use line buffering: otherwise psql would print the times only at its end.
        command = ["stdbuf", "-oL", servers.bin / "psql", "-XAtq", "-c", "\\timing on", "-f", "-"]
        self.psql = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     text=True, env=servers.proxies[way].environment(""))

    def run(self, statement):
        """Returns the duration in milliseconds."""
        self.psql.stdin.write(statement + ";\n")
        self.psql.stdin.flush()
        while not (found := re.match(r"Time: ([\d.]+) ms", line := self.psql.stdout.readline())):
            if not line:
                raise SystemExit(f"psql has ended in {statement}")
        return float(found[1])

    def close(self):
        self.psql.stdin.close()
        self.psql.wait()


def spread(values, digits=0):
    """Median, with minimum and maximum."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def bar(values):
    """Minimum, median and maximum."""
    return min(values), statistics.median(values), max(values)


def processor(runs):
    """User + system time, with minimum and maximum of the sum in parentheses."""
    sums = [run[1] + run[2] for run in runs]
    return (f"{statistics.median(run[1] for run in runs):.1f} + {statistics.median(run[2] for run in runs):.1f} "
            f"({min(sums):.1f} to {max(sums):.1f})")


def percentile(times, part):
    return times[min(len(times) - 1, int(part * len(times)))]


def table(header, rows):
    return "\n".join(["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]) + "\n"


def machine(servers):
    processor = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    version = subprocess.run([servers.bin / "postgres", "--version"], capture_output=True, text=True).stdout.strip()
    haproxy, pgbouncer = (subprocess.run([program_at(name), "-V" if name == "pgbouncer" else "-v"], capture_output=True, text=True).stdout
                          for name in ["haproxy", "pgbouncer"])
    haproxy, pgbouncer = haproxy.split("version ")[-1].split()[0], pgbouncer.split()[1]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (f"{os.cpu_count()} × {processor or platform.machine()}, {memory:.0f} GiB, Linux {platform.release()}, {version}, HAProxy {haproxy}, "
            f"PgBouncer {pgbouncer}, load before: {os.getloadavg()[0]:.1f}")


def main():
    fencegate, seconds, rounds = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    with Servers(fencegate) as servers:
        bench, parts = Bench(servers, seconds, rounds), [machine(servers)]
        kinds = {f"{protocol}, {clients} clients": ["-S", "-M", protocol, "-c", str(clients), "-j", "2"]
                 for protocol in ["prepared", "simple"] for clients in [8, 64]}
        kinds["new connections, 8 clients"] = ["-S", "-C", "-c", "8", "-j", "2"]
        cells, crowds = {}, {}
        for kind, arguments in kinds.items():
            print(kind, flush=True)
            cells[kind] = bench.cells(WAYS, arguments)
        for clients in [256, 1000]:
            print(f"{clients} clients", flush=True)
            crowds[f"prepared, {clients:,} clients"] = bench.crowd(clients)
        latency, jobs, takeovers = bench.latency(), {clients: bench.tokens(clients) for clients in [16, 1]}, bench.takeovers()
        print("texts, TLS, logins, COPY", flush=True)
        more = More(bench)
        texts, (cipher, encrypted), storms, copies = more.texts(), more.encrypted(), more.storms(), more.copies()
        print("memory", flush=True)
        memory = Memory(servers).measure()
        updates, guarded = bench.cells(["direct", "haproxy", "fenced", "unfenced"], UPDATES), bench.guarded()
        print("much beside it", flush=True)
        # Last, because the other proxies have different policies for the same tables.
        servers.guard("remove")
        beside = many(bench)
    parts.append("Transactions per second (`pgbench -S`): median (minimum to maximum). PgBouncer reuses its server connections for new clients. With 256 and 1,000 clients, the second half of each run counts:\n\n" + table(
        ["", *(NAMES[way] for way in WAYS)],
        [[kind, *(spread([run[0] for run in runs[way]]) if way in runs else "" for way in WAYS)] for kind, runs in (cells | crowds).items()]
        + [["simple-update, 8 clients", *(spread([run[0] for run in updates[way]]) if way in updates else "" for way in WAYS)]]))
    parts.append("[The guard](../fence/guard.md) on the same tables, `simple-update` with 8 clients through fencegate:\n\n" + table(
        ["without the guard", "with the guard", "ratio"],
        [[spread(guarded["without"]), spread(guarded["with"]),
          spread([with_it / without for with_it, without in zip(guarded["with"], guarded["without"])], 2)]]))
    parts.append("Processor time of the proxy for a transaction in microseconds: medians of user + system time (minimum to maximum of the sum):\n\n" + table(
        ["", *(NAMES[way] for way in WAYS[1:])],
        [[kind, *(processor(runs[way]) for way in WAYS[1:])] for kind, runs in cells.items()]))
    parts.append("The same for 8 clients that send each text once, with Parse, Bind, Describe and Execute or as a Query. Two processes send for "
                 "all of them:\n\n" + table(
        ["", NAMES["haproxy"], NAMES["fenced"]],
        [[kind, *(processor(runs[way]) for way in ["haproxy", "fenced"])] for kind, runs in texts.items()]))
    parts.append(f"The same for clients with TLS, which each proxy ends itself ({cipher}), and one repeated text: processor time, and transactions "
                 "per second:\n\n" + table(
        ["", *(NAMES[way] for way in PROXIES), *(f"per second, {NAMES[way]}" for way in PROXIES)],
        [[kind, *(processor(runs[way]) for way in PROXIES), *(spread([run[0] for run in runs[way]]) for way in PROXIES)]
         for kind, runs in encrypted.items()]))
    ways = ["direct", *PROXIES]
    parts.append(f"Logins per second of {STORM:,} clients that come at once, and megabytes per second of `COPY` of a table of 100 MB:\n\n" + table(
        ["", *(NAMES[way] for way in ways)],
        [["logins", *(spread(storms[way]) for way in ways)]]
        + [[f"`COPY` {direction}", *(spread([run[0] for run in runs[way]]) for way in ways)] for direction, runs in copies.items()]))
    parts.append("Processor time of the proxy for a megabyte of `COPY`, in microseconds:\n\n" + table(
        ["", *(NAMES[way] for way in PROXIES)],
        [[direction, *(processor(runs[way]) for way in PROXIES)] for direction, runs in copies.items()]))
    percentiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    latencies = {name: {way: [percentile(times, part) for times in latency[way]] for way in WAYS} for name, part in percentiles.items()}
    parts.append("Latency with one client, prepared, in microseconds. Each percentile is that of a run: median (minimum to maximum) of all runs:\n\n" + table(
        ["", *(NAMES[way] for way in WAYS)],
        [[name, *(spread(by_way[way]) for way in WAYS)] for name, by_way in latencies.items()]))
    parts.append("Jobs per second with a token each: `SET lease.fence`, and an `INSERT` under a new key:\n\n" + table(
        ["workers", "direct", "HAProxy tcp", "fencegate"],
        [[str(clients), *(spread([run[0] for run in runs[way]]) for way in runs)] for clients, runs in jobs.items()]))
    parts.append(f"Duration of a new leader's first write, in milliseconds ({TAKEOVERS} takeovers each, {CROWDS} in the last row):\n\n" + table(
        ["the old leader's session", "minimum", "median", "maximum"],
        [[kind, *(f"{time:.1f}" for time in bar(times))] for kind, times in takeovers.items()]))
    parts.append(f"{RESOURCES:,} resources, each with a file and a table, and {SESSIONS:,} idle sessions, compared with one resource and "
                 "no idle session: transactions per second, and the proxy's user + system time for each:\n\n" + table(
        ["", "one resource", "many", "processor, one", "many"],
        [[kind, *(spread([run[0] for run in runs[way]]) for way in ["one", "many"]),
          *(processor(runs[way]) for way in ["one", "many"])] for kind, runs in beside.items()]))
    parts.append("Resident memory of the proxy:\n\n" + table(["", ""], [list(pair) for pair in memory]))
    parts[0] += f"; {rounds} runs of {seconds} s each, interleaved."
    page = ROOT / "docs/reference/performance.md"
    before, rest = page.read_text().split("<!-- measured -->\n", 1)
    after = rest.split("<!-- /measured -->", 1)[1]
    page.write_text(before + "<!-- measured -->\n" + "\n".join(parts) + "<!-- /measured -->" + after)
    draw_performance()
    print("\n".join(parts))


main()
