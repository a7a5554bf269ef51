"""APScheduler: the scheduler runs only in the process that leads, and its jobs write with the token.

FENCEGATE_COORDINATOR=postgres://app:change-me@127.0.0.1:5432/app python scheduler.py
"""

import os

from apscheduler.schedulers.background import BackgroundScheduler
from psycopg_pool import ConnectionPool

from fencegate import LeadershipLost, leader, psycopg_check

DATABASE = os.environ.get("DATABASE_URL", "postgres://app:change-me@127.0.0.1:6432/app")


# Jobs may read before they write: older leaders are gone before the first job.
@leader("cron/scheduler", claim=["scheduler"], connect=DATABASE)
def schedule(lease):
    with ConnectionPool(DATABASE, check=psycopg_check(lease)) as pool:

        def tick():
            with pool.connection() as db:
                db.execute("UPDATE ticks SET run_by = 'apscheduler' WHERE tick = '12:00'")

        scheduler = BackgroundScheduler()
        scheduler.add_job(tick, "interval", seconds=float(os.environ.get("EVERY", 60)))
        scheduler.start()
        lease.lost.wait()
        scheduler.shutdown()


while True:
    try:
        schedule()
    except LeadershipLost as error:
        print(error)
