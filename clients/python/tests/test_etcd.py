"""Elections on etcd."""

import subprocess

import pytest
from servers import BINARY, environment, free_port, wait_until

import fencegate
from fencegate import EtcdElection, NotLeader


@pytest.fixture
def name(name):
    return f"/{name}/leader"


def test_one_leads_and_the_next_has_a_higher_token(etcd, name):
    first, second = EtcdElection(etcd.url, name), EtcdElection(etcd.url, name)
    assert first.acquire(timeout=0)
    shown = etcd.ctl("get", "--prefix", name + "/", "-w", "fields").stdout
    assert f'"CreateRevision" : {first.token}\n' in shown and f'"Value" : "{first.holder}"' in shown
    assert not second.acquire(timeout=0)
    assert len(etcd.ctl("get", "--prefix", name + "/", "--keys-only").stdout.split()) == 1
    token = first.token
    first.release()
    with pytest.raises(NotLeader):
        first.token
    with second:
        assert second.token > token
    assert etcd.ctl("get", "--prefix", name + "/").stdout == ""


def test_fencegate_lead_takes_part(etcd, name):
    command = [BINARY, "lead", "--no-wait", "--etcd", etcd.url, "--election", name, "--"]
    with EtcdElection(etcd.url, name):
        assert subprocess.run([*command, "true"], env=environment(), stderr=subprocess.DEVNULL).returncode == 73
    lead = subprocess.Popen([*command, "cat"], env=environment(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_until("fencegate lead leads", lambda: etcd.ctl("get", "--prefix", name + "/").stdout)
    election = EtcdElection(etcd.url, name)
    assert not election.acquire(timeout=0)
    lead.stdin.close()
    assert election.acquire(timeout=20)
    assert lead.wait() == 0
    election.release()


def test_renewals_extend_the_deadline(etcd, name):
    with EtcdElection(etcd.url, name, ttl=2) as election:
        token, deadline = election.token, election.deadline
        wait_until("the first deadline has passed", lambda: fencegate.now() > deadline)
        assert election.token == token


def test_a_waiting_candidate_keeps_its_place(etcd, name):
    first, second = EtcdElection(etcd.url, name, ttl=2), EtcdElection(etcd.url, name, ttl=2)
    first.acquire()
    assert not second.acquire(timeout=4)
    first.release()
    assert second.acquire(timeout=20)
    second.release()


def test_loss_is_announced_before_the_deadline_if_etcd_hangs(etcd, name):
    election = EtcdElection(etcd.url, name, ttl=3)
    election.acquire()
    announced = []
    election.on_lost(lambda: announced.append(fencegate.now()))
    etcd.pause()
    try:
        wait_until("the callback has run", lambda: announced)
        assert announced[0] < election.deadline
        with pytest.raises(NotLeader):
            election.token
    finally:
        etcd.resume()
    election.release()


def test_a_revoked_lease_is_lost(etcd, name):
    election = EtcdElection(etcd.url, name, ttl=2)
    election.acquire()
    key = etcd.ctl("get", "--prefix", name + "/", "--keys-only").stdout.strip()
    etcd.ctl("lease", "revoke", key.rsplit("/", 1)[1])
    assert election.lost.wait(20)
    with pytest.raises(NotLeader, match="revoked"):
        election.token
    assert election.acquire(timeout=20)
    election.release()


def test_nested_elections_are_rejected(etcd, name):
    with EtcdElection(etcd.url, name):
        for nested in (name + "/inner", name.rsplit("/", 1)[0]):
            with pytest.raises(fencegate.CoordinatorError, match="nested"):
                EtcdElection(etcd.url, nested).acquire()


def test_another_member_is_asked(etcd, name):
    members = [f"http://127.0.0.1:{free_port()}", etcd.url]
    with EtcdElection(members, name, ttl=2) as election:
        deadline = election.deadline
        wait_until("the first deadline has passed", lambda: fencegate.now() > deadline)
        assert election.token


def test_fractions_of_a_second_are_rejected(etcd, name):
    with pytest.raises(ValueError):
        EtcdElection(etcd.url, name, ttl=2.5)
