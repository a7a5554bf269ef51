"""asyncpg."""

import asyncio

import asyncpg
import steps


class Asyncpg:
    def version(self):
        return asyncpg.__version__

    async def token(self):
        await self._connect(1)
        return await self.connection.fetchval("SELECT current_setting('lease.fence')")

    async def writes(self):
        await self.connection.execute("INSERT INTO jobs VALUES (1, 'one')")
        return await self.connection.fetchval("SELECT payload FROM jobs WHERE id = 1")

    async def prepares(self):
        self.insert = await self.connection.prepare("INSERT INTO jobs VALUES ($1)")
        await self._insert_prepared(range(100, 110))
        return await self.connection.fetchval("SELECT sum(id) FROM jobs WHERE id BETWEEN 100 AND 109")

    async def batches(self):
        await self._insert_as_a_batch(range(200, 210))
        return await self.connection.fetchval("SELECT sum(id) FROM jobs WHERE id BETWEEN 200 AND 209")

    async def copies(self):
        await self._copy(range(1000, 2000))
        numbers = []

        async def read(data):
            numbers.extend(int(line) for line in data.split())

        query = "SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999"
        await self.connection.copy_from_query(query, output=read)
        return sum(numbers)

    async def scrolls(self):
        async with self.connection.transaction():
            cursor = self.connection.cursor("SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999", prefetch=70)
            return sum([row["id"] async for row in cursor])

    async def carries_large_values(self):
        await self.connection.execute("INSERT INTO jobs VALUES (2, $1)", steps.LARGE)
        return steps.whether_large(await self.connection.fetchval("SELECT payload FROM jobs WHERE id = 2"))

    async def listens(self):
        payload = asyncio.get_running_loop().create_future()
        await self.connection.add_listener("ticks", lambda *notification: payload.set_result(notification[-1]))
        await self.connection.execute("NOTIFY ticks, 'tick'")
        return await payload

    async def cancels(self):
        sleeping = asyncio.create_task(self.connection.execute("SELECT pg_sleep(600)"))
        steps.once_asleep_async(sleeping.cancel)
        try:
            await sleeping
        except asyncio.CancelledError:
            return await self.connection.fetchval("SELECT 'cancelled'")

    async def is_refused(self):
        steps.take_over(2)
        return await self._error("INSERT INTO jobs VALUES (3)")

    async def refusals(self):
        ways = (self._insert_prepared, self._insert_as_a_batch, self._copy)
        return " ".join([await self._sqlstate(way(range(300, 310))) for way in ways])

    async def aborts(self):
        try:
            async with self.connection.transaction():
                await self._error("INSERT INTO jobs VALUES (3)")
                await self.connection.execute("SELECT 'refused'")
        except asyncpg.InFailedSQLTransactionError:
            return await self.connection.fetchval("SELECT 'on'")

    async def goes_on(self):
        await self.connection.execute("SET lease.fence = 2")
        await self.connection.execute("INSERT INTO jobs VALUES (3, 'three')")
        return await self.connection.fetchval("SELECT payload FROM jobs WHERE id = 3")

    async def is_cut_off(self):
        await self.connection.execute("BEGIN")
        await self.connection.execute("INSERT INTO jobs VALUES (4)")
        steps.take_over(3)
        return await self._error("SELECT 'on'")

    async def is_interrupted(self):
        await self._connect(3)
        await self.connection.execute("BEGIN")
        await self.connection.execute("INSERT INTO jobs VALUES (4)")
        steps.once_asleep(lambda: steps.take_over(4))
        return await self._error("SELECT pg_sleep(600)")

    async def starts_again(self):
        await self._connect(4)
        await self.connection.execute("INSERT INTO jobs VALUES (4, 'four')")
        return await self.connection.fetchval("SELECT payload FROM jobs WHERE id = 4")

    async def _connect(self, token):
        self.connection = await asyncpg.connect(
            **steps.ADDRESS, database=steps.DATABASE, server_settings={"lease.fence": str(token)}
        )

    async def _insert_prepared(self, numbers):
        for number in numbers:
            await self.insert.fetch(number)

    async def _insert_as_a_batch(self, numbers):
        await self.connection.executemany("INSERT INTO jobs VALUES ($1)", [(number,) for number in numbers])

    async def _copy(self, numbers):
        await self.connection.copy_records_to_table("jobs", records=((number, None) for number in numbers))

    async def _sqlstate(self, insert):
        try:
            await insert
        except asyncpg.PostgresError as error:
            return error.sqlstate

    async def _error(self, sql):
        try:
            await self.connection.execute(sql)
        except asyncpg.PostgresError as error:
            severity = error.severity_en or error.severity
            return f"asyncpg.{type(error).__name__} {error.sqlstate} {severity} {error.detail}"


asyncio.run(steps.run_async(Asyncpg()))
