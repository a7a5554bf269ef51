"""psycopg's pool."""

import psycopg
import steps
from pool import current_token, run, take
from psycopg_pool import ConnectionPool, __version__

conninfo = psycopg.conninfo.make_conninfo(**steps.ADDRESS, dbname=steps.DATABASE)
sizes = {"min_size": 1, "max_size": 1}


def present_token(connection):
    connection.execute(f"SET lease.fence = '{current_token()}'")
    connection.commit()


pool = ConnectionPool(conninfo, **sizes, check=present_token)


def value(cursor):
    return cursor.fetchone()[0] if cursor.description else None


def visit(actions):
    try:
        with pool.connection() as connection:
            return take(actions, lambda sql: value(connection.execute(sql)))
    except psycopg.Error as error:
        return error.sqlstate


steps.report("version", __version__)
run(visit)
pool.close()
