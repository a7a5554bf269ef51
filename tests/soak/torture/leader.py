"""A leader with psycopg, run by `fencegate lead`. It writes until it is killed."""

import os
import random
import time

import psycopg

doors = os.environ["TORTURE_DOORS"].split(",")
name = os.environ["TORTURE_NAME"]
token = int(os.environ["FENCE_TOKEN"])


def note_down(line):
    with open(os.environ["TORTURE_DIARY"], "a") as diary:
        print(line, file=diary)


def write(connection):
    note = f"{name}/{time.time_ns()}"
    try:
        with connection.transaction():
            connection.execute("INSERT INTO ticks (token, note) VALUES (%s, %s)", (token, note))
    except psycopg.Error as error:
        if error.sqlstate == "LF001" and error.diag.severity_nonlocalized == "ERROR":
            note_down(f"refused {note}")
        raise
    note_down(f"committed {note}")


while True:
    try:
        # PGOPTIONS has the token.
        with psycopg.connect(
            host="127.0.0.1", port=random.choice(doors), user="postgres", dbname="postgres",
            autocommit=True, connect_timeout=3, tcp_user_timeout=4000,
        ) as connection:
            for _ in range(random.randrange(5, 60)):
                write(connection)
                time.sleep(random.random() / 30)
    except psycopg.Error:
        time.sleep(0.05)
