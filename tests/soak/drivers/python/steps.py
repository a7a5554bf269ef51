"""What the programs of this folder share: where the proxy is, who takes over, and how steps are run and reported."""

import asyncio
import inspect
import os
import threading

import psycopg

ADDRESS = {"host": os.environ["PGHOST"], "port": int(os.environ["PGPORT"]), "user": os.environ["PGUSER"]}
DATABASE = os.environ["PGDATABASE"]

LARGE = "0123456789abcdef" * (4 * 1024 * 1024 // 16)


def run(driver):
    """Every public method is a step, in the order of their definition."""
    for name, step in vars(type(driver)).items():
        if inspect.isfunction(step) and not name.startswith("_"):
            report(name, step(driver))


async def run_async(driver):
    for name, step in vars(type(driver)).items():
        if inspect.isfunction(step) and not name.startswith("_"):
            result = step(driver)
            report(name, await result if inspect.isawaitable(result) else result)


def report(step, result):
    print(f"{step}: {result}", flush=True)


def shown(error, cause):
    """The class that the application sees, and what the server has said: the fields of psycopg's error."""
    diagnostic = cause.diag
    kind = f"{type(error).__module__.removesuffix('.errors').removesuffix('.utils')}.{type(error).__name__}"
    return f"{kind} {cause.sqlstate} {diagnostic.severity_nonlocalized} {diagnostic.message_detail}"


def whether_large(payload):
    return "same" if payload == LARGE else "another"


def take_over(token):
    """Another leader, with that token, writes."""
    with another_session(f"-c lease.fence={token}") as leader:
        leader.execute("DELETE FROM jobs WHERE id <> 4")


def another_session(options=""):
    return psycopg.connect(**ADDRESS, dbname=DATABASE, options=options, autocommit=True)


def once_asleep(action):
    """Does it in a thread, once a statement sleeps."""

    def wait_and_act():
        with another_session() as session:
            session.execute("SELECT until_asleep()")
        action()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def once_asleep_async(action):
    """As once_asleep, and the action runs in the event loop."""
    loop = asyncio.get_running_loop()
    return once_asleep(lambda: loop.call_soon_threadsafe(action))
