"""A newer leader takes over during a transaction. Prints the error, and the result of the next request."""

import os

import psycopg
from django.core.management.base import BaseCommand
from django.core.signals import request_finished, request_started
from django.db import DatabaseError, connection, transaction


class Command(BaseCommand):
    def handle(self, **_):
        request_started.send(type(self))
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("INSERT INTO jobs VALUES ('old')")
                take_over()
                cursor.execute("SELECT 'on'")
        except DatabaseError as error:
            print(type(error).__name__, error.__cause__.sqlstate)
        request_finished.send(type(self))
        request_started.send(type(self))
        with connection.cursor() as cursor:
            cursor.execute("SELECT 'again'")
            print(*cursor.fetchone())
        request_finished.send(type(self))


def take_over():
    newer = int(os.environ["FRAMEWORK_TOKEN"]) + 1
    options = f"-c lease.fence={newer}"
    with psycopg.connect(dbname="app", user="postgres", options=options) as leader:
        leader.execute("DELETE FROM jobs")
