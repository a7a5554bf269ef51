#!/usr/bin/python3
"""The show: two workers on one job, without a fence and with it; crashes; normal operation.

Deterministic: workers suspend themselves at barriers, and the show waits for output or stored data.
"""

import json
import os
import re
import signal
import urllib.request
from pathlib import Path
from uuid import uuid4

from scene import DIRECT, FENCEGATE, PROXIED, Actor, claim, dismiss, finish, outcome, paused, scene, sql, wait
from worker import call

WORKER = Path(__file__).parent / "worker.py"
SERVICE = Path(FENCEGATE).parent / "job_queue"
cast = []


def replica(name, database=PROXIED, ttl="30 s"):
    """Starts another replica of the service, and returns its address. A lease of 30 s does not expire even on a loaded machine."""
    cast.append(Actor(SERVICE, name, database, ttl, "127.0.0.1:0", shown=False))
    return "http://" + cast[-1].until('"address":"([^"]+)"')[1]


def worker(name, service, database=PROXIED, *barrier):
    cast.append(Actor(WORKER, name, service, database, *barrier, shown=False, PGAPPNAME=name))
    return cast[-1]


def submit(service, **work):
    return call(service, "POST", "/jobs", idempotency_key=str(uuid4()), work={"amount": 10} | work)[1]["id"]


def drill(title, barrier, database=PROXIED, befall=lambda a: None):
    """A stops at the barrier, and `befall` runs. A's lease expires, B does the job, and A continues if it is alive.

    Returns A's token and last event, and the job's number of entries, their lowest and highest token, and its state.
    """
    scene(title)
    one, two = replica("r1", database, "3 s"), replica("r2", database)
    job = submit(one)
    a = worker("A", one, database, barrier)
    token = int(a.until(r'"stopped".*"token": (\d+)')[1])
    wait("A is suspended", lambda: paused(a.pid))
    befall(a)
    worker("B", two, database).until("execution_done")
    if befall is not Actor.kill:
        a.resume()
        a.until("work_discarded")
    dismiss()
    # All events in the order of their time.
    events = [json.loads(line) for actor in cast for line in actor.lines]
    cast.clear()
    for event in sorted(events, key=lambda event: event.pop("timestamp")):
        name, speaker = event.pop("event"), event.pop("replica", None) or event.pop("worker")
        if name not in ("listening", "lease_renewed", "tending_failed"):
            print(f"  {speaker:2} {name:17}", *(f"{name}={value}" for name, value in event.items()))
    entries = "count(ledger), coalesce(min(token), 0), coalesce(max(token), 0)"
    [row] = sql(f"SELECT {entries}, state FROM job LEFT JOIN ledger ON job = id WHERE id = {job} GROUP BY id")
    print(f"  job {job}: {row[0]} in the ledger, of tokens {row[1]} to {row[2]}; {row[3]}", flush=True)
    return token, a.lines[-1], int(row[0]), int(row[1]), int(row[2]), row[3]


def crash_database(_):
    [[process]] = sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    os.kill(int(process), signal.SIGKILL)
    for database in DIRECT, PROXIED:
        wait("the database answers", lambda: outcome("SELECT 1", database) == "1")


BARRIERS = {"checked": "after assert_fence", "inserted": "after its INSERT, before COMMIT"}
for barrier, where in BARRIERS.items():
    token, _, count, lowest, highest, _ = drill(f"Straight to PostgreSQL: A pauses {where}", barrier, DIRECT)
    claim(count > 1 and lowest == token < highest, "without a fence the job is done twice: this run proves nothing")
    print("  WRONG: one job, two entries. assert_fence was too early, and UNIQUE (job, token) let both in.")
for barrier, where in BARRIERS.items():
    token, words, count, lowest, highest, state = drill(f"Through fencegate: A pauses {where}", barrier)
    claim(count == 1, "exactly one entry in the ledger")
    claim(lowest == highest, "all entries are of one token")
    claim(lowest > token, "the job was claimed again")
    claim(state == "succeeded", "the job has succeeded")
    claim("LF001" in words, "fencegate has ended A's transaction")
    print("  RIGHT: one entry, B's. A's transaction was rolled back.")
