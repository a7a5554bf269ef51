"""Measures whether many resources, policy files and idle sessions slow down a transaction that does not use them.

Alternates two proxies in front of the same server: one has all of these, the other a single resource."""

from crowd import Member

RESOURCES, SESSIONS = 10_000, 1000
ONE = "version: 1\nresources:\n  - {name: pgbench, tables: [public.pgbench_accounts]}\n"
KINDS = {"prepared, 8 clients": ["-S", "-M", "prepared", "-c", "8", "-j", "2"],
         "simple, 8 clients": ["-S", "-M", "simple", "-c", "8", "-j", "2"],
         "simple-update, 8 clients": ["-N", "-c", "8", "-j", "2"]}


def many(bench):
    """Returns the runs of both proxies for each kind of work, as returned by Bench.run."""
    servers, numbers = bench.servers, range(RESOURCES)
    servers.psql("direct", f"DO $$ BEGIN FOR n IN 0 .. {RESOURCES - 1} LOOP EXECUTE format('CREATE TABLE many_%s (n int)', n); END LOOP; END $$")
    servers.another("one", ONE)
    beside = [f"version: 1\nresources:\n  - {{name: many-{number}, tables: [public.many_{number}]}}\n" for number in numbers]
    proxy = servers.another("many", ONE, *beside)
    idle = [Member(proxy.folder, proxy.port) for _ in range(SESSIONS)]
    for member in idle:
        member.run("SELECT count(*) FROM results")
    runs = {kind: bench.cells(["one", "many"], arguments) for kind, arguments in KINDS.items()}
    for member in idle:
        member.close()
    return runs
