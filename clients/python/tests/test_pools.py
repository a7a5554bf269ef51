"""Pools of one connection: each user finds the current token, whatever the previous one left, and never a closed
connection."""

import asyncio
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

import fencegate
from fencegate import Lease, MissingToken, StaleToken, fencing_errors, is_retryable

WRITE = "INSERT INTO jobs (run_by) VALUES ('pool')"
READ = "SELECT current_setting('lease.fence') || ' ' || pg_backend_pid()"


@contextmanager
def psycopg_pool(url, source, **options):
    with ConnectionPool(url, min_size=1, max_size=1, check=fencegate.psycopg_check(source), **options) as pool:

        @asynccontextmanager
        async def take():
            with pool.connection() as connection:

                async def run(query):
                    cursor = connection.execute(query)
                    return cursor.fetchone()[0] if cursor.description else None

                yield run

        yield take


@asynccontextmanager
async def psycopg_async_pool(url, source):
    check = fencegate.psycopg_async_check(source)
    async with AsyncConnectionPool(url, min_size=1, max_size=1, check=check, open=False) as pool:

        @asynccontextmanager
        async def take():
            async with pool.connection() as connection:

                async def run(query):
                    cursor = await connection.execute(query)
                    return (await cursor.fetchone())[0] if cursor.description else None

                yield run

        yield take


@asynccontextmanager
async def asyncpg_pool(url, source):
    setup = fencegate.asyncpg_setup(source)
    async with asyncpg.create_pool(url, min_size=1, max_size=1, setup=setup) as pool:

        @asynccontextmanager
        async def take():
            async with pool.acquire() as connection, connection.transaction():
                yield connection.fetchval

        yield take


@contextmanager
def sqlalchemy_pool(url, source, driver="psycopg"):
    engine = sqlalchemy.create_engine(url.replace("postgres:", f"postgresql+{driver}:"), pool_size=1, max_overflow=0)
    fencegate.fence_engine(engine, source)

    @asynccontextmanager
    async def take():
        with engine.begin() as connection:

            async def run(query):
                result = connection.execute(sqlalchemy.text(query))
                return result.scalar() if result.returns_rows else None

            yield run

    yield take
    engine.dispose()


def sqlalchemy_pool_of_psycopg2(url, source):
    return sqlalchemy_pool(url, source, "psycopg2")


@asynccontextmanager
async def sqlalchemy_async_pool(url, source):
    url = url.replace("postgres:", "postgresql+asyncpg:")
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    fencegate.fence_engine(engine, source)

    @asynccontextmanager
    async def take():
        async with engine.begin() as connection:

            async def run(query):
                result = await connection.execute(sqlalchemy.text(query))
                return result.scalar() if result.returns_rows else None

            yield run

    yield take
    await engine.dispose()


POOLS = [psycopg_pool, psycopg_async_pool, asyncpg_pool, sqlalchemy_pool, sqlalchemy_pool_of_psycopg2, sqlalchemy_async_pool]


def visit(pool, url, source, steps):
    """Runs a coroutine function with the pool's `take`."""

    async def main():
        opened = pool(url, source)
        if hasattr(opened, "__aenter__"):
            async with opened as take:
                await steps(take)
        else:
            with opened as take:
                await steps(take)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("pool", POOLS)
def test_no_user_finds_the_token_of_the_previous_one(pool, proxy, next_token):
    token = None

    async def steps(take):
        nonlocal token

        async def found(*queries):
            async with take() as run:
                return [await run(query) for query in queries][-1]

        older, newer = next_token(), next_token()
        token = older
        shown, session = (await found(WRITE, READ)).split()
        assert shown == str(older)
        token = newer
        shown, newer_session = (await found(WRITE, READ)).split()
        assert shown == str(newer)
        # The proxy may end a session that the older token admitted. asyncpg's pool offers no way to replace it.
        assert (newer_session != session) == (pool is not asyncpg_pool)
        session = newer_session
        token = None
        assert await found(READ) == f" {session}"
        with pytest.raises(MissingToken) as missing, fencing_errors():
            await found(WRITE)
        assert missing.value.resource == "jobs" and not is_retryable(missing.value)
        # A rollback does not bring back the old token.
        token = newer
        assert await found(WRITE, "ROLLBACK", READ) == f"{newer} {session}"
        with pytest.raises(KeyError):
            async with take() as run:
                await run(WRITE)
                raise KeyError
        assert await found(READ) == f"{newer} {session}"
        token = older
        with pytest.raises(StaleToken) as stale, fencing_errors():
            await found(WRITE)
        assert (stale.value.presented, stale.value.highest, stale.value.outcome) == (older, newer, None)

    visit(pool, proxy.url, lambda: token, steps)


