"""Two sessions of one driver, told by lines on standard input what to do; every answer is one line."""

import asyncio
import sys

DRIVER, PORT = sys.argv[1], sys.argv[2]
SETTINGS = dict(host="127.0.0.1", port=PORT, user="postgres")


class Psycopg:
    def __init__(self, token):
        import psycopg

        self.errors = psycopg.Error
        self.connection = psycopg.connect(
            **SETTINGS, dbname="postgres", options=f"-c lease.fence={token}", autocommit=True
        )

    def run(self, sql):
        cursor = self.connection.execute(sql, prepare=True)
        return cursor.fetchone()[0] if cursor.description else cursor.statusmessage

    def basics(self):
        # Binary parameters, a prepared statement that is run often, COPY both ways, a pipeline.
        for number in range(10):
            self.connection.execute("INSERT INTO jobs VALUES (%b)", (number,), prepare=True)
        cursor = self.connection.cursor()
        with cursor.copy("COPY jobs FROM STDIN") as copy:
            for number in range(10, 20):
                copy.write_row((number,))
        with cursor.copy("COPY jobs TO STDOUT") as copy:
            assert len(list(copy.rows())) == 20
        with self.connection.pipeline(), self.connection.transaction():
            for number in range(20, 30):
                self.connection.execute("INSERT INTO jobs VALUES (%s)", (number,))
        return self.run("SELECT count(*) FROM jobs")

    def code(self, error):
        return f"{error.sqlstate} {error.diag.severity_nonlocalized} {error.diag.message_detail}"


class Asyncpg:
    def __init__(self, token):
        import asyncpg

        # The second one comes when the connection is known to be gone before anything is sent.
        self.errors = (asyncpg.PostgresError, asyncpg.InterfaceError)
        self.loop = asyncio.new_event_loop()
        settings = {"lease.fence": str(token)}
        connecting = asyncpg.connect(**SETTINGS, database="postgres", server_settings=settings)
        self.connection = self.loop.run_until_complete(connecting)

    def run(self, sql):
        if sql.startswith("SELECT"):
            return self.loop.run_until_complete(self.connection.fetchval(sql))
        return self.loop.run_until_complete(self.connection.execute(sql))

    def basics(self):
        return self.loop.run_until_complete(self._basics())

    async def _basics(self):
        insert = await self.connection.prepare("INSERT INTO jobs VALUES ($1)")
        for number in range(10):
            await insert.fetch(number)
        await self.connection.copy_records_to_table("jobs", records=[(number,) for number in range(10, 20)])
        async with self.connection.transaction():
            await self.connection.executemany("INSERT INTO jobs VALUES ($1)", [(n,) for n in range(20, 30)])
            rows = [row async for row in self.connection.cursor("SELECT n FROM jobs", prefetch=7)]
        return len(rows)

    def code(self, error):
        if getattr(error, "sqlstate", "08003") == "08003":
            return "08003"
        return f"{error.sqlstate} {error.severity_en or error.severity} {error.detail}"


def main():
    session = None
    for line in sys.stdin:
        verb, _, rest = line.strip().partition(" ")
        try:
            if verb == "connect":
                session = {"psycopg": Psycopg, "asyncpg": Asyncpg}[DRIVER](rest)
                answer = "connected"
            elif verb == "basics":
                answer = session.basics()
            else:
                answer = session.run(rest)
        except session.errors as error:
            answer = session.code(error)
        print(answer, flush=True)


main()
