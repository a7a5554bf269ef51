"""Leases in PostgreSQL: an election on `fencegate.acquire`, `renew` and `release`."""

from __future__ import annotations

import asyncio
import re
import select
import threading
from typing import Any, Callable, Sequence, Union

from .election import PAUSE, CoordinatorError, Election, Gone, Term, ask, now
from .errors import sqlstate

CONNECT = 2  # Seconds to connect to one host.
# They override the role's defaults.
SETTINGS = "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off"
TRANSIENT = ("08", "25", "40", "53", "55", "57", "58", "XX")  # Classes of SQLSTATEs after which a retry may succeed.


class Lease(Election):
    """An election in a PostgreSQL database that `fencegate init` has prepared. The URL may name several hosts:
    `postgres://app@a,b/app`. In place of a URL, a function may return a new DB-API connection to the primary."""

    def __init__(self, connect: Union[str, Callable[[], Any]], name: str, *arguments: Any, **options: Any) -> None:
        super().__init__(name, *arguments, **options)
        self._connect = connect if callable(connect) else lambda: open_connection(connect)
        self._idle: list[Any] = []  # The connection that no query uses: one at most.

    def _campaign(self, term: Term) -> float:
        parameters = (self.name, term.identity, self.ttl)
        query = "SELECT token FROM fencegate.acquire(%s, %s, make_interval(secs => %s))"
        rows, sent = self._ask(query, parameters, self.ttl)
        if rows:
            term.token, term.deadline = int(rows[0][0]), sent + self.ttl
            return 0
        query = "SELECT extract(epoch FROM expires - clock_timestamp())::float8 FROM fencegate.leader(%s)"
        rows, _ = self._ask(query, (self.name,), self.ttl)
        return max(0.01, rows[0][0] + 0.005) if rows else 0.1

    def _pause(self, seconds: float, stop: threading.Event) -> None:
        end = now() + seconds
        try:
            # A notification makes the socket readable. At most one check in each PAUSE: all elections share the channel.
            while not stop.wait(min(PAUSE, max(0.0, end - now()))) and now() < end:
                if select.select(self._idle, [], [], 0)[0]:
                    return
        except Exception:  # A connection without a socket, as of asyncpg.
            stop.wait(max(0.0, end - now()))

    def _renew(self, term: Term, limit: float) -> float:
        query = "SELECT fencegate.renew(%s, %s, make_interval(secs => %s))"
        return self._ask(query, (self.name, term.token, self.ttl), limit)[1]

    def _leave(self, term: Term, limit: float) -> None:
        # By the holder's name: the answer that had the token may be lost.
        query = "SELECT fencegate.release(%s, token) FROM fencegate.leader(%s) WHERE holder = %s"
        try:
            self._ask(query, (self.name, self.name, term.identity), limit)
        finally:
            while self._idle:
                close(self._idle.pop())

    def _ask(self, query: str, parameters: Sequence[Any], limit: float) -> tuple[list[Any], float]:
        """The rows, and when the answered query was sent."""

        def call(attempt: int) -> tuple[list[Any], float]:
            # A query that is silent keeps its connection, so the next attempt opens another.
            connection = None
            try:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    connection = self._connect()
                    execute(connection, f"{SETTINGS}; LISTEN fencegate_lease")
                sent = now()
                rows = execute(connection, query, parameters)
            except Exception as error:
                close(connection)
                code = sqlstate(error)
                if code == "LF001":
                    raise Gone from error
                if code is not None and not code.startswith(TRANSIENT):
                    raise CoordinatorError(str(error).strip()) from error
                raise
            if self._idle:
                close(connection)
            else:
                self._idle.append(connection)
            return rows, sent

        return ask(call, limit, self._attempt)


def open_connection(url: str) -> Any:
    """A connection of the installed driver."""
    options: dict[str, Any] = {"connect_timeout": CONNECT, "target_session_attrs": "read-write"}
    try:
        import psycopg

        return psycopg.connect(url, autocommit=True, **options)
    except ImportError:
        pass
    try:
        import psycopg2

        return psycopg2.connect(url, **options)
    except ImportError:
        return Asyncpg(url)


def execute(connection: Any, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
    if isinstance(connection, Asyncpg):
        return connection.execute(query, parameters)
    cursor = connection.cursor()
    try:
        cursor.execute(query, parameters or None)
        rows = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        return rows
    finally:
        cursor.close()


def close(connection: Any) -> None:
    try:
        if connection is not None:
            connection.close()
    except Exception:
        pass


class Asyncpg:
    """A connection of asyncpg with a loop of its own, which runs only while a thread waits for an answer."""

    def __init__(self, url: str) -> None:
        import asyncpg

        self._loop = asyncio.new_event_loop()
        try:
            connecting = asyncpg.connect(url, timeout=CONNECT, target_session_attrs="read-write")
            self._connection = self._loop.run_until_complete(connecting)
        except BaseException:
            self._loop.close()
            raise

    def execute(self, query: str, parameters: Sequence[Any]) -> list[Any]:
        if not parameters:
            self._loop.run_until_complete(self._connection.execute(query))
            return []
        numbers = iter(range(1, len(parameters) + 1))
        query = re.sub("%s", lambda _: f"${next(numbers)}", query)
        return list(self._loop.run_until_complete(self._connection.fetch(query, *parameters)))

    def close(self) -> None:
        self._connection.terminate()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
