"""Leases in PostgreSQL."""

import asyncio
import os
import signal
import subprocess
import threading

import psycopg
import psycopg2
import pytest
from servers import BINARY, environment, free_port, wait_until

import fencegate
from fencegate import Lease, LeadershipLost, NotLeader, run_as_leader
from fencegate import election as election_module
from fencegate.lease import Asyncpg


@pytest.fixture
def url(postgres, proxy):
    return postgres.url()


@pytest.fixture(params=["psycopg", "psycopg2", "asyncpg"])
def connect(request, url):
    drivers = {"psycopg": psycopg.connect, "psycopg2": psycopg2.connect, "asyncpg": Asyncpg}
    return lambda: drivers[request.param](url)


def leads_elsewhere(url, name):
    """Whether another candidate could take the lease, which it then releases."""
    other = Lease(url, name)
    try:
        return not other.acquire(timeout=0)
    finally:
        other.release()


def test_one_leads_and_the_next_has_a_higher_token(connect, url, name):
    lease, other = Lease(connect, name), Lease(url, name)
    with pytest.raises(NotLeader):
        lease.token
    assert lease.acquire(timeout=0) and lease.token > 0 and not lease.lost.is_set()
    assert not other.acquire(timeout=0)
    first = lease.token
    lease.release()
    assert lease.lost.is_set()
    with pytest.raises(NotLeader):
        lease.token
    with other:
        assert other.token > first


def test_a_waiting_candidate_follows(url, name):
    first, second = Lease(url, name), Lease(url, name)
    first.acquire()
    assert not second.acquire(timeout=0.3)
    first.release()
    assert second.acquire(timeout=10)
    second.release()


def test_renewals_extend_the_deadline(connect, name):
    with Lease(connect, name, ttl=2) as lease:
        token, deadline = lease.token, lease.deadline
        wait_until("the first deadline has passed", lambda: fencegate.now() > deadline)
        assert lease.token == token


@pytest.mark.parametrize("through", ["server", "proxy"])
def test_loss_is_announced_before_the_deadline_if_the_server_hangs(through, url, proxy, postgres, name):
    lease = Lease(proxy.url if through == "proxy" else url, name, ttl=3)
    lease.acquire()
    announced = []
    lease.on_lost(lambda: announced.append(fencegate.now()))
    postgres.pause()
    try:
        assert lease.lost.wait(20)
        with pytest.raises(NotLeader, match="not renewed: no answer"):
            lease.token
        wait_until("the callback has run", lambda: announced)
        assert announced[0] < lease.deadline
    finally:
        postgres.resume()
    lease.release()


def test_no_token_after_the_deadline_even_without_an_announcement(url, name):
    lease = Lease(url, name, ttl=2)
    lease._renew = lambda *_: 0
    lease._lose = lambda *_: None  # As if the thread that renews did not run.
    lease.acquire()
    wait_until("the deadline is near", lambda: fencegate.now() > lease.deadline - 0.1)
    assert not lease.lost.is_set()
    with pytest.raises(NotLeader):
        lease.token
    lease.release()


def test_the_deadline_counts_from_the_sending(url, name):
    reached = []

    class Slow(psycopg.Cursor):
        """Notes when a query passes. Its answer takes a while."""

        def execute(self, query, parameters=None):
            reached.append(fencegate.now())
            super().execute("SELECT pg_sleep(0.05)")
            return super().execute(query, parameters)

    lease = Lease(lambda: psycopg.connect(url, autocommit=True, cursor_factory=Slow), name, ttl=2)
    lease.acquire()
    first = lease.deadline
    assert first - lease.ttl <= reached[-1]
    wait_until("a renewal was answered", lambda: lease.deadline > first)
    assert lease.deadline - lease.ttl <= reached[-1]
    lease.release()


def test_a_revoked_lease_is_lost(url, postgres, name):
    lease = Lease(url, name, ttl=2)
    lease.acquire()
    deadline = lease.deadline
    postgres.sql(f"UPDATE fencegate_state.lease SET expires = clock_timestamp() WHERE election = '{name}'")
    assert lease.lost.wait(20)
    assert fencegate.now() < deadline
    with pytest.raises(NotLeader, match="revoked"):
        lease.token
    assert lease.acquire(timeout=10)  # The same object leads again, under another token.
    lease.release()



def test_a_hung_connection_is_replaced(url, postgres, name):
    lease = Lease(url, name, ttl=4)
    lease.acquire()
    token, deadline = lease.token, lease.deadline
    hung = lease._idle[0].info.backend_pid
    os.kill(hung, signal.SIGSTOP)
    try:
        wait_until("the first deadline has passed", lambda: fencegate.now() > deadline)
        assert lease.token == token
    finally:
        os.kill(hung, signal.SIGCONT)
    lease.release()


def test_a_closed_connection_is_replaced(url, postgres, name):
    lease = Lease(url, name, ttl=2)
    lease.acquire()
    deadline = lease.deadline
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
    wait_until("the first deadline has passed", lambda: fencegate.now() > deadline)
    assert lease.token
    lease.release()


def test_the_next_host_of_the_url_is_used(postgres, proxy, name):
    for connect in (None, Asyncpg):
        url = f"postgres://app@127.0.0.1:{free_port()},127.0.0.1:{postgres.port}/app"
        with Lease(url if connect is None else lambda: Asyncpg(url), name) as lease:
            assert lease.token


