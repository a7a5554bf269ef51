"""A newer leader takes over during a transaction. Prints the error, whether SQLAlchemy invalidated the connection, and the
result of the next query on the pool's only connection."""

import asyncio
import os
import sys

import psycopg
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

driver = sys.argv[1]
token = os.environ["FRAMEWORK_TOKEN"]
url = f"postgresql+{driver}://postgres@{os.environ['PGHOST']}:{os.environ['PGPORT']}/app"
one = {"pool_size": 1, "max_overflow": 0}


def sqlstate(error):
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def give_up_when_stale(engine):
    """Like `fence_engine` of clients/python."""

    @event.listens_for(engine, "handle_error")
    def give_up(context):
        error = context.original_exception
        if sqlstate(error) == "LF001" and "outcome=" in str(error):
            context.is_disconnect = True


def take_over():
    options = f"-c lease.fence={int(token) + 1}"
    with psycopg.connect(dbname="app", user="postgres", options=options) as leader:
        leader.execute("DELETE FROM jobs")


def report(error):
    print(sqlstate(error.orig), "invalidated:", error.connection_invalidated)


def synchronous():
    engine = create_engine(url, **one, connect_args={"options": f"-c lease.fence={token}"})
    give_up_when_stale(engine)
    try:
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO jobs VALUES ('old')"))
            take_over()
            connection.execute(text("SELECT 'on'"))
    except DBAPIError as error:
        report(error)
    with engine.connect() as connection:
        print(connection.scalar(text("SELECT 'again'")))


async def asynchronous():
    engine = create_async_engine(url, **one, connect_args={"server_settings": {"lease.fence": token}})
    give_up_when_stale(engine.sync_engine)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO jobs VALUES ('old')"))
            await asyncio.to_thread(take_over)
            await connection.execute(text("SELECT 'on'"))
    except DBAPIError as error:
        report(error)
    async with engine.connect() as connection:
        print(await connection.scalar(text("SELECT 'again'")))
    await engine.dispose()


if driver == "asyncpg":
    asyncio.run(asynchronous())
else:
    synchronous()
