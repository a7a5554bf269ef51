"""Django's ORM with psycopg. Steps that Django does not support use psycopg through Django."""

import django
import psycopg
import steps
from django.conf import settings

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": steps.ADDRESS["host"],
            "PORT": steps.ADDRESS["port"],
            "USER": steps.ADDRESS["user"],
            "NAME": steps.DATABASE,
            "CONN_MAX_AGE": None,
            "OPTIONS": {"server_side_binding": True, "prepare_threshold": 0},
        }
    },
)
django.setup()

from django.db import DatabaseError, connection, models, transaction  # noqa: E402


class Job(models.Model):
    id = models.IntegerField(primary_key=True)
    payload = models.TextField(null=True)

    class Meta:
        app_label = "scheduler"
        db_table = "jobs"


class Django:
    def version(self):
        return django.__version__

    def token(self):
        self._connect(1)
        return self._value("SELECT current_setting('lease.fence')")

    def writes(self):
        Job.objects.create(id=1, payload="one")
        return Job.objects.get(id=1).payload

    def prepares(self):
        self._insert_prepared(range(100, 110))
        assert self._value("SELECT count(*) FROM pg_prepared_statements") > 0
        return self._sum(100, 109)

    def batches(self):
        self._insert_as_a_batch(range(200, 210))
        return self._sum(200, 209)

    def copies(self):
        self._copy(range(1000, 2000))
        query = "COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT"
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            return sum(int(number) for (number,) in copy.rows())

    def scrolls(self):
        jobs = Job.objects.filter(id__range=(1000, 1999))
        return sum(job.id for job in jobs.iterator(chunk_size=70))

    def carries_large_values(self):
        Job.objects.create(id=2, payload=steps.LARGE)
        return steps.whether_large(Job.objects.get(id=2).payload)

    def listens(self):
        with connection.cursor() as cursor:
            cursor.execute("LISTEN ticks")
        with steps.another_session() as session:
            session.execute("NOTIFY ticks, 'tick'")
        return next(connection.connection.notifies(timeout=60)).payload

    def cancels(self):
        steps.once_asleep(connection.connection.cancel_safe)
        try:
            self._value("SELECT pg_sleep(600)")
        except DatabaseError as error:
            assert error.__cause__.sqlstate == "57014"
            return self._value("SELECT 'cancelled'")

    def is_refused(self):
        steps.take_over(2)
        return self._error(lambda: Job.objects.create(id=3))

    def refusals(self):
        ways = (self._insert_prepared, self._insert_as_a_batch, self._copy)
        return " ".join(self._sqlstate(way, range(300, 310)) for way in ways)

    def aborts(self):
        try:
            with transaction.atomic():
                self._error(lambda: self._value("INSERT INTO jobs VALUES (3) RETURNING id"))
                self._value("SELECT 'refused'")
        except DatabaseError as error:
            assert error.__cause__.sqlstate == "25P02"
            return self._value("SELECT 'on'")

    def goes_on(self):
        with connection.cursor() as cursor:
            cursor.execute("SET lease.fence = 2")
        Job.objects.create(id=3, payload="three")
        return Job.objects.get(id=3).payload

    def is_cut_off(self):
        def hold_on():
            with transaction.atomic():
                Job.objects.create(id=4)
                steps.take_over(3)
                self._value("SELECT 'on'")

        return self._error(hold_on)

    def is_interrupted(self):
        def sleep():
            with transaction.atomic():
                Job.objects.create(id=4)
                steps.once_asleep(lambda: steps.take_over(4))
                self._value("SELECT pg_sleep(600)")

        self._connect(3)
        return self._error(sleep)

    def starts_again(self):
        self._connect(4)
        Job.objects.create(id=4, payload="four")
        return Job.objects.get(id=4).payload

    def _connect(self, token):
        connection.close()
        connection.settings_dict["OPTIONS"]["options"] = f"-c lease.fence={token}"

    def _insert_prepared(self, numbers):
        for number in numbers:
            Job.objects.create(id=number)

    def _insert_as_a_batch(self, numbers):
        Job.objects.bulk_create(Job(id=number) for number in numbers)

    def _copy(self, numbers):
        with connection.cursor() as cursor, cursor.copy("COPY jobs (id) FROM STDIN") as copy:
            for number in numbers:
                copy.write_row((number,))

    def _sqlstate(self, action, *arguments):
        try:
            action(*arguments)
        except DatabaseError as error:
            return error.__cause__.sqlstate
        except psycopg.Error as error:
            return error.sqlstate

    def _value(self, sql):
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]

    def _sum(self, first, last):
        return Job.objects.filter(id__range=(first, last)).aggregate(sum=models.Sum("id"))["sum"]

    def _error(self, action):
        try:
            action()
        except DatabaseError as error:
            return steps.shown(error, error.__cause__)


steps.run(Django())