def test_a_refusal_is_an_error_at_once(postgres, proxy, name):
    postgres.sql("CREATE ROLE stranger LOGIN")
    with pytest.raises(fencegate.CoordinatorError, match="permission denied") as refused:
        Lease(postgres.url("stranger"), name).acquire()
    assert refused.type is fencegate.CoordinatorError
    with pytest.raises(fencegate.CoordinatorUnavailable, match="no answer within 2.0 s: .*refused"):
        Lease(f"postgres://app@127.0.0.1:{free_port()}/app", name, ttl=2).acquire()


def test_timings_without_room_for_a_retry_are_rejected(url):
    for options in ({"ttl": 1}, {"ttl": 3601}, {"ttl": 9, "renew_every": 5}, {"ttl": 9, "renew_every": 0.1}):
        with pytest.raises(ValueError):
            Lease(url, "any", **options)


def test_candidates_with_one_name_have_different_tokens(url, name):
    first, second = Lease(url, name, holder="node"), Lease(url, name, holder="node")
    with first:
        assert not second.acquire(timeout=0)
        shown = subprocess.run([BINARY, "leases", url], capture_output=True, text=True, env=environment()).stdout
        assert f"{name} " in shown and " node " in shown


def test_fencegate_lead_waits_for_the_lease(url, name):
    command = [BINARY, "lead", "--no-wait", "--coordinator", url, "--election", name, "--", "true"]
    with Lease(url, name):
        assert subprocess.run(command, env=environment(), stderr=subprocess.DEVNULL).returncode == 73
    assert subprocess.run(command, env=environment(), stderr=subprocess.DEVNULL).returncode == 0


def test_a_canceled_campaign_withdraws(url, name):
    async def main():
        waiting = Lease(url, name)
        async with Lease(url, name):
            campaign = asyncio.create_task(waiting.acquire_async())
            await asyncio.sleep(0)
            campaign.cancel()
            with pytest.raises(asyncio.CancelledError):
                await campaign
        assert waiting.lost.is_set()

    asyncio.run(main())
    wait_until("the candidate has withdrawn", lambda: not leads_elsewhere(url, name))


def test_a_campaign_that_wins_while_it_is_canceled_releases(url, name):
    async def main():
        lease, won, go_on = Lease(url, name), fencegate.election.threading.Event(), fencegate.election.threading.Event()
        acquire = lease._acquire

        def slow(*arguments):
            result = acquire(*arguments)
            won.set()
            assert go_on.wait(10)
            return result

        lease._acquire = slow
        campaign = asyncio.create_task(lease.acquire_async())
        await asyncio.to_thread(won.wait)
        campaign.cancel()
        with pytest.raises(asyncio.CancelledError):
            await campaign
        go_on.set()
        while not lease.lost.is_set():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 20))
    wait_until("the lease is free", lambda: not leads_elsewhere(url, name))


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
def test_a_release_wakes_a_candidate(url, postgres, name, monkeypatch, driver):
    monkeypatch.setattr(election_module, "POLL", 3600)
    first = Lease(url, name, ttl=3600)
    first.acquire()
    second, has_looked = Lease(lambda: driver.connect(url), name, ttl=3600), threading.Event()
    campaign = second._campaign

    def look(term):
        pause = campaign(term)
        has_looked.set()
        return pause

    monkeypatch.setattr(second, "_campaign", look)
    threading.Thread(target=second.acquire, daemon=True).start()
    assert has_looked.wait(30)
    first.release()
    wait_until("the candidate leads", lambda: not second.lost.is_set())
    second.release()


def test_run_as_leader(url, name):
    lease = Lease(url, name)
    assert run_as_leader(lease, lambda lease: lease.token) > 0
    assert lease.lost.is_set() and not leads_elsewhere(url, name)
    with pytest.raises(KeyError):
        run_as_leader(lease, lambda lease: {}["none"])
    assert not leads_elsewhere(url, name)


def test_run_as_leader_reports_the_loss_instead_of_the_result(url, postgres, name):
    def work(lease):
        postgres.sql(f"UPDATE fencegate_state.lease SET expires = clock_timestamp() WHERE election = '{name}'")
        assert lease.lost.wait(20)
        return "done"

    with pytest.raises(LeadershipLost, match="revoked"):
        run_as_leader(Lease(url, name, ttl=2), work)


def test_run_as_leader_cancels_a_coroutine(url, postgres, name):
    seen = []

    async def work(lease):
        postgres.sql(f"UPDATE fencegate_state.lease SET expires = clock_timestamp() WHERE election = '{name}'")
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            seen.append(lease.lost.is_set())
            raise

    with pytest.raises(LeadershipLost, match="revoked"):
        asyncio.run(run_as_leader_soon(Lease(url, name, ttl=2), work))
    assert seen == [True]


async def run_as_leader_soon(lease, work):
    return await run_as_leader(lease, work)


def test_a_coroutine_that_is_canceled_from_outside_releases(url, name):
    async def main():
        started = asyncio.Event()

        async def work(lease):
            started.set()
            await asyncio.sleep(20)

        task = asyncio.create_task(run_as_leader_soon(Lease(url, name), work))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not leads_elsewhere(url, name)


def test_a_callback_cancels_a_running_statement(url, postgres, name):
    lease = Lease(url, name, ttl=2)
    with psycopg.connect(url) as connection, lease:
        lease.on_lost(connection.cancel)
        postgres.sql(f"UPDATE fencegate_state.lease SET expires = clock_timestamp() WHERE election = '{name}'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(20)")


def test_the_decorator_reads_the_coordinator_when_it_is_called(url, name, monkeypatch):
    @fencegate.leader(name)
    def tick(lease):
        return lease.token

    monkeypatch.setenv("FENCEGATE_COORDINATOR", url)
    assert tick() > 0
