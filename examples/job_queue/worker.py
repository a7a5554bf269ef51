#!/usr/bin/python3
"""A worker of the job queue: takes a job, keeps its lease alive, does it, and says so. Start your own from here.

It writes to PostgreSQL under the token of the job's lease. Must never take itself for the holder because it was once.

Usage: worker.py NAME SERVICE DATABASE [BARRIER]   (it stops itself at that barrier, as a pause would)
"""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone

import psycopg


class Away(Exception):
    """The service or the database does not answer: nobody knows what came of it. Try again."""


class Stale(Exception):
    """Another may have the job by now: discard the work."""


def call(service, method, path, **body):
    """Status and answer."""
    request = urllib.request.Request(service + path, json.dumps(body).encode(), method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=5)
    except urllib.error.HTTPError as error:
        answer = error
    except OSError as error:
        raise Away(str(error)) from error
    with answer:
        return answer.status, json.loads(answer.read() or "null")


class Worker:
    def __init__(self, name, service, database, barrier=None):
        self.name, self.service, self.database, self.barrier = name, service, database, barrier

    def event(self, event, job, **fields):
        """A line in the form of the proxy's log."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        job = {"worker": self.name, "resource": f"job/{job['id']}", "token": job["token"]}
        print(json.dumps({"timestamp": now, "event": event} | job | fields), flush=True)

    def reach(self, barrier, job):
        if barrier == self.barrier:
            self.event("stopped", job, at=barrier)
            os.kill(os.getpid(), signal.SIGSTOP)

    def report(self, job, what, **fields):
        path = f"/jobs/{job['id']}/{what}"
        status, answer = call(self.service, "PUT", path, worker=self.name, token=job["token"], **fields)
        if status in (200, 409):
            raise Stale(answer["message"])
        if status != 202:
            raise Away(f"{status} for {path}")

    def heartbeat(self, job, done):
        """Until the job is done, or not ours any more: the fence stops what goes on all the same."""
        try:
            while not done.wait(job["heartbeat_every"]):
                with contextlib.suppress(Away):
                    self.report(job, "heartbeat")
        except Stale:
            pass

    def apply(self, job):
        """All that the job writes, in one transaction: one entry, whoever has tried before."""
        resource = f"job/{job['id']}"
        with psycopg.connect(self.database, options=f"-c lease.fence={resource}={job['token']}") as db:
            # A lock raises the fence: what is read from here on, no older holder can change.
            done = db.execute("SELECT 1 FROM ledger WHERE job = %s FOR UPDATE", [job["id"]]).fetchone()
            # The assert_fence of those who have no fence: true now, and at COMMIT maybe not.
            if db.execute("SELECT token FROM fencegate.leader(%s)", [resource]).fetchone() != (job["token"],):
                raise Stale("another has the lease")
            self.reach("checked", job)
            if not done:
                db.execute("INSERT INTO ledger VALUES (%s, %s, %s)", [job["id"], job["token"], job["work"]["amount"]])
            self.reach("inserted", job)
        self.reach("applied", job)

    def work(self, job):
        """Whether it came to an end. If not, the database was away; whether the job is still ours, the fence says."""
        try:
            if job["attempts"] <= job["work"].get("fails", 0):
                self.report(job, "fail")
            else:
                self.apply(job)
                self.report(job, "complete", output={"by": self.name})
                self.event("execution_done", job)
        except Stale as error:
            self.event("work_discarded", job, reason=str(error))
        except Away:
            self.event("database_away", job)
            return False
        except psycopg.Error as error:
            if error.sqlstate in ("LF001", "LF005"):
                self.event("work_discarded", job, reason=f"{error.sqlstate}: {error}".splitlines()[0])
            elif isinstance(error, psycopg.OperationalError) or error.sqlstate == "LF006":
                self.event("database_away", job)
                return False
            else:
                self.give_up(job, error)
        except (KeyError, TypeError) as error:
            self.give_up(job, error)
        return True

    def give_up(self, job, error):
        """What is asked cannot be done: it is tried again later, and fails in the end."""
        self.event("execution_failed", job, reason=repr(error))
        with contextlib.suppress(Away, Stale):
            self.report(job, "fail")

    def run(self):
        while True:
            try:
                status, job = call(self.service, "POST", "/jobs/next", worker=self.name)
            except Away:
                status = None
            if status != 200:
                time.sleep(0.1)
                continue
            self.event("execution_started", job, attempt=job["attempts"])
            heart = threading.Thread(target=self.heartbeat, args=(job, done := threading.Event()), daemon=True)
            heart.start()
            try:
                while not self.work(job):
                    time.sleep(0.2)
            finally:
                # A heart that beats on would keep the job from everybody.
                done.set()
                heart.join()


if __name__ == "__main__":
    # That no ROLLBACK reached a database which is away is no news.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    Worker(*sys.argv[1:]).run()
