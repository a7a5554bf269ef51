#!/usr/bin/python3
"""The show: the cron without a fence, with it, with a guard in each row, over shards, and in three languages.

Usage: show.py [NODE_IN_GO]
"""

import base64
import os
import signal
import sys
import time
from collections import Counter
from datetime import datetime

from scene import (
    DIRECT, ETCD, FENCEGATE, PROXIED, PSQL, STAGE,
    Actor, claim, committed, etcd, finish, first, follow_commits, outcome, say, scene, sql, stale, under, wait,
)

HERE = os.path.dirname(os.path.abspath(__file__))
CRON = os.path.join(os.path.dirname(FENCEGATE), "distributed_cron")
# In seconds. LONG_TTL is for leases that must not expire, because a loaded machine renews late.
TTL, LONG_TTL, PERIOD = 3, 15, 1
# Output of a node that was rejected, or whose session was terminated during a statement.
STOPPED = r"rejected: LF001$|^\w+ stops: "
SHARDS = 4
JOBS = ["backup", "billing", "cleanup", "digest", "invoices", "mails", "report", "sync"]


def node(name, url, database, ttl, *options):
    place = ["--id", name, "--etcd", url, "--election", "/cron/leader", "--database", f"{database} application_name={name}"]
    return Actor(CRON, "node", *place, "--ttl", str(ttl), "--period", str(PERIOD), *options)


def under_lead(name, election, *command):
    """Runs a command under `fencegate lead`."""
    lead = [FENCEGATE, "lead", "--etcd", ETCD, "--election", election, "--id", name, "--ttl", str(LONG_TTL), "--"]
    path = f"{os.path.dirname(PSQL)}:{os.environ['PATH']}"
    login = {"PGHOST": STAGE, "PGPORT": "6432", "PGUSER": "postgres", "PGDATABASE": "app", "PGAPPNAME": name}
    return Actor(*lead, *command, PATH=path, RUST_LOG="error", **login)


def begin(title):
    scene(title)
    sql("TRUNCATE ticks")
    follow_commits()


class Ticks:
    """The committed ticks in the order of commits, and the output of the nodes."""

    def __init__(self, actors):
        self.rows = committed("public.ticks")
        self.ticks = [int(datetime.fromisoformat(row["tick"]).timestamp()) for row in self.rows]
        cells = [f"{tick % 60}:{row['node']}/{row['token']}" for tick, row in zip(self.ticks, self.rows)]
        print("  ticks, as second:node/token ", " ".join(cells))
        self.doubled = sum(count > 1 for count in Counter(self.ticks).values())
        self.stale = len(stale(self.rows))
        self.stopped = any(actor.said(STOPPED) for actor in actors)
        self.late = sum(len(actor.said("rejected: LF001$")) for actor in actors)
        self.skipped = sum(int(match[1]) for actor in actors for match in actor.said(r" skipped (\d+)$"))

    def judge(self):
        """Checks the claims of a run with a fence."""
        missing = (max(self.ticks) - min(self.ticks)) // PERIOD + 1 - len(set(self.ticks)) - self.skipped
        claim(self.doubled == 0, f"{self.doubled} ticks were run twice")
        claim(self.stale == 0, f"{self.stale} rows stand after one with a higher token")
        claim(missing == 0, f"{missing} ticks are missing, and nobody said so")
        claim(all(tick % PERIOD == 0 for tick in self.ticks), "ticks are not aligned to the clock")
        print(f"  RIGHT: {len(self.rows)} ticks, one row each; {self.late} late writes rejected; "
              f"{self.skipped} ticks skipped and reported.")


def corrupted():
    rows = committed("public.ticks")
    return stale(rows) and len({row["tick"] for row in rows}) < len(rows)


