"""Writes with `fencegate.django.fenced`. Prints the token after the transaction, and the SQLSTATE of an older leader."""

import sys

import django
from django.conf import settings

database = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": sys.argv[1], "NAME": "app"}
settings.configure(DATABASES={"default": database | {"USER": "app", "PASSWORD": "change-me", "CONN_MAX_AGE": None}})
django.setup()

from django.db import DatabaseError, connection  # noqa: E402
from fencegate.django import fenced  # noqa: E402


def write(token):
    with fenced(token), connection.cursor() as cursor:
        cursor.execute("UPDATE ticks SET run_by = 'django' WHERE tick = '12:00'")


write(7)
with connection.cursor() as cursor:
    cursor.execute("SELECT quote_literal(current_setting('lease.fence'))")
    print("afterwards", cursor.fetchone()[0])
try:
    write(6)
except DatabaseError as error:
    print("older", error.__cause__.sqlstate)
