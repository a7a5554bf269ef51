"""Hooks for connection pools: each connection that is handed out has the current token, or none.

Must never let a connection keep the token of its previous user: while this process does not lead, the hooks set the empty
text, and writes to fenced resources fail with LF002.
"""

from __future__ import annotations

import re
from typing import Any, Awaitable, Callable, Optional, Union

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


def psycopg_check(source: Source) -> Callable[[Any], None]:
    """For `psycopg_pool.ConnectionPool(url, check=psycopg_check(lease))`. The pool replaces connections that fail."""

    def check(connection: Any) -> None:
        connection.execute(set_fence(source))
        connection.commit()

    return check


def psycopg_async_check(source: Source) -> Callable[[Any], Awaitable[None]]:
    """For `psycopg_pool.AsyncConnectionPool(url, check=psycopg_async_check(lease))`."""

    async def check(connection: Any) -> None:
        await connection.execute(set_fence(source))
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
        cursor = None
        try:
            cursor = connection.cursor()
            cursor.execute(set_fence(source))
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
