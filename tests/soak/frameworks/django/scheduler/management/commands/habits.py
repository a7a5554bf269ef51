"""Uses both tables like typical projects. Prints `TABLE STEP: RESULT`, or the SQLSTATE of an error as the result."""

from datetime import datetime, timezone
from io import StringIO
from tempfile import NamedTemporaryFile

import psycopg
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.core.signals import request_finished, request_started
from django.db import DatabaseError, connection, transaction
from django.db.models import F

from scheduler.models import Job, Note


class Command(BaseCommand):
    def handle(self, **_):
        for model in [Note, Job]:
            for step in STEPS:
                self.run_step(step, model)

    def run_step(self, step, model):
        # Every step is a request.
        request_started.send(type(self))
        try:
            result = step(model)
        except DatabaseError as error:
            result = error.__cause__.sqlstate
        except psycopg.Error as error:  # COPY uses psycopg directly.
            result = error.sqlstate
        request_finished.send(type(self))
        print(f"{model._meta.db_table} {step.__name__}: {result}", flush=True)


def inserts_many(model):
    return len(model.objects.bulk_create(model(name=f"many {n}", count=n) for n in range(2000)))


def upserts(model):
    model.objects.bulk_create(
        [model(name=f"many {n}", count=-n) for n in range(10)],
        update_conflicts=True, unique_fields=["name"], update_fields=["count"],
    )
    made = model.objects.update_or_create(name="one", defaults={"count": 1})[1]
    again = model.objects.get_or_create(name="one")[1]
    return made, again, sum(model.objects.filter(count__lt=0).values_list("count", flat=True))


def nests_transactions(model):
    with transaction.atomic():
        model.objects.create(name="outer")
        try:
            with transaction.atomic():
                model.objects.create(name="inner")
                model.objects.create(name="outer")
        except DatabaseError as error:
            if error.__cause__.sqlstate != "23505":
                raise
        with transaction.atomic():
            model.objects.create(name="after")
    return names(model, "outer", "inner", "after")


def rolls_back(model):
    try:
        with transaction.atomic():
            model.objects.create(name="lost")
            raise LookupError
    except LookupError:
        return names(model, "lost")


def uses_savepoints_by_hand(model):
    with transaction.atomic():
        savepoint = transaction.savepoint()
        model.objects.create(name="taken back")
        transaction.savepoint_rollback(savepoint)
        savepoint = transaction.savepoint()
        model.objects.create(name="kept")
        transaction.savepoint_commit(savepoint)
    return names(model, "taken back", "kept")


def acts_on_commit(model):
    acted = []
    with transaction.atomic(durable=True):
        transaction.on_commit(lambda: acted.append("committed"))
        model.objects.create(name="on commit")
    return acted


def locks_rows(model):
    with transaction.atomic():
        model.objects.create(name="locked")
        row = model.objects.select_for_update(skip_locked=True).get(name="locked")
        row.count = 7
        row.save(update_fields=["count"])
    return model.objects.filter(count=7, pk=row.pk).count()


def updates(model):
    rows = list(model.objects.filter(name__startswith="many 1").order_by("id")[:20])
    for row in rows:
        row.count += 1
    return model.objects.bulk_update(rows, ["count"]), model.objects.filter(count__gt=500).update(count=F("count") + 1)


def streams(model):
    outside = sum(1 for _ in model.objects.order_by("id").iterator(chunk_size=500))
    with transaction.atomic():
        inside = sum(1 for _ in model.objects.order_by("id").iterator(chunk_size=500))
    return outside == inside == model.objects.count()


def writes_while_it_streams(model):
    with transaction.atomic():
        for row in model.objects.filter(name__startswith="many 29").iterator(chunk_size=100):
            model.objects.filter(pk=row.pk).update(count=9)
    return model.objects.filter(count=9).count()


def runs_raw_sql(model):
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '60s'")
        cursor.execute("SHOW statement_timeout")
        shown = cursor.fetchone()
        cursor.executemany(f"INSERT INTO {table} (name, count) VALUES (%s, %s)", [(f"raw {n}", n) for n in range(100)])
        cursor.execute(f"UPDATE {table} SET count = count + 1 WHERE name LIKE 'raw%%' RETURNING count")
        return shown, len(cursor.fetchall())


def copies(model):
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY {model._meta.db_table} (name, count) FROM STDIN") as copy:
            for n in range(1000):
                copy.write_row((f"copied {n}", n))
        with cursor.copy(f"COPY (SELECT name FROM {model._meta.db_table} WHERE name LIKE 'copied%') TO STDOUT") as copy:
            return sum(1 for _ in copy.rows())


def knows_its_time_zone(model):
    at = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
    model.objects.create(name="at noon", at=at)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT at::text FROM {model._meta.db_table} WHERE name = 'at noon'")
        local = cursor.fetchone()
    return local, model.objects.get(name="at noon").at == at


def checks_constraints(model):
    with transaction.atomic():
        model.objects.create(name="orphan", parent_id=-1)
        connection.check_constraints()


def turns_autocommit_off(model):
    transaction.set_autocommit(False)
    try:
        model.objects.create(name="by hand")
        transaction.commit()
        model.objects.create(name="not by hand")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    return names(model, "by hand", "not by hand")


def explains(model):
    return "Seq Scan" in model.objects.filter(count=3).explain(analyze=True)


def introspects(model):
    with connection.cursor() as cursor:
        inspect = connection.introspection
        return len(inspect.get_table_description(cursor, model._meta.db_table)), len(
            inspect.get_constraints(cursor, model._meta.db_table)
        )


def dumps_and_loads(model):
    with transaction.atomic():
        for n in range(20):
            model(name=f"few {n}").save()
    label = f"scheduler.{model.__name__}"
    dump = StringIO()
    call_command("dumpdata", label, stdout=dump)
    with NamedTemporaryFile("w", suffix=".json") as file:
        file.write(dump.getvalue())
        file.flush()
        call_command("loaddata", file.name, verbosity=0)
    return model.objects.count()


def deletes(model):
    parent = model.objects.create(name="parent")
    model.objects.create(name="child", parent=parent)
    return parent.delete()[0], names(model, "parent", "child")


def empties(model):
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {model._meta.db_table} RESTART IDENTITY")
    return model.objects.count()


def names(model, *some):
    return sorted(model.objects.filter(name__in=some).values_list("name", flat=True))


STEPS = [
    inserts_many, upserts, nests_transactions, rolls_back, uses_savepoints_by_hand, acts_on_commit, locks_rows, updates,
    streams, writes_while_it_streams, runs_raw_sql, copies, knows_its_time_zone, checks_constraints,
    turns_autocommit_off, explains, introspects, empties, dumps_and_loads, deletes,
]
