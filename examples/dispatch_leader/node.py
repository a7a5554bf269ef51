#!/usr/bin/python3
"""One node of a dispatch service. The leader gives each order to a courier; the others wait. Start your program from here."""

import argparse
import signal
import threading
from contextlib import closing

import psycopg2
from fencegate import CoordinatorUnavailable, EtcdElection, LeadershipLost, fence_error, run_as_leader

TTL = 5
# Time between two orders, in seconds.
PERIOD = 1


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--etcd", default="http://127.0.0.1:2379")
    parser.add_argument("--database", default="host=127.0.0.1 port=6432 user=app dbname=app")
    parser.add_argument("--stall-before", type=int, help="suspend before this order is assigned, until resumed")
    return parser.parse_args()


class Node:
    def __init__(self, options):
        self.options = options

    def say(self, text):
        print(self.options.name, text, flush=True)

    def run(self):
        election = EtcdElection(self.options.etcd, "/svc/dispatch/leader", ttl=TTL, holder=self.options.name)
        while True:
            try:
                run_as_leader(election, self.lead)
            except CoordinatorUnavailable as error:
                self.say(f"cannot reach etcd: {error}")
            except (LeadershipLost, psycopg2.Error) as error:
                if rejection := fence_error(error):
                    self.say(f"is rejected: {rejection.sqlstate}")
                self.say(f"stops: {error}".rstrip())

    def lead(self, election):
        self.say(f"leads under token {election.token}")
        options = f"-c lease.fence={election.token}"
        with closing(psycopg2.connect(self.options.database, options=options)) as database:
            database.autocommit = True
            while not election.lost.wait(PERIOD):
                self.dispatch(database.cursor())

    def dispatch(self, cursor):
        """Gives the first free order to a courier."""
        # FOR UPDATE raises the fence and shuts out every older leader before the node decides on the data that it reads.
        cursor.execute("SELECT id FROM orders WHERE courier IS NULL ORDER BY id LIMIT 1 FOR UPDATE")
        found = cursor.fetchone()
        if found is None:
            return
        [order] = found
        courier = f"{self.options.name}{order}"
        if order == self.options.stall_before:
            self.options.stall_before = None
            self.say(f"is suspended, about to give order {order} to courier {courier}")
            # Like a long garbage collection, this stops every thread before the next line.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        cursor.execute("UPDATE orders SET courier = %s, token = DEFAULT WHERE id = %s", (courier, order))
        self.say(f"gives order {order} to courier {courier}")


Node(arguments()).run()
