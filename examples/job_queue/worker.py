#!/usr/bin/python3
"""A worker of the job queue: takes a job, renews its lease, runs it, and reports the result. Start your program from here.

The worker writes to PostgreSQL under the token of the job's lease. The service holds the leases.

Usage: worker.py NAME SERVICE DATABASE [BARRIER]   (the worker suspends itself at the barrier)
"""

import json
import logging
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone

import psycopg
from fencegate import Election, Gone, LeadershipLost, fence_error, is_retryable, now, run_as_leader


class Away(Exception):
    """The service does not answer, so the outcome is unknown: retry."""


class Stale(Exception):
    """Another worker may have the job: discard the work."""


def call(service, method, path, timeout=5, **body):
    """Returns status and answer."""
    request = urllib.request.Request(service + path, json.dumps(body).encode(), method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        answer = error
    except OSError as error:
        raise Away(str(error)) from error
    with answer:
        return answer.status, json.loads(answer.read() or "null")


class Jobs(Election):
    """Each term is a job, under the lease that the service has acquired for it."""

    def __init__(self, name, service):
        super().__init__("job", holder=name)
        self.service = service

    def _campaign(self, term):
        sent = now()
        try:
            status, job = call(self.service, "POST", "/jobs/next", worker=self.holder)
        except Away:
            status = None
        if status != 200:
            return 0.1
        self.job, self.renew_every, self.ttl = job, job["heartbeat_every"], job["heartbeat_every"] * 3
        term.token, term.deadline = job["token"], sent + self.ttl
        return 0

    def _renew(self, term, limit):
        sent = now()
        try:
            self.report("heartbeat", timeout=limit)
        except Stale as error:
            raise Gone from error
        return sent

    def _leave(self, term, limit):
        """Does nothing. The service releases the lease of a finished job. Other leases expire."""

    def report(self, what, **fields):
        path = f"/jobs/{self.job['id']}/{what}"
        status, answer = call(self.service, "PUT", path, worker=self.holder, token=self.job["token"], **fields)
        if status in (200, 409):
            raise Stale(answer["message"])
        if status != 202:
            raise Away(f"{status} for {path}")


class Worker:
    def __init__(self, name, service, database, barrier=None):
        self.jobs, self.database, self.barrier = Jobs(name, service), database, barrier

    def event(self, event, **fields):
        """Prints a line in the format of the proxy's log."""
        at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        job = self.jobs.job
        job = {"worker": self.jobs.holder, "resource": f"job/{job['id']}", "token": job["token"]}
        print(json.dumps({"timestamp": at, "event": event} | job | fields), flush=True)

    def reach(self, barrier):
        if barrier == self.barrier:
            self.event("stopped", at=barrier)
            os.kill(os.getpid(), signal.SIGSTOP)

    def apply(self, job):
        """Does all writes of the job in one transaction. The job has one entry, regardless of earlier attempts."""
        resource = f"job/{job['id']}"
        with psycopg.connect(self.database, options=f"-c lease.fence={resource}={job['token']}") as db:
            # The lock raises the fence, so older holders can no longer change the data read after it.
            done = db.execute("SELECT 1 FROM ledger WHERE job = %s FOR UPDATE", [job["id"]]).fetchone()
            # The usual assert_fence without a fence: true now, but perhaps no longer at COMMIT.
            if db.execute("SELECT token FROM fencegate.leader(%s)", [resource]).fetchone() != (job["token"],):
                raise Stale("another has the lease")
            self.reach("checked")
            if not done:
                db.execute("INSERT INTO ledger VALUES (%s, %s, %s)", [job["id"], job["token"], job["work"]["amount"]])
            self.reach("inserted")
        self.reach("applied")

    def work(self, jobs):
        """Runs the job to its end. After a database outage, the fence determines whether this worker still has the job."""
        self.event("execution_started", attempt=jobs.job["attempts"])
        while True:
            try:
                if jobs.job["attempts"] <= jobs.job["work"].get("fails", 0):
                    return jobs.report("fail")
                self.apply(jobs.job)
                jobs.report("complete", output={"by": jobs.holder})
                return self.event("execution_done")
            except Stale as error:
                return self.event("work_discarded", reason=str(error))
            except (Away, psycopg.Error, KeyError, TypeError) as error:
                rejection = fence_error(error)
                if isinstance(error, (Away, psycopg.OperationalError)) and not rejection or is_retryable(error):
                    self.event("database_away")
                    time.sleep(0.2)
                elif rejection and rejection.sqlstate in ("LF001", "LF005"):
                    return self.event("work_discarded", reason=f"{rejection.sqlstate}: {rejection}")
                else:
                    # The job failed. The service retries it later, and finally gives up.
                    self.event("execution_failed", reason=repr(error))
                    return jobs.report("fail")

    def run(self):
        while True:
            try:
                run_as_leader(self.jobs, self.work)
            except (Away, Stale, LeadershipLost):
                pass  # Another worker has the job, or will get it when the lease expires.


if __name__ == "__main__":
    # Hide warnings that a ROLLBACK did not reach an unavailable database.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    Worker(*sys.argv[1:]).run()
