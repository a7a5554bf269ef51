"""The proxy's errors as classes, from the exceptions of any driver."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any, Iterator, Optional


class FenceError(Exception):
    """An error of the proxy, of the guard or of a lease. Its cause is the driver's exception."""

    def __init__(self, sqlstate: str, message: str, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint
        fields = dict(re.findall(r"(?:^|\s)(resource|presented|highest|outcome)=(\S+)", detail))
        self.resource: Optional[str] = fields.get("resource")
        self.presented = _number(fields.get("presented"))
        self.highest = _number(fields.get("highest"))
        # "rolled_back" or "unknown" if the session was cut off. Then it is closed.
        self.outcome: Optional[str] = fields.get("outcome")

    @property
    def is_retryable(self) -> bool:
        """True if the same statement may succeed later with the same token."""
        return "now in force" in self.hint


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

    @property
    def is_retryable(self) -> bool:
        return "Retrying will not help" not in self.hint


CLASSES = {
    "LF001": StaleToken,
    "LF002": MissingToken,
    "LF003": InvalidToken,
    "LF004": UnverifiableStatement,
    "LF005": UnissuedToken,
    "LF006": FenceUnavailable,
}


def sqlstate(error: Optional[BaseException]) -> Optional[str]:
    """The SQLSTATE of the exception of a driver (psycopg, psycopg2, asyncpg)."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def fence_error(error: Optional[BaseException]) -> Optional[FenceError]:
    """The fencing error in this exception, if any: in the driver's own, in SQLAlchemy's or Django's around it, or behind
    the error of the ROLLBACK after a session was cut off."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if isinstance(error, FenceError):
            return error
        code = sqlstate(error)
        if code in CLASSES:
            diagnostics: Any = getattr(error, "diag", None)
            message = getattr(diagnostics, "message_primary", None) or str(error)
            detail = getattr(diagnostics, "message_detail", None) or getattr(error, "detail", None)
            hint = getattr(diagnostics, "message_hint", None) or getattr(error, "hint", None)
            return CLASSES[code](code, message, detail or "", hint or "")
        error = getattr(error, "orig", None) or error.__cause__ or error.__context__
    return None


def is_cut_off(error: Optional[BaseException]) -> bool:
    """True if a newer token ended the session: the connection is closed."""
    found = fence_error(error)
    return found is not None and found.outcome is not None


def is_retryable(error: Optional[BaseException]) -> bool:
    """True if the work may succeed later with the same token: after a new connection, if this one is closed. After a lost
    connection, the last transaction may have been committed."""
    found = fence_error(error)
    if found is not None:
        return found.is_retryable
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        code = sqlstate(error)
        if code is not None:
            return code[:2] in ("08", "40", "53", "57") and code != "57014"
        error = getattr(error, "orig", None) or error.__cause__
    return False


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


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.isdigit() else None
