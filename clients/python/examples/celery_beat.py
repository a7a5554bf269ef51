"""Celery: Beat leads, and each task writes with the token under which Beat has sent it.

    celery --app celery_beat worker
    FENCEGATE_COORDINATOR=postgres://app:change-me@127.0.0.1:5432/app python celery_beat.py
"""

import os
import signal

import psycopg
from celery import Celery
from celery.signals import before_task_publish

from fencegate import leader

DATABASE = os.environ.get("DATABASE_URL", "postgres://app:change-me@127.0.0.1:6432/app")
app = Celery("celery_beat", broker=os.environ.get("BROKER", "redis://127.0.0.1:6379/0"))
app.conf.beat_schedule = {"tick": {"task": "celery_beat.tick", "schedule": float(os.environ.get("EVERY", 60))}}


@app.task(bind=True, name="celery_beat.tick")
def tick(self):
    with psycopg.connect(DATABASE, options=f"-c lease.fence={self.request.get('fence_token') or ''}") as db:
        db.execute("UPDATE ticks SET run_by = 'celery' WHERE tick = '12:00'")


@leader("cron/scheduler")
def beat(lease):
    # Beat ends by this signal. Its supervisor starts it again, and it campaigns.
    lease.on_lost(lambda: os.kill(os.getpid(), signal.SIGTERM))

    @before_task_publish.connect
    def add_token(headers=None, **_):
        headers["fence_token"] = lease.token  # Not sent while the lease is not held.

    app.Beat().run()


if __name__ == "__main__":
    beat()
