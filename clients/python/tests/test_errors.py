"""The proxy's errors as classes."""

import psycopg
import psycopg2
import pytest

import fencegate
from fencegate import (
    FenceUnavailable,
    InvalidToken,
    MissingToken,
    StaleToken,
    UnissuedToken,
    UnverifiableStatement,
    fence_error,
    fencing_errors,
    is_retryable,
)

WRITE = "INSERT INTO jobs (run_by) VALUES ('errors')"


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
def test_each_code_has_a_class(driver, proxy, next_token):
    older, newer = next_token(), next_token()
    connection = driver.connect(proxy.url)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute(f"SET lease.fence = {newer}")
    cursor.execute(WRITE)
    cases = [
        (f"SET lease.fence = {older}", WRITE, StaleToken),
        ("SET lease.fence = ''", WRITE, MissingToken),
        ("SELECT 1", "SET lease.fence = 'x'", InvalidToken),
        ("SELECT 1", f"DO $$ BEGIN {WRITE}; END $$", UnverifiableStatement),
        ("SET lease.fence = 999999", "UPDATE ticks SET run_by = 'errors'", UnissuedToken),
    ]
    for setting, statement, kind in cases:
        cursor.execute(setting)
        with pytest.raises(kind) as raised, fencing_errors():
            cursor.execute(statement)
        error = raised.value
        assert str(error) and error.hint and error.sqlstate.startswith("LF00"), kind
        assert isinstance(error.__cause__, driver.Error)
        assert not is_retryable(error) and not is_retryable(error.__cause__)
        if kind is StaleToken:
            assert (error.resource, error.presented, error.highest, error.outcome) == ("jobs", older, newer, None)
    connection.close()


class DriverError(Exception):
    def __init__(self, sqlstate, hint=""):
        super().__init__("no")
        self.sqlstate, self.hint = sqlstate, hint


def test_which_errors_are_retryable():
    assert isinstance(fence_error(DriverError("LF006")), FenceUnavailable)
    for code in ("LF006", "40001", "40P01", "53300", "57P03"):
        assert is_retryable(DriverError(code)), code
    # After 57P01 and lost connections, a COMMIT may have taken effect.
    for code in ("LF001", "LF002", "LF003", "LF004", "LF005", "57P01", "08006", "40003", "57014", "42501", "23505"):
        assert not is_retryable(DriverError(code)), code
    assert is_retryable(DriverError("LF004", "The token is now in force. Nothing was written: roll back, and retry."))
    assert not is_retryable(DriverError("LF006", "Retrying will not help. Run the GRANT as a superuser."))
    assert is_retryable(fencegate.CoordinatorUnavailable()) and not is_retryable(fencegate.CoordinatorError())
    assert not is_retryable(None) and not is_retryable(KeyError())
    lost = fencegate.LeadershipLost()
    lost.__cause__ = DriverError("40001")
    assert not is_retryable(lost)


def test_other_errors_pass_unchanged(proxy):
    with psycopg.connect(proxy.url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero), fencing_errors():
            connection.execute("SELECT 1 / 0")


def test_the_error_behind_another_is_found():
    outer, inner = DriverError("08003"), DriverError("LF001")
    outer.__context__, inner.__context__ = inner, outer
    assert isinstance(fence_error(outer), StaleToken)
    unrelated = KeyError()
    unrelated.__context__ = inner
    assert fencegate.fence_error(unrelated) is None
