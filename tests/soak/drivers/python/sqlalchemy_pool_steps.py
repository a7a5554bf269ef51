"""SQLAlchemy's QueuePool, over psycopg."""

import sqlalchemy
import steps
from pool import current_token, run, take
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

address = {"host": steps.ADDRESS["host"], "port": steps.ADDRESS["port"], "username": steps.ADDRESS["user"]}
url = sqlalchemy.URL.create("postgresql+psycopg", **address, database=steps.DATABASE)

engine = create_engine(url, pool_size=1, max_overflow=0)


@event.listens_for(engine, "checkout")
def present_token(connection, record, proxy):
    with connection.cursor() as cursor:
        cursor.execute(f"SET lease.fence = '{current_token()}'")
    connection.commit()


@event.listens_for(engine, "handle_error")
def give_up(context):
    error = context.original_exception
    if getattr(error, "sqlstate", None) == "LF001" and "outcome=" in str(error):
        context.is_disconnect = True


def value(result):
    return result.scalar() if result.returns_rows else None


def visit(actions):
    try:
        with engine.begin() as connection:
            return take(actions, lambda sql: value(connection.execute(text(sql))))
    except DBAPIError as error:
        return error.orig.sqlstate


steps.report("version", sqlalchemy.__version__)
run(visit)
