"""README's program and the examples run as they are, except for addresses."""

import os
import pathlib
import subprocess
import sys

import pytest
from servers import Program, wait_until

FOLDER = pathlib.Path(__file__).parent.parent


def run_by(postgres):
    return postgres.sql("SELECT run_by FROM ticks")


@pytest.fixture
def here(postgres, proxy):
    def here(text):
        return text.replace("127.0.0.1:5432", f"127.0.0.1:{postgres.port}").replace("6432", str(proxy.port))

    return here


def test_the_program_of_readme(postgres, here):
    block = (FOLDER / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert len([line for line in block.splitlines() if line]) <= 10
    subprocess.run([sys.executable, "-c", here(block)], check=True)
    assert run_by(postgres).count(":") == 2


@pytest.fixture
def program(folder, postgres, proxy):
    started = []

    def program(*arguments):
        settings = {
            "FENCEGATE_COORDINATOR": postgres.url(),
            "DATABASE_URL": proxy.url,
            "BROKER": f"sqla+sqlite:///{folder}/broker.sqlite",
            "EVERY": "0.2",
            "PYTHONPATH": os.pathsep.join([str(FOLDER / "examples"), os.environ.get("PYTHONPATH", "")]),
        }
        variables = [f"{name}={value}" for name, value in settings.items()]
        command = ["env", "-C", str(folder), *variables, sys.executable, *arguments]
        started.append(Program(command, folder / f"{arguments[-1].rsplit('/')[-1]}.log"))
        return started[-1]

    yield program
    for one in started:
        one.stop()


def test_celery(program, postgres):
    program("-m", "celery", "--app", "celery_beat", "worker", "--concurrency", "1")
    program(str(FOLDER / "examples/celery_beat.py"))
    wait_until("the task has written", lambda: run_by(postgres) == "celery")


def test_apscheduler(program, postgres):
    program(str(FOLDER / "examples/scheduler.py"))
    wait_until("the job has written", lambda: run_by(postgres) == "apscheduler")
