#!/usr/bin/python3
"""The show: two schedulers overlap, the wrong lock is released, a pause without the fence and with it, Redis down."""

import os
import subprocess
from collections import Counter

from scene import (
    CONSOLE, DIRECT, PROXIED, STAGE,
    Actor, claim, committed, finish, first, follow_commits, paused, resume, say, scene, sql, stale, wait,
)

HERE = os.path.dirname(os.path.abspath(__file__))
SOCKET = f"{STAGE}/redis.sock"
LOCK, TOKEN = "scheduler:auto-refresh:lock", "scheduler:auto-refresh:token"
REPOSITORIES = 3


def cli(*arguments):
    """Returns the output of redis-cli. Raises an error if Redis does not answer."""
    command = ["redis-cli", "-s", SOCKET, "-e", *arguments]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return run.stdout.strip()


def answers():
    try:
        return cli("PING") == "PONG"
    except subprocess.CalledProcessError:
        return False


def step(name, uuid):
    """Runs a step of lock.lua, like the schedulers."""
    return cli("--eval", f"{HERE}/lock.lua", LOCK, TOKEN, ",", name, uuid, "60000")


def start_redis():
    # Without persistence, so that Redis loses all data when it stops.
    server = Actor("redis-server", "--port", "0", "--unixsocket", SOCKET, "--save", "", "--dir", STAGE, shown=False)
    wait("Redis answers", answers)
    return server


def begin(title, token):
    scene(title)
    redis = start_redis()
    # Start from a higher token, as if Redis had counted for a while.
    cli("SET", TOKEN, str(token))
    sql("TRUNCATE tasks; UPDATE repositories SET due = 'infinity'")
    follow_commits()
    return redis


def node(name, database, **environment):
    return Actor(f"{HERE}/node.sh", name, SOCKET, database, PGAPPNAME=name, **environment)


def fall_due():
    sql("UPDATE repositories SET due = now()")


def tasks():
    """Returns the tasks in the order of commits, the repositories enqueued twice, and the tasks of a former holder."""
    rows = committed("public.tasks")
    counts = Counter(row["repository"] for row in rows)
    return rows, [name for name, count in sorted(counts.items()) if count > 1], stale(rows)


def judge(times):
    rows, _, late = tasks()
    counts = Counter(row["repository"] for row in rows)
    claim(list(counts.values()) == [times] * REPOSITORIES, f"each repository was enqueued {times} times: {counts}")
    claim(not late, f"tokens never decrease in the order of commits: {late}")
    print(f"  RIGHT: {len(rows)} tasks, each once; tokens never decrease in the order of commits.")


def pass_it_on(release):
    """Blue's lock expires, green takes it, and blue releases it. Returns the token of a third scheduler that tries then."""
    say(f"blue takes the lock, and token {step('acquire', 'uuid-of-blue')}")
    cli("PEXPIRE", LOCK, "0")
    say("blue is suspended, and the lock expires")
    say(f"green takes the lock, and token {step('acquire', 'uuid-of-green')}, and works")
    say(f"blue wakes up, and releases the lock: {release()}")
    third = step("acquire", "uuid-of-red")
    say(f"red tries to take it: {'token ' + third if third else 'another holds the lock'}")
    cli("PEXPIRE", LOCK, "0")
    return third


def pause_beyond_the_ttl(database):
    """Suspends blue and its heartbeat between its read and its write."""
    fall_due()
    blue = node("blue", database, STALL="1")
    job = int(blue.until(r"is suspended.*process (\d+)")[1])
    wait("the job is suspended", lambda: paused(job))
    blue.pause()
    node("green", database).until("has enqueued")
    # The worst order: the job wakes up before its timer and the heartbeat.
    resume(job)
    blue.until("(has|could not) enqueue")
    blue.resume()
    blue.until("no longer holds the lock")
    return blue


begin("Blue and green overlap: one runs the job, the other skips the cycle", 100)
both = [node(name, PROXIED, WORK="0.3") for name in ("blue", "green")]
for times in range(1, 4):
    fall_due()
    wait("all is enqueued", lambda: len(committed("public.tasks")) >= times * REPOSITORIES)
first(both, "skips: another holds the lock")
judge(3)

begin("A job hangs: the heartbeat keeps its lock beyond the TTL of 3 s, the limit of 4 s ends it", 200)
fall_due()
blue = node("blue", PROXIED, WORK="60")
blue.until("runs the job")
green = node("green", PROXIED)
green.until("skips: another holds the lock")
blue.until("ends the job")
blue.until("releases the lock")
blue.kill()
green.until("has enqueued")
judge(1)

begin("Who releases: a plain DEL, and a script that checks the lock's owner", 300)
claim(pass_it_on(lambda: cli("DEL", LOCK)), "DEL releases the wrong lock: this run proves nothing otherwise")
print("  WRONG: green and red both hold the lock. Blue has deleted green's.")
claim(not pass_it_on(lambda: step("release", "uuid-of-blue")), "the script leaves green's lock alone")
print("  RIGHT: the lock has green's UUID, and stays.")

begin("Straight to PostgreSQL: blue is suspended for longer than the lock lives", 400)
pause_beyond_the_ttl(DIRECT)
_, twice, late = tasks()
claim(len(twice) == REPOSITORIES and late, "the job did not run twice: this run proves nothing")
print(f"  WRONG: the job ran twice: {', '.join(twice)}; {len(late)} tasks are a former holder's.")

begin("The same through fencegate, with the token that came with the lock", 500)
blue = pause_beyond_the_ttl(PROXIED)
claim(blue.said("could not enqueue .*LF001"), "the late job is stopped by LF001")
judge(1)

redis = begin("Redis is down, and then has lost all data", 600)
both = [node(name, PROXIED) for name in ("blue", "green")]
fall_due()
first(both, "has enqueued")
redis.kill()
say("Redis is down")
for scheduler in both:
    scheduler.until("skips: no answer")
fall_due()
for scheduler in both:
    scheduler.until("skips: no answer", 2)
judge(1)
start_redis()
say("Redis is back, and counts from 1")
first(both, "could not enqueue .*LF001")
judge(1)
sql("FENCE RESET refresh TO 1", CONSOLE)
say("the operator, who knows that no former holder is left: FENCE RESET refresh TO 1")
first(both, "has enqueued")
claim(len(committed("public.tasks")) == 2 * REPOSITORIES, "the job runs again, once")
finish("the job runs twice without the fence, and once with it.")