for title, barrier, befall in (
    ("A crashes in mid-apply, before COMMIT", "inserted", Actor.kill),
    ("A crashes in mid-apply, after COMMIT, before it reports success", "applied", Actor.kill),
    ("The database crashes while A has a job", "checked", crash_database),
):
    token, words, count, lowest, _, state = drill(title, barrier, befall=befall)
    claim(count == 1 and state == "succeeded", "the job is done once")
    claim((lowest == token) == (barrier == "applied"), "what A has committed stands, and nothing else of A's")
    claim(befall is Actor.kill or "LF001" in words, "A's token is stale after the crash, too")
    print(f"  RIGHT: one entry, {'A' if lowest == token else 'B'}'s.")

scene("Two replicas of the service, three workers, a generator")
one, two = replica("r1"), replica("r2")
invoice = {"idempotency_key": "invoice-1", "work": {"amount": 10}}
(made, first), (found, second) = call(one, "POST", "/jobs", **invoice), call(two, "POST", "/jobs", **invoice)
claim((made, found) == (201, 200) and first == second, "one job for one idempotency key")
claim(outcome("UPDATE job SET attempts = 1 WHERE id = 1", PROXIED) == "LF002", "a claim by UPDATE has no token yet")
status, job = call(one, "POST", "/jobs/next", worker="hand")
claim(status == 200 and job["must_heartbeat_before"], "200: a job, and when its worker has to be heard of")
claim(call(two, "POST", "/jobs/next", worker="other")[0] == 204, "204: no job is given out twice")
told = {"worker": "hand", "token": job["token"]}
for status, what, body, lists in (
    (202, "heartbeat", told, ["active", "renewed"]),
    (200, "heartbeat", told | {"worker": "other"}, []),
    (409, "heartbeat", told | {"token": job["token"] - 1}, ["active", "expired"]),
    (202, "complete", told, ["released"]),
    (409, "complete", told, []),
):
    claim(call(two, "PUT", f"/jobs/{job['id']}/{what}", **body)[0] == status, f"{status} for {what} with {body}")
    for name in lists:
        leases = [lease["token"] for lease in call(one, "GET", f"/leases/{name}")[1]]
        claim((token if name == "expired" else job["token"]) in leases, f"the lease is {name}")
lost = replica("r3", "host=/nonexistent user=postgres")
claim(call(lost, "POST", "/jobs/next", worker="other")[0] == 500, "500: the database cannot be reached")

flaky, hopeless = submit(one, fails=2), submit(two, fails=9)
call(one, "PUT", "/generator", running=True)
for name, service in ("W1", one), ("W2", two), ("W3", one):
    worker(name, service)
wait("jobs are made", lambda: call(two, "GET", "/generator")[1]["made"] > 4)
by = [call(service, "GET", "/generator")[1]["by"] for service in (one, two)]
claim(by[0] == by[1], "all replicas tell of one generator")
call(two if by[0] == "r1" else one, "PUT", "/generator", running=False)
stopped = call(one, "GET", "/generator")[1]
for _ in range(2):
    renewed = sql(turn := "SELECT renewed FROM fencegate_state.lease WHERE election = 'generator'")
    wait("the generator has its turn", lambda: sql(turn) != renewed)
claim(call(two, "GET", "/generator")[1] == stopped, "the replica that is not the generator has stopped it")
wait("all jobs have ended", lambda: sql("SELECT id FROM job WHERE state IN ('queued', 'running')") == [])
tried = sql(f"SELECT state, attempts FROM job WHERE id IN ({flaky}, {hopeless}) ORDER BY id")
claim(tried == [["succeeded", "3"], ["failed", "4"]], "who fails is tried again, four times in all")
twice = sql(f"SELECT job FROM ledger WHERE job >= {flaky} GROUP BY job HAVING count(*) > 1")
claim(not twice, f"no job is done twice: {twice}")
pages = [urllib.request.urlopen(f"{service}/metrics").read().decode() for service in (one, two)]
counts = re.findall(r'events_total\{event="(\w+)"\} (\d+)', "".join(pages))
[[jobs, attempts]] = sql(f"SELECT count(*), sum(attempts) FROM job WHERE id >= {first['id']}")
expected = {"lease_acquired": int(attempts), "job_succeeded": int(jobs) - 1, "job_retried": 5, "job_failed": 1}
for event, expected in expected.items():
    count = sum(int(count) for name, count in counts if name == event)
    claim(count == expected, f"{event} is counted {count} times, of {expected}")
claim("stale_write_blocked" in dict(counts), "the stale heartbeat is counted")
print(f"  RIGHT: {jobs} jobs, {stopped['made']} of them generated, each done once in {attempts} attempts.")
finish("two entries for one job without the fence, one with it, whichever worker pauses or crashes.")