@pytest.mark.parametrize("pool", POOLS)
def test_a_connection_that_was_cut_off_is_discarded(pool, proxy, next_token):
    token = next_token()
    newest = None

    async def steps(take):
        nonlocal newest
        with pytest.raises(StaleToken) as stale, fencing_errors():
            async with take() as run:
                await run(WRITE)
                session = (await run(READ)).split()[1]
                newest = next_token()
                with psycopg.connect(proxy.url, options=f"-c lease.fence={newest}") as other:
                    other.execute(WRITE)
                await run(READ)
        assert stale.value.outcome == "rolled_back"
        assert (stale.value.presented, stale.value.highest) == (token, newest)
        async with take() as run:
            shown, other_session = (await run(READ)).split()
            assert shown == str(newest) and other_session != session
            await run(WRITE)

    visit(pool, proxy.url, lambda: newest or token, steps)


# asyncpg's pool notices the end by itself, when its loop runs, and has no second attempt.
@pytest.mark.parametrize("pool", [pool for pool in POOLS if pool is not asyncpg_pool])
def test_a_connection_that_ended_while_idle_is_replaced(pool, proxy, postgres, next_token):
    token = next_token()

    async def steps(take):
        async with take() as run:
            session = (await run(READ)).split()[1]
        postgres.sql(f"SELECT pg_terminate_backend({session}, 10000)")
        async with take() as run:
            assert (await run(READ)).split()[1] != session

    visit(pool, proxy.url, lambda: token, steps)


@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_follows_the_lease(pool, proxy, postgres, name):
    lease = Lease(postgres.url(), "cron/scheduler", ttl=2)
    write = "UPDATE ticks SET run_by = 'pool'"

    async def steps(take):
        for end in ("release", "loss"):
            with pytest.raises(MissingToken), fencing_errors():
                async with take() as run:
                    await run(write)
            assert lease.acquire(timeout=20)
            # Otherwise the proxy may cut off a transaction on asyncpg's connection, which the last term has used.
            fencegate.claim(lease, proxy.url, "scheduler")
            async with take() as run:
                await run(write)
                assert (await run(READ)).split()[0] == str(lease.token)
            if end == "release":
                lease.release()
            else:
                postgres.sql("UPDATE fencegate_state.lease SET expires = clock_timestamp() WHERE election = 'cron/scheduler'")
                await asyncio.to_thread(lease.lost.wait, 20)
        async with take() as run:
            assert (await run(READ)).startswith(" ")

    try:
        visit(pool, proxy.url, lease, steps)
    finally:
        lease.release()


def test_psycopg_pool_replaces_all_connections_at_once(proxy, next_token):
    token = next_token()
    with ConnectionPool(proxy.url, min_size=6, max_size=6, check=fencegate.psycopg_check(lambda: token)) as pool:

        def sessions():
            connections = [pool.getconn() for _ in range(6)]
            found = {connection.execute(READ).fetchone()[0] for connection in connections}
            for connection in connections:
                pool.putconn(connection)
            return found

        before = sessions()
        token = next_token()
        # The pool's pauses after 6 failed checks, one after the other, take 30 s.
        pool.timeout = 10
        after = sessions()
        assert len(before | after) == 12 and all(one.startswith(f"{token} ") for one in after)


def test_psycopg_pool_with_autocommit(proxy, next_token):
    tokens = [next_token(), next_token()]

    async def steps(take):
        for token in list(tokens):
            async with take() as run:
                assert (await run(READ)).split()[0] == str(token)
            tokens.pop(0)

    def pool(url, source):
        return psycopg_pool(url, source, kwargs={"autocommit": True})

    visit(pool, proxy.url, lambda: tokens[0], steps)


def test_a_token_cannot_contain_sql():
    with pytest.raises(ValueError):
        fencegate.set_fence(lambda: "1'; DROP TABLE jobs; --")
    assert fencegate.set_fence(lambda: "scheduler=47, shard/caf%C3%A9=7") == (
        "SET lease.fence = 'scheduler=47, shard/caf%C3%A9=7'"
    )
