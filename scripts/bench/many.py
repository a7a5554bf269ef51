"""Whether much that a transaction has nothing to do with slows it down: many resources, as many files of policies, and idle
sessions beside it. Of two proxies before the same server, in turn: one has all of that, and the other a single resource."""

from crowd import Member

RESOURCES, SESSIONS = 10_000, 1000
ONE = "version: 1\nresources:\n  - {name: pgbench, tables: [public.pgbench_accounts]}\n"
KINDS = {"prepared, 8 clients": ["-S", "-M", "prepared", "-c", "8", "-j", "2"],
         "simple, 8 clients": ["-S", "-M", "simple", "-c", "8", "-j", "2"],
         "simple-update, 8 clients": ["-N", "-c", "8", "-j", "2"]}


def many(bench):
    """Of each kind of work: the runs of both proxies, as Bench.run gives them."""
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
