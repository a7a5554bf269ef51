"""Tests for the test runner, which creates and drops their databases."""

from django.db import IntegrityError, connection, transaction
from django.test import TestCase, TransactionTestCase, tag

from scheduler.models import Job, Note


class InOneTransaction(TestCase):
    @classmethod
    def setUpTestData(cls):
        for model in [Job, Note]:
            model.objects.bulk_create(model(name=f"set up {n}") for n in range(10))

    def test_starts_from_what_was_set_up(self):
        for model in [Job, Note]:
            model.objects.filter(name="set up 1").delete()
            self.assertEqual(model.objects.filter(name__startswith="set up").count(), 9)

    def test_starts_from_it_again(self):
        for model in [Job, Note]:
            self.assertEqual(model.objects.filter(name__startswith="set up").count(), 10)
            with self.assertRaises(IntegrityError), transaction.atomic():
                model.objects.create(name="set up 1")


class Committing(TransactionTestCase):
    def test_commits(self):
        for model in [Job, Note]:
            with transaction.atomic():
                model.objects.create(name="committed")

    def test_starts_anew(self):
        self.test_commits()


# Not with --keepdb, because a kept database has lost the rows of the migrations.
@tag("serialised")
class Restoring(TransactionTestCase):
    serialized_rollback = True

    def test_finds_what_the_migrations_wrote(self):
        for model in [Job, Note]:
            self.assertEqual([row.name for row in model.objects.all()], ["first"])
            model.objects.create(name="committed")

    def test_finds_it_again(self):
        self.test_finds_what_the_migrations_wrote()


class InAnotherProcess(TestCase):
    """A second class, so that `--parallel` has classes to distribute."""

    def test_uses_a_database_of_the_tests(self):
        Job.objects.create(name="elsewhere")
        self.assertIn("test_app", connection.settings_dict["NAME"])
