"""Django: the current token in each transaction, whatever CONN_MAX_AGE and pool.

Call `fence_django(lease)` in `AppConfig.ready()` or in the command that leads. The token is read for each transaction,
not at import.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.signals import connection_created

from .errors import is_cut_off
from .pools import Source, Token, set_fence

IDLE = 0  # libpq: no transaction is open.


def fence_django(source: Source, using: str = DEFAULT_DB_ALIAS) -> None:
    """Writes of all threads to this database present the current token, from the next statement outside a transaction."""
    presented: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # Only statements outside transactions set it.

    def present(execute: Any, sql: Any, parameters: Any, many: Any, context: Any) -> Any:
        connection = context["connection"]
        driver = connection.connection
        try:
            if driver.info.transaction_status == IDLE:
                with connection.wrap_database_errors, driver.cursor() as cursor:
                    if not connection.get_autocommit():
                        # The driver opens the transaction, and the setting ends with it.
                        cursor.execute(set_fence(source, "LOCAL "))
                    elif presented.get(driver) != (statement := set_fence(source)):
                        cursor.execute(statement)
                        presented[driver] = statement
            return execute(sql, parameters, many, context)
        except Exception as error:
            if is_cut_off(error):
                # Django opens a new connection for the next statement after the transaction.
                connection.close()
            raise

    def install(connection: Any, **_: Any) -> None:
        if connection.alias == using and present not in connection.execute_wrappers:
            connection.execute_wrappers.append(present)

    for connection in connections.all(initialized_only=True):
        install(connection)
    connection_created.connect(install, weak=False)


@contextmanager
def fenced(token: Optional[Token], using: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """A transaction that writes with this token, for example one that a task has received."""
    with transaction.atomic(using=using, durable=True):
        with connections[using].cursor() as cursor:
            cursor.execute(set_fence(lambda: token, "LOCAL "))
        yield
