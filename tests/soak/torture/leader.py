"""A leader with psycopg, run by `fencegate lead`. It writes until it is killed."""

import json
import os
import random
import time

import psycopg

doors = os.environ["TORTURE_DOORS"].split(",")
name = os.environ["TORTURE_NAME"]
token = int(os.environ["FENCE_TOKEN"])


def write(connection):
    invoke = time.time_ns()
    note = f"{name}/{invoke}"

    def note_down(outcome):
        entry = {"client": name, "token": token, "value": note, "invoke": invoke, "return": time.time_ns(), "outcome": outcome}
        with open(os.environ["TORTURE_DIARY"], "a") as diary:
            print(json.dumps(entry), file=diary)

    try:
        with connection.transaction():
            connection.execute("INSERT INTO ticks (token, note) VALUES (%s, %s)", (token, note))
    except psycopg.Error as error:
        if error.sqlstate == "LF001" and error.diag.severity_nonlocalized == "ERROR":
            note_down("refused")
        raise
    note_down("ok")


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
