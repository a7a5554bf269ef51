"""Django with persistent connections, and with its pool: the token is read for each transaction."""

import threading

import django
import psycopg
import pytest
from django.conf import settings
from servers import wait_until

from fencegate import MissingToken, StaleToken, fencing_errors

WRITE = "INSERT INTO jobs (run_by) VALUES ('django')"
READ = "SELECT current_setting('lease.fence') || ' ' || pg_backend_pid()"

token = None


@pytest.fixture(scope="module", autouse=True)
def django_settings(proxy):
    address = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": proxy.port, "NAME": "app", "USER": "app"}
    pooled = {**address, "OPTIONS": {"pool": {"min_size": 1, "max_size": 1}}}
    settings.configure(DATABASES={"default": {**address, "CONN_MAX_AGE": None}, "pooled": pooled})
    django.setup()
    from fencegate.django import fence_django

    fence_django(lambda: token)
    fence_django(lambda: token, using="pooled")
    yield
    from django.db import connections

    connections.close_all()
    if django.VERSION >= (5, 1):
        connections["pooled"].close_pool()


@pytest.fixture(params=["default", "pooled"] if django.VERSION >= (5, 1) else ["default"])
def database(request):
    from django.db import connections

    return connections[request.param]


def execute(database, query):
    with database.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0] if cursor.description else None


@pytest.mark.parametrize("is_atomic", [False, True])
def test_each_transaction_has_the_current_token(database, next_token, is_atomic):
    global token
    from django.db import transaction

    def run(*queries):
        if is_atomic:
            with transaction.atomic(using=database.alias):
                return [execute(database, query) for query in queries][-1]
        return [execute(database, query) for query in queries][-1]

    older, newer = next_token(), next_token()
    token = older
    shown, session = run(WRITE, READ).split()
    assert shown == str(older)
    token = newer
    assert run(WRITE, READ) == f"{newer} {session}"
    token = None
    assert run(READ) == f" {session}"
    with pytest.raises(MissingToken), fencing_errors():
        run(WRITE)
    token = older
    with pytest.raises(StaleToken) as stale, fencing_errors():
        run(WRITE)
    assert (stale.value.presented, stale.value.highest) == (older, newer)
    token = newer
    with pytest.raises(KeyError), transaction.atomic(using=database.alias):
        execute(database, WRITE)
        raise KeyError
    assert run(WRITE, READ) == f"{newer} {session}"


def test_a_transaction_keeps_its_token(database, next_token):
    global token
    from django.db import transaction

    first = token = next_token()
    with transaction.atomic(using=database.alias):
        with transaction.atomic(using=database.alias):
            execute(database, WRITE)
        token = next_token()
        assert execute(database, READ).split()[0] == str(first)
    assert execute(database, READ).split()[0] == str(token)


def test_the_token_of_a_transaction_ends_with_it(database, next_token):
    global token
    from django.db import transaction

    token = None
    assert execute(database, READ).startswith(" ")
    token = next_token()
    with transaction.atomic(using=database.alias):
        execute(database, WRITE)
    token = None
    assert execute(database, READ).startswith(" ")


def test_a_statement_that_was_cut_off_leaves_no_closed_connection(database, proxy, postgres, next_token):
    global token
    token, newest = next_token(), next_token()

    def take_over():
        slow = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        wait_until("the statement runs", lambda: postgres.sql(slow))
        with psycopg.connect(proxy.url, options=f"-c lease.fence={newest}") as other:
            other.execute(WRITE)

    thread = threading.Thread(target=take_over)
    thread.start()
    with pytest.raises(StaleToken) as stale, fencing_errors():
        execute(database, "INSERT INTO jobs (run_by) SELECT 'slow' FROM pg_sleep(20)")
    assert stale.value.outcome == "unknown"
    thread.join()
    token = newest
    execute(database, WRITE)


def test_a_connection_that_was_cut_off_is_discarded(database, proxy, next_token):
    global token
    from django.db import transaction

    token = next_token()
    with pytest.raises(StaleToken) as stale, fencing_errors(), transaction.atomic(using=database.alias):
        execute(database, WRITE)
        session = execute(database, READ).split()[1]
        newest = next_token()
        with psycopg.connect(proxy.url, options=f"-c lease.fence={newest}") as other:
            other.execute(WRITE)
        execute(database, READ)
    assert stale.value.outcome == "rolled_back"
    token = newest
    shown, other_session = execute(database, READ).split()
    assert shown == str(newest) and other_session != session
    execute(database, WRITE)


def test_other_threads_follow_too(database, next_token):
    global token
    from django.db import connections

    database.close()  # Back to the pool, which has one connection.
    token, found = next_token(), []

    def run():
        found.append(execute(connections[database.alias], READ).split()[0])
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [str(token)]


def test_a_received_token_counts_for_one_transaction(database, next_token):
    global token
    from fencegate.django import fenced

    token = None
    received = next_token()
    with fenced(received, using=database.alias):
        execute(database, WRITE)
        assert execute(database, READ).split()[0] == str(received)
    assert execute(database, READ).startswith(" ")
