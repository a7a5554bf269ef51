"""psycopg's pool through a promotion. Its threads write before, during and after it."""

import itertools
import logging
import os
import sys
import threading

import psycopg
from psycopg_pool import ConnectionPool

# The pool logs a warning for each connection that it discards.
logging.disable(logging.WARNING)

THREADS = 8
WRITES = 20

ports = os.environ["PORTS"]
hosts = ",".join([os.environ["PGHOST"]] * len(ports.split(",")))
conninfo = psycopg.conninfo.make_conninfo(host=hosts, port=ports, options="-c lease.fence=1")
pool = ConnectionPool(conninfo, min_size=THREADS, max_size=THREADS)
numbers = itertools.count(1)
lines = []
write_before = threading.Barrier(THREADS + 1)
promoted = threading.Event()


def write():
    number = next(numbers)
    try:
        with pool.connection() as connection:
            connection.execute("INSERT INTO entries (writer, token, number) VALUES (1, 1, %s)", (number,))
    except psycopg.Error as error:
        # The pool's own errors have no SQLSTATE, so use their names.
        name = "connection lost" if type(error) is psycopg.OperationalError else type(error).__name__
        code = error.sqlstate or name
        lines.append(f"error {code}: {error.diag.message_primary}" if code.startswith("LF") else f"error {code}")
        return False
    lines.append(f"committed {number}")
    return True


def work():
    for _ in range(WRITES):
        write()
    write_before.wait()
    while not promoted.is_set():
        write()
    written = 0
    while written < WRITES:
        written += write()


threads = [threading.Thread(target=work) for _ in range(THREADS)]
for thread in threads:
    thread.start()
write_before.wait()
print("ready", flush=True)
sys.stdin.readline()
promoted.set()
for thread in threads:
    thread.join()
print("\n".join(lines))
pool.close()