def split_brain(database):
    """Runs three nodes that never check whether they lead. Cuts the leader off from etcd for twice its TTL and 2 s."""
    relays, nodes = {}, {}
    for name in "abc":
        relays[name] = Actor(CRON, "relay", ETCD.removeprefix("http://"), shown=False)
        address = relays[name].until(r"\S+")[0]
        nodes[name] = node(name, f"http://{address}", database, TTL, "--oblivious")
    old = first(nodes.values(), r"^(\w+) leads")[0][1]
    nodes[old].until(" tick ", 2)
    relays[old].pause()
    say(f"{old} is cut off from etcd")
    cut = time.monotonic()
    new = first([nodes[name] for name in nodes if name != old], r"^(\w+) leads")[0][1]
    wait("twice the TTL and 2 s", lambda: time.monotonic() - cut >= 2 * TTL + 2)
    wait("both have written", lambda: corrupted() or nodes[old].said(STOPPED))
    relays[old].resume()
    say(f"{old} reaches etcd again")
    nodes[new].until(" tick ", 2)
    for actor in nodes.values():
        actor.kill()
    return Ticks(nodes.values())


begin("Straight to PostgreSQL: the leader is cut off from etcd, and does not notice")
naive = split_brain(DIRECT)
print(f"  WRONG: {naive.doubled} ticks were run twice, {naive.stale} rows are a deposed leader's.")
claim(naive.doubled and naive.stale, "the naive cron was not corrupted: this run proves nothing")

begin("The same through fencegate")
fenced = split_brain(PROXIED)
fenced.judge()
claim(fenced.stopped, "no late write reached the proxy: this run proves nothing")


def reign(name):
    """Wins the election. Returns the leader and its token."""
    work = "echo $FENCE_HOLDER leads under token $FENCE_TOKEN; exec sleep infinity"
    leader = under_lead(name, "/cron/guarded", "sh", "-c", work)
    return leader, int(leader.until(r"token (\d+)")[1])


def write(name, token, tick, database):
    """Writes a row that only a higher token overwrites. Returns the outcome."""
    done = outcome(
        f"INSERT INTO guarded VALUES ('{tick}', '{name}', {token}) ON CONFLICT (tick) "
        "DO UPDATE SET node = EXCLUDED.node, fence = EXCLUDED.fence WHERE guarded.fence < EXCLUDED.fence",
        under(token, f"{database} application_name={name}"),
    )
    say(f"{name} writes {tick} under {token}: {done}")
    return done


def late_ticks(database):
    """Returns the outcome of two ticks of a deposed leader: its successor has run the first, and no node the second."""
    leader, old = reign("old")
    write("old", old, "12:00", database)
    leader.terminate()
    leader.wait()
    _, new = reign("new")
    write("new", new, "12:01", database)
    return [write("old", old, tick, database) for tick in ("12:01", "12:02")]


scene("A guard in each row, WHERE fence < $rev, straight to PostgreSQL: the old leader's last ticks come late")
conflict, new_key = late_ticks(DIRECT)
claim(conflict == "INSERT 0 0", "the row's guard stops what conflicts with it")
claim(new_key == "INSERT 0 1", "the row's guard was not passed by: this run proves nothing")
print("  WRONG: 12:02 is a deposed leader's. Its key is new: there is no row to compare with.")

sql("TRUNCATE guarded")
scene("The same through fencegate: the fence is the resource's, not the row's")
claim(late_ticks(PROXIED) == ["LF001", "LF001"], "the fence stops both")
rows = sql("SELECT tick, node FROM guarded ORDER BY tick")
claim(rows == [["12:00", "old"], ["12:01", "new"]], f"{rows}")
print("  RIGHT: a late tick is stopped, whatever its key.")

begin(f"Jobs in {SHARDS} shards: an election and a token for each, and one lease for each process")
sql("TRUNCATE shard_ticks")
nodes = {}
for name, home in (("a", "0,2"), ("b", "1,3")):
    place = ["--id", name, "--etcd", ETCD, "--database", f"{PROXIED} application_name={name}", "--shards", str(SHARDS), "--home", home]
    nodes[name] = Actor(CRON, "shards", *place, "--ttl", str(TTL), "--period", str(PERIOD), *JOBS)


