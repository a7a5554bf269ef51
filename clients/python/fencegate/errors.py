"""The proxy's errors as classes, from the exceptions of any driver."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any, Iterator, Optional

from .election import CoordinatorUnavailable, NotLeader


class FenceError(Exception):
    """An error of the proxy, of the guard or of a lease. Its cause is the driver's exception."""

    def __init__(self, sqlstate: str, message: str, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint
        fields = dict(re.findall(r"(?:^|\s)(resource|presented|highest|outcome)=(\S+)", detail))
        self.resource: Optional[str] = fields.get("resource")
        self.presented, self.highest = (
            int(text) if (text := fields.get(name, "")).isdigit() else None for name in ("presented", "highest")
        )
        # "rolled_back" or "unknown" if the session was cut off. Then it is closed.
        self.outcome: Optional[str] = fields.get("outcome")


class StaleToken(FenceError):
    """LF001: a newer leader has written. Stop this work, and campaign again."""


class MissingToken(FenceError):
    """LF002: the session has no token for a fenced resource."""


class InvalidToken(FenceError):
    """LF003: lease.fence is not a token, or the transaction has written under another one."""


class UnverifiableStatement(FenceError):
    """LF004: the proxy cannot determine what the statement writes."""


class UnissuedToken(FenceError):
    """LF005: the token is not the current leader's. Stop this work, and campaign again."""


class FenceUnavailable(FenceError):
    """LF006: the proxy cannot prove which token is the highest. Nothing was written."""


CLASSES = {
    "LF001": StaleToken,
    "LF002": MissingToken,
    "LF003": InvalidToken,
    "LF004": UnverifiableStatement,
    "LF005": UnissuedToken,
    "LF006": FenceUnavailable,
}

# Serialization failure, deadlock, too many connections, cannot connect now.
RETRYABLE = ("40001", "40P01", "53300", "57P03")


def sqlstate(error: Optional[BaseException]) -> Optional[str]:
    """The SQLSTATE of the exception of a driver (psycopg, psycopg2, asyncpg)."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _all(error: Optional[BaseException]) -> list[BaseException]:
    """The exception, SQLAlchemy's `orig`, and all causes and contexts."""
    found: list[BaseException] = []
    following = [error]
    while following:
        error = following.pop(0)
        if error is not None and error not in found:
            found.append(error)
            following += [getattr(error, "orig", None), error.__cause__]
            # Another program's exception that was raised while it handled an LF001 is not an LF001.
            following += [error.__context__] if sqlstate(error) or hasattr(error, "orig") else []
    return found


def fence_error(error: Optional[BaseException]) -> Optional[FenceError]:
    """The fencing error in this exception, if any: in the driver's own, in SQLAlchemy's or Django's around it, or behind
    the error of the ROLLBACK after a session was cut off."""
    result: Optional[FenceError] = None
    for one in _all(error):
        if isinstance(one, FenceError):
            return one
        code = sqlstate(one)
        if code in CLASSES and (result is None or not result.detail):
            diagnostics: Any = getattr(one, "diag", None)
            message = getattr(diagnostics, "message_primary", None) or str(one).split("\n")[0]
            detail = getattr(diagnostics, "message_detail", None) or getattr(one, "detail", None)
            hint = getattr(diagnostics, "message_hint", None) or getattr(one, "hint", None)
            result = CLASSES[code](code, message, detail or "", hint or "")
    return result


def is_cut_off(error: Optional[BaseException]) -> bool:
    """True if a newer token ended the session: the connection is closed."""
    found = fence_error(error)
    return found is not None and found.outcome is not None


def is_retryable(error: Optional[BaseException]) -> bool:
    """True if nothing was written, and the same transaction may succeed with the same token; of a campaign, if it may
    succeed. False for lost connections: a COMMIT may have taken effect."""
    if isinstance(error, NotLeader):
        return False
    found = fence_error(error)
    if isinstance(found, FenceUnavailable):
        return "Retrying will not help" not in found.hint
    if found is not None:
        return isinstance(found, UnverifiableStatement) and "now in force" in found.hint
    if isinstance(error, CoordinatorUnavailable):
        return True
    codes = [code for code in map(sqlstate, _all(error)) if code is not None]
    return bool(codes) and codes[0] in RETRYABLE


@contextmanager
def fencing_errors() -> Iterator[None]:
    """Raises fencing errors of any driver as FenceError: `with fencing_errors(): ...`, then `except StaleToken`."""
    try:
        yield
    except FenceError:
        raise
    except Exception as error:
        found = fence_error(error)
        if found is None:
            raise
        raise found from error
