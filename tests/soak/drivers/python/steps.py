"""Shared by the programs of this folder: the address of the proxy, takeovers, and running and reporting steps."""

import asyncio
import inspect
import os
import threading

import psycopg

ADDRESS = {"host": os.environ["PGHOST"], "port": int(os.environ["PGPORT"]), "user": os.environ["PGUSER"]}
DATABASE = os.environ["PGDATABASE"]

LARGE = "0123456789abcdef" * (4 * 1024 * 1024 // 16)


def run(driver):
    """Runs every public method as a step, in the order of definition."""
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
    """The class of the application's error, and the fields of psycopg's error."""
    diagnostic = cause.diag
    kind = f"{type(error).__module__.removesuffix('.errors').removesuffix('.utils')}.{type(error).__name__}"
    return f"{kind} {cause.sqlstate} {diagnostic.severity_nonlocalized} {diagnostic.message_detail}"


def whether_large(payload):
    return "same" if payload == LARGE else "another"


def take_over(token):
    """Another leader writes with that token."""
    with another_session(f"-c lease.fence={token}") as leader:
        leader.execute("DELETE FROM jobs WHERE id <> 4")


def another_session(options=""):
    return psycopg.connect(**ADDRESS, dbname=DATABASE, options=options, autocommit=True)


def once_asleep(action):
    """Runs the action in a thread once a statement sleeps."""

    def wait_and_act():
        with another_session() as session:
            session.execute("SELECT until_asleep()")
        action()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def once_asleep_async(action):
    """Like once_asleep, but runs the action in the event loop."""
    loop = asyncio.get_running_loop()
    return once_asleep(lambda: loop.call_soon_threadsafe(action))
