"""asyncpg's pool."""

import asyncio

import asyncpg
import steps
from pool import current_token, run

dsn = f"postgres://{steps.ADDRESS['user']}@{steps.ADDRESS['host']}:{steps.ADDRESS['port']}/{steps.DATABASE}"
sizes = {"min_size": 1, "max_size": 1}


async def present_token(connection):
    await connection.execute(f"SET lease.fence = '{current_token()}'")


async def open_pool():
    return await asyncpg.create_pool(dsn, **sizes, setup=present_token)


async def visit(actions):
    try:
        async with pool.acquire() as connection, connection.transaction():
            results = [await connection.fetchval(a) if isinstance(a, str) else a() for a in actions]
            return results[-1]
    except asyncpg.PostgresError as error:
        # That of the ROLLBACK, which found no connection, has the one of the query behind it.
        return (error.__context__ or error).sqlstate


steps.report("version", asyncpg.__version__)
loop = asyncio.new_event_loop()
pool = loop.run_until_complete(open_pool())
run(lambda actions: loop.run_until_complete(visit(actions)))
loop.run_until_complete(pool.close())
