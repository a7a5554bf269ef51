"""A new leader claims its resources before the work begins."""

import asyncio
import threading

import psycopg
import pytest

import fencegate
from fencegate import Election, LeadershipLost, StaleToken, fencing_errors, now, run_as_leader
from fencegate.election import Gone
from fencegate.lease import Asyncpg

COUNT = "SELECT count(*) FROM jobs WHERE run_by = 'old'"


class Issued(Election):
    """Leads at once, with this token."""

    def __init__(self, token):
        super().__init__("issued", ttl=2)
        self.issued, self.is_gone = token, False

    def _campaign(self, term):
        term.token, term.deadline = self.issued, now() + self.ttl
        return 0

    def _renew(self, term, limit):
        if self.is_gone:
            raise Gone
        return now()

    def _leave(self, term, limit):
        pass


def holder(url, token):
    return psycopg.connect(url, options=f"-c lease.fence={token}")


@pytest.fixture
def old(proxy, next_token):
    """A connection with an uncommitted row."""
    connection = holder(proxy.url, next_token())
    connection.execute("INSERT INTO jobs (run_by) VALUES ('old')")
    yield connection
    connection.close()


def is_cut_off(old, url):
    with psycopg.connect(url) as connection:
        assert connection.execute(COUNT).fetchone()[0] == 0
    with pytest.raises(StaleToken) as stale, fencing_errors():
        old.commit()
    assert stale.value.outcome == "rolled_back"
    with psycopg.connect(url) as connection:
        assert connection.execute(COUNT).fetchone()[0] == 0
    return True


@pytest.mark.parametrize("connect", [lambda url: url, lambda url: lambda: Asyncpg(url)], ids=["psycopg", "asyncpg"])
def test_older_holders_are_gone_before_the_work(old, proxy, next_token, connect):
    def work(election):
        return is_cut_off(old, proxy.url)

    assert run_as_leader(Issued(next_token()), work, claim=["jobs"], connect=connect(proxy.url))


def test_older_holders_are_gone_before_a_coroutine(old, proxy, next_token):
    async def work(election):
        return await asyncio.to_thread(is_cut_off, old, proxy.url)

    assert asyncio.run(run_as_leader(Issued(next_token()), work, claim=["jobs"], connect=proxy.url))


def test_older_holders_are_gone_before_the_decorated_work(old, proxy, next_token):
    @fencegate.leader(Issued(next_token()), claim=["jobs"], connect=proxy.url)
    def work(election):
        return is_cut_off(old, proxy.url)

    assert work()


def test_the_decorator_claims_for_a_lease(postgres, proxy, monkeypatch):
    @fencegate.leader("cron/scheduler", claim=["scheduler"], connect=proxy.url)
    def work(lease):
        highest = postgres.sql("SELECT token FROM fencegate_state.epoch WHERE resource = 'scheduler'")
        return lease.token == int(highest)

    monkeypatch.setenv("FENCEGATE_COORDINATOR", postgres.url())
    assert work()


def test_a_stale_token_ends_the_campaign(proxy, next_token):
    older, newer = next_token(), next_token()
    with holder(proxy.url, newer) as connection:
        connection.execute("DELETE FROM jobs WHERE false")
    election = Issued(older)
    with pytest.raises(StaleToken) as stale:
        run_as_leader(election, lambda election: pytest.fail("it works"), claim=["jobs"], connect=proxy.url)
    assert (stale.value.presented, stale.value.highest) == (older, newer) and election.lost.is_set()


class Refusal(psycopg.Error):
    def __init__(self, code, hint=""):
        super().__init__("refused")
        self.sqlstate, self.hint = code, hint


class Refusing:
    """A connection on which claims fail."""

    def __init__(self, refusals):
        self.refusals, self.description = refusals, None

    def cursor(self):
        return self

    def execute(self, query, parameters):
        if "claim" in query:
            refusal = next(self.refusals, None)
            if refusal:
                raise refusal

    def commit(self):
        pass

    def close(self):
        pass


def test_a_claim_is_repeated_while_the_fence_is_unavailable(next_token):
    refusals = iter([Refusal("LF006"), Refusal("LF004", "The token is now in force. Nothing was written."), None])
    assert run_as_leader(Issued(next_token()), lambda _: 1, claim=["jobs"], connect=lambda: Refusing(refusals)) == 1
    assert next(refusals, "claimed") == "claimed"
    refusals = iter([Refusal("LF006", "Retrying will not help.")])
    with pytest.raises(fencegate.FenceUnavailable):
        run_as_leader(Issued(next_token()), lambda _: 1, claim=["jobs"], connect=lambda: Refusing(refusals))


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_loss_ends_the_claim(next_token, is_silent):
    election = Issued(next_token())
    silence = threading.Event()

    def connect():
        election.is_gone = True
        if is_silent:
            silence.wait()
        return Refusing(iter(lambda: Refusal("LF006"), None))

    async def work(election):
        pytest.fail("it works")

    with pytest.raises(LeadershipLost):
        run_as_leader(election, lambda election: pytest.fail("it works"), claim=["jobs"], connect=connect)
    election.is_gone = False
    with pytest.raises(LeadershipLost):
        asyncio.run(run_as_leader(election, work, claim=["jobs"], connect=connect))
    silence.set()


def test_a_claim_needs_a_list_and_a_connection(next_token):
    for options in ({"claim": ["jobs"]}, {"claim": "jobs", "connect": "postgres://"}):
        with pytest.raises(TypeError):
            run_as_leader(Issued(next_token()), lambda _: 1, **options)
