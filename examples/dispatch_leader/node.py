#!/usr/bin/python3
"""One node of a dispatch service. The leader gives each order to a courier; all others watch the leader's key.

The election is a single conditional write to etcd, under a lease. Nothing in this file knows of fencegate but the
option of the connection that carries the token.
"""

import argparse
import signal
import threading
from contextlib import closing
from urllib.parse import urlparse

import etcd3
import psycopg2

KEY = "/svc/dispatch/leader"
TTL = 5
# Between two orders, in seconds.
PERIOD = 1


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--etcd", default="http://127.0.0.1:2379")
    parser.add_argument("--database", default="host=127.0.0.1 port=6432 user=app dbname=app")
    parser.add_argument("--stall-before", type=int, help="stand still before this order is given away, until woken")
    return parser.parse_args()


class Node:
    def __init__(self, options):
        self.options = options
        etcd = urlparse(options.etcd)
        self.etcd = etcd3.client(host=etcd.hostname, port=etcd.port, timeout=2)

    def say(self, text):
        print(self.options.name, text, flush=True)

    def run(self):
        while True:
            try:
                lease, token, revision = self.campaign()
                if token:
                    self.lead(lease, token)
                else:
                    self.follow(revision)
            except etcd3.exceptions.Etcd3Exception as error:
                self.say(f"does not reach etcd: {error}")
                threading.Event().wait(PERIOD)

    def campaign(self):
        """Puts the key if it is absent: the compare-and-swap that is the election."""
        lease = self.etcd.lease(TTL)
        won, answers = self.etcd.transaction(
            compare=[self.etcd.transactions.create(KEY) == 0],
            success=[self.etcd.transactions.put(KEY, self.options.name, lease)],
            failure=[self.etcd.transactions.get(KEY)],
        )
        if won:
            # The key's create_revision, of this very answer. Who asks for it later may get the next leader's.
            return lease, answers[0].response_put.header.revision, None
        lease.revoke()
        [(_, held)] = answers[0]
        return None, None, held.response_header.revision

    def follow(self, revision):
        """Waits until the key is gone; from the revision at which it was held, so that nothing is missed."""
        events, cancel = self.etcd.watch(KEY, start_revision=revision + 1)
        for event in events:
            if isinstance(event, etcd3.events.DeleteEvent):
                break
        cancel()

    def lead(self, lease, token):
        self.say(f"leads under token {token}")
        lost = threading.Event()
        threading.Thread(target=self.renew, args=(lease, lost), daemon=True).start()
        options = f"-c lease.fence={token}"
        try:
            with closing(psycopg2.connect(self.options.database, options=options)) as database:
                database.autocommit = True
                while not lost.wait(PERIOD):
                    self.dispatch(database.cursor())
        except psycopg2.Error as error:
            self.say(f"is rejected: {error.pgcode}" if error.pgcode else f"has lost the database: {error}")
        finally:
            lost.set()

    def renew(self, lease, lost):
        while not lost.wait(TTL / 2):
            try:
                # A lease that has ended is no error: its time to live is 0.
                if lease.refresh()[0].TTL == 0:
                    self.say("has lost its lease")
                    lost.set()
            except etcd3.exceptions.Etcd3Exception as error:
                self.say(f"cannot renew its lease, and stops: {error}")
                lost.set()

    def dispatch(self, cursor):
        """Gives the first free order to a courier of this node's choice."""
        # FOR UPDATE raises the fence, and shuts every older leader out, before we decide on what we read.
        cursor.execute("SELECT id FROM orders WHERE courier IS NULL ORDER BY id LIMIT 1 FOR UPDATE")
        found = cursor.fetchone()
        if found is None:
            return
        [order] = found
        courier = f"{self.options.name}{order}"
        if order == self.options.stall_before:
            self.options.stall_before = None
            self.say(f"stands still, about to give order {order} to courier {courier}")
            # As a long garbage collection does: every thread stops, before the next line.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        cursor.execute("UPDATE orders SET courier = %s, token = DEFAULT WHERE id = %s", (courier, order))
        self.say(f"gives order {order} to courier {courier}")


Node(arguments()).run()
