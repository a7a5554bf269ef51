"""Hooks for connection pools: each connection that is handed out has the current token, or none.

Must never let a connection keep the token of its previous user: while this process does not lead, the hooks set the empty
text, and writes to fenced resources fail with LF002. A connection that has sent another token is replaced where the pool
permits it, because the proxy may end a session that the earlier token admitted.
"""

from __future__ import annotations

import re
from typing import Any, Awaitable, Callable, MutableMapping, Optional, Union
from weakref import WeakKeyDictionary

from .election import Election, NotLeader
from .errors import is_cut_off

Token = Union[int, str, None]
Source = Union[Election, Callable[[], Token]]
"""An election, or a function that returns a token, a list such as `scheduler=47, billing=7`, or None."""


def set_fence(source: Source, scope: str = "") -> str:
    """The SET statement for the current token. Its text shows the value: the proxy need not read it from the server."""
    token: Optional[Token]
    try:
        token = source.token if isinstance(source, Election) else source()
    except NotLeader:
        token = None
    text = "" if token is None else str(token)
    if not re.fullmatch(r"[A-Za-z0-9_./:%=, -]*", text):
        raise ValueError(f"not a fencing token: {text!r}")
    return f"SET {scope}lease.fence = '{text}'"


def has_sent_another(sent: MutableMapping[Any, str], key: Any, statement: str) -> bool:
    """True if the connection has sent another token before. Records the first token."""
    return not statement.endswith("''") and sent.setdefault(key, statement) != statement


def psycopg_check(source: Source) -> Callable[[Any], None]:
    """For `psycopg_pool.ConnectionPool(url, check=psycopg_check(lease))`. The pool replaces connections that fail."""
    sent: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def check(connection: Any) -> None:
        statement = set_fence(source)
        if has_sent_another(sent, connection, statement):
            connection.pgconn.finish()  # So the next statement fails.
            # The pool pauses after each failed check: replace the other connections at once (psycopg_pool 3.3).
            getattr(getattr(connection, "_pool", None), "drain", int)()
        connection.execute(statement)
        connection.commit()

    return check


def psycopg_async_check(source: Source) -> Callable[[Any], Awaitable[None]]:
    """For `psycopg_pool.AsyncConnectionPool(url, check=psycopg_async_check(lease))`."""
    sent: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    async def check(connection: Any) -> None:
        statement = set_fence(source)
        if has_sent_another(sent, connection, statement):
            connection.pgconn.finish()
            if hasattr(getattr(connection, "_pool", None), "drain"):
                await connection._pool.drain()
        await connection.execute(statement)
        await connection.commit()

    return check


def asyncpg_setup(source: Source) -> Callable[[Any], Awaitable[None]]:
    """For `asyncpg.create_pool(url, setup=asyncpg_setup(lease))`."""

    async def setup(connection: Any) -> None:
        await connection.execute(set_fence(source))

    return setup


def fence_engine(engine: Any, source: Source) -> None:
    """For an Engine or AsyncEngine of SQLAlchemy, with any pool. Replaces closed connections at checkout, and invalidates
    those that a newer token has cut off."""
    from sqlalchemy import event, exc

    engine = getattr(engine, "sync_engine", engine)

    def present(connection: Any, record: Any, proxy: Any) -> None:
        cursor, statement = None, set_fence(source)
        if has_sent_another(record.info, "fencegate", statement):
            raise exc.DisconnectionError("the connection has sent an earlier token")
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            cursor.close()
            connection.commit()
        except engine.dialect.loaded_dbapi.Error as error:
            if engine.dialect.is_disconnect(error, connection, cursor):
                raise exc.DisconnectionError from error  # The pool tries another connection.
            raise

    def discard(context: Any) -> None:
        if is_cut_off(context.original_exception):
            context.is_disconnect = True

    event.listen(engine, "checkout", present)
    event.listen(engine, "handle_error", discard)
