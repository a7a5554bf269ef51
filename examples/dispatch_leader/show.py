#!/usr/bin/python3
"""The show: a crash, a pause of 12 s without the fence and with it, and etcd away."""

import base64
import os
import time
from collections import Counter

from scene import (
    DIRECT, ETCD, PROXIED,
    Actor, claim, committed, etcd, finish, first, follow_commits, outcome, pause, paused, resume, say, scene, server,
    sql, stale, under, wait,
)

NODE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node.py")
ELECTION, TTL, CRASH, PAUSE = "/svc/dispatch/leader", 5, 8, 12


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def begin(title):
    scene(title)
    # Remove the old candidates, so that the next leader does not wait until the last lease expires.
    etcd("kv/deleterange", key=encoded(f"{ELECTION}/"), range_end=encoded(f"{ELECTION}0"))
    sql("UPDATE orders SET courier = NULL, token = NULL WHERE courier IS NOT NULL")
    follow_commits()


def node(name, database, *options):
    return Actor(NODE, name, "--etcd", ETCD, "--database", database, *options, PGAPPNAME=name)


def token_of(actor):
    return int(actor.said(r"leads under token (\d+)")[-1][1])


def start(database, *options):
    """Starts A as the leader, and B and C as candidates."""
    leader = node("A", database, *options)
    leader.until("leads under")
    return leader, [node(name, database) for name in "BC"]


def orders():
    """Returns the dispatched orders, those dispatched twice, and those of a deposed leader."""
    rows = committed("public.orders")
    twice = [order for order, times in Counter(row["id"] for row in rows).items() if times > 1]
    return rows, twice, stale(rows)


def judge():
    rows, twice, late = orders()
    claim(rows, "orders were given away")
    claim(not twice, f"no order has two couriers: {twice}")
    claim(not late, f"tokens never decrease in the order of commits: {late}")
    print(f"  RIGHT: {len(rows)} orders, one courier each; tokens never decrease in the order of commits.")


def pause_the_leader(database):
    """Suspends A for 12 s between its decision and its write."""
    old, others = start(database, "--stall-before", "1")
    old.until("is suspended")
    since = time.monotonic()
    wait("every thread of A is suspended", lambda: paused(old.pid))
    _, new = first(others, "gives order 1 to")
    wait(f"{PAUSE} s are over", lambda: time.monotonic() - since >= PAUSE)
    say(f"A wakes up after {PAUSE} s")
    old.resume()
    return old, new


begin(f"The leader crashes after {CRASH} s")
old = node("A", PROXIED)
old.until("leads under")
led = time.monotonic()
for number in range(4):
    etcd("kv/put", key=encoded(f"/svc/other/{number}"), value=encoded("busy"))
say("other services write 4 keys to etcd")
others = [node(name, PROXIED) for name in "BC"]
wait(f"{CRASH} s are over", lambda: time.monotonic() - led >= CRASH)
old.kill()
crash = time.monotonic()
say("A crashes")
_, new = first(others, "leads under")
took = time.monotonic() - crash
before, after = token_of(old), token_of(new)
new.until("gives order")
claim(after > before, "the token is higher")
print(f"  There was no leader for {took:.1f} s; the lease is {TTL} s, and was last renewed up to {TTL / 3:.1f} s before.")
print(f"  {after} is {after - before} more than {before}: the revision counts every change of any key in etcd, here")
print("  4 of others, and the keys of the candidates. Gaps are harmless.")
judge()

begin(f"Straight to PostgreSQL: the leader is suspended for {PAUSE} s")
old, new = pause_the_leader(DIRECT)
old.until("gives order 1 to")
rows, twice, late = orders()
claim(twice and late, "the naive service was not corrupted: this run proves nothing")
couriers = " and ".join(row["courier"] for row in rows if row["id"] == "1")
print(f"  WRONG: order 1 has couriers {couriers}; the table keeps the deposed leader's, under {late[0]['token']}.")

begin("The same through fencegate: nothing is changed but the connection string")
old, new = pause_the_leader(PROXIED)
old.until("is rejected: LF001")
new.until("gives order")
judge()

begin("etcd is unavailable: no node leads or dispatches, and nothing is corrupted")
old, others = start(PROXIED)
old.until("gives order")
pause(server("etcd"))
away = time.monotonic()
say("etcd is suspended")
old.until("stops: .*the lease was not renewed")
old.until("cannot reach etcd")
given, token = len(committed("public.orders")), token_of(old)
forged = outcome("UPDATE orders SET courier = 'forged' WHERE id = 500", under(1000, PROXIED))
say(f"a client invents token 1000: {forged}")
wait("the lease is over, too", lambda: time.monotonic() - away >= TTL + 1)
claim(len(committed("public.orders")) == given, "nobody dispatches without etcd")
claim(forged == "LF006", f"an invented token is not believed: {forged}")
resume(server("etcd"))
say("etcd is back")
_, new = first([old, *others], "leads under")
new.until("gives order")
claim(token_of(new) > token, "the token is higher")
judge()
finish("a deposed leader gives away orders without the fence, and none with it.")