def led():
    """Returns the leader of each shard and its token."""
    wins = [win for actor in nodes.values() for win in actor.said(r"^(\w) leads shard (\d) under token (\d+)")]
    last = sorted((int(win[3]), win[2], win[1]) for win in wins)
    return {shard: (name, token) for token, shard, name in last}


def run_by_all(times):
    """Waits until each job has run this many times under the current tokens."""

    def jobs():
        tokens = ", ".join(str(token) for _, token in led().values())
        return sql(f"SELECT job FROM shard_ticks WHERE token IN ({tokens}) GROUP BY job HAVING count(*) >= {times}")

    wait("all jobs run", lambda: len(jobs()) == len(JOBS))


def candidates():
    prefix, end = (base64.b64encode(key).decode() for key in (b"/cron/shard/", b"/cron/shard0"))
    return etcd("kv/range", key=prefix, range_end=end).get("kvs", [])


wait("all shards are led", lambda: len(led()) == SHARDS)
run_by_all(2)
wait("both stand in all elections", lambda: len(candidates()) == 2 * SHARDS)
leases = {candidate["lease"] for candidate in candidates()}
say(f"etcd has {len(candidates())} candidates under {len(leases)} leases")
claim(len(leases) == 2, f"{len(leases)} leases")
before = led()
old = before["0"][0]
nodes[old].pause()
say(f"{old} is paused")
wait("the other leads all", lambda: len(led()) == SHARDS and all(name != old for name, _ in led().values()))
run_by_all(2)
nodes[old].resume()
say(f"{old} wakes up")
nodes[old].until(" (lost|stops in) shard ")
run_by_all(3)
after = led()
for shard, (name, token) in before.items():
    if name == old:
        claim(after[shard][1] > token, f"the token of shard {shard} has grown")
    else:
        kept = after[shard] == (name, token) or nodes[name].said(f" (lost|stops in) shard {shard}")
        claim(kept, f"shard {shard} has kept its leader and its token")
rows = committed("public.shard_ticks")
runs = Counter((row["job"], row["tick"]) for row in rows)
claim(max(runs.values()) == 1, "no job ran twice at a tick")
for shard in before:
    claim(not stale([row for row in rows if row["shard"] == shard]), f"tokens of shard {shard} grow in commit order")
    jobs = sorted({row["job"] for row in rows if row["shard"] == shard})
    tokens = " then ".join(dict.fromkeys(row["token"] for row in rows if row["shard"] == shard))
    print(f"  shard {shard}: {', '.join(jobs)}; tokens {tokens}")
print(f"  RIGHT: {len(rows)} runs, each once; a shard moves alone, and to a higher token.")

twin = sys.argv[1:]
names = "Rust, shell and Go" if twin else "Rust and shell"
begin(f"Nodes in {names}: one under `fencegate lead` is killed, others resign")
actors = {"shell": under_lead("shell", "/cron/leader", "sh", f"{HERE}/node.sh", str(PERIOD))}
actors["shell"].until(" leads ")
for name in "bc":
    actors[name] = node(name, ETCD, PROXIED, LONG_TTL)
if twin:
    place = ["-id", "go", "-etcd", ETCD, "-election", "/cron/leader", "-database", f"{PROXIED} application_name=go"]
    actors["go"] = Actor(*twin, *place, "-ttl", str(LONG_TTL))
leader = actors["shell"]
leader.until(" tick ", 2)
os.kill(leader.pid, signal.SIGKILL)
say("shell is killed")
followers = {name: actor for name, actor in actors.items() if name != "shell"}
while followers:
    match, leader = first(followers.values(), r"^(\w+) leads ")
    del followers[match[1]]
    leader.until(" tick ", 2)
    if followers:
        leader.terminate()
mixed = Ticks(actors.values())
mixed.judge()
claim({row["node"] for row in mixed.rows} == set(actors), "each node has led")
finish("exactly one row per tick with the fence, and corruption without it.")
