"""procrastinate: defers a job and processes all jobs, with the token in QUEUE_TOKEN."""
import asyncio
import os
import sys

import procrastinate

token = os.environ.get("QUEUE_TOKEN")
options = {"options": f"-c lease.fence={token}"} if token else {}
app = procrastinate.App(connector=procrastinate.PsycopgConnector(kwargs={"dbname": "app", **options}))


@app.task(name="mail")
async def mail():
    print("worked")


async def main():
    async with app.open_async():
        if os.environ.get("QUEUE_MIGRATES"):
            await app.schema_manager.apply_schema_async()
        await mail.defer_async()
        print("deferred")
        try:
            await app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False)
            print("worker ended")
        except procrastinate.exceptions.ConnectorException as error:
            print("worker failed", error.__cause__.sqlstate)


asyncio.run(main())
sys.exit(0)
