//! Leases with only the guard: a new lease raises the fence in the transaction that acquires it. No proxy, no etcd.

use super::world::{LEVELS, attempt, guard, policy_folder};
use crate::support::commit_order::CommitOrder;
use crate::support::fenced::{code, ok};
use crate::support::postgres::{Options, SUPERUSER};
use crate::support::ticks::{self, WRITE, process, tokens, wait_for_process, wait_until_harmless};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Postgres, Proxy, Release, Wire, message, wait_until};
use std::path::PathBuf;

const POLICIES: &str =
    "version: 1\nresources:\n  - {name: scheduler, lease: cron/scheduler, tables: [public.ticks]}\nopaque: allow\n";
const OF_KEYS: &str = "version: 1\nresources:\n  - {name: 'job/{id}', lease: 'work/{id}/of', tables: [{name: public.jobs, key: id}]}\n\
    opaque: allow\n";

struct World {
    postgres: Postgres,
    folder: PathBuf,
}

impl World {
    fn start(name: &str, policies: &str) -> Self {
        Self::start_with(name, policies, Options::default())
    }

    fn start_with(name: &str, policies: &str, options: Options) -> Self {
        let postgres = Postgres::start(options);
        ticks::init(&postgres, SUPERUSER);
        ticks::may_lead(&postgres, SUPERUSER, "*");
        postgres.sql(
            "CREATE TABLE jobs (id int, n int); \
             CREATE FUNCTION write_tick() RETURNS void LANGUAGE sql AS 'INSERT INTO public.ticks (note) VALUES (NULL)'",
        );
        let world = World { postgres, folder: policy_folder(name, policies) };
        world.guard("install");
        world
    }

    fn guard(&self, what: &str) -> String {
        let control = format!("postgres://{SUPERUSER}@127.0.0.1:{}/postgres", self.postgres.port());
        let output = guard(what, &control, Some(&self.folder));
        assert!(output.status.success(), "{what}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn acquire(&self, election: &str, holder: &str) -> i64 {
        let token = format!("SELECT token FROM fencegate.acquire('{election}', '{holder}', '1 minute')");
        self.postgres.value(&token).parse().unwrap()
    }

    fn expire(&self) {
        self.postgres.sql("UPDATE fencegate_state.lease SET expires = clock_timestamp()");
    }

    fn epochs(&self) -> String {
        self.postgres.value(
            "SELECT coalesce(string_agg(resource || ' ' || token || CASE WHEN drained THEN '' ELSE '!' END, ', ' \
             ORDER BY resource), '') FROM fencegate_state.epoch",
        )
    }

    /// A session that connects to the server directly.
    fn session(&self, token: i64) -> Wire {
        ticks::session(&self.postgres.socket(), token)
    }
}

#[test]
fn the_smallest_set_up_fences() {
    for level in LEVELS {
        let world = World::start("the_smallest_set_up_fences", POLICIES);
        assert_eq!(attempt(&mut world.session(7), level, &[WRITE]), "LF004", "the token was not issued");
        let first = world.acquire("cron/scheduler", "a");
        assert_eq!(world.epochs(), format!("scheduler {first}"));
        let mut old = world.session(first);
        assert_eq!(attempt(&mut old, level, &[WRITE, "SELECT write_tick()"]), "");
        world.expire();
        let second = world.acquire("cron/scheduler", "b");
        assert_eq!(attempt(&mut old, level, &[WRITE]), "LF001", "before the new leader has written");
        assert_eq!(attempt(&mut world.session(second), level, &["SELECT write_tick()"]), "");
        assert_eq!(attempt(&mut world.session(second + 1), level, &[WRITE]), "LF004");
        assert_eq!(world.postgres.value("SELECT count(*) FROM ticks"), "3");
    }
}

/// Sessions that still write under the old token are terminated, and commit nothing afterward.
#[test]
fn an_open_transaction_is_cut_off() {
    for level in LEVELS {
        let world = World::start("an_open_transaction_is_cut_off", POLICIES);
        let mut order = CommitOrder::start(&world.postgres, "postgres");
        let first = world.acquire("cron/scheduler", "a");
        let mut old = world.session(first);
        let pid = process(&mut old);
        ok(&mut old, &format!("BEGIN ISOLATION LEVEL {level}"));
        ok(&mut old, WRITE);
        world.expire();
        let second = world.acquire("cron/scheduler", "b");
        wait_until_harmless(&world.postgres, &pid);
        assert_eq!(error_in(&old.query("COMMIT")).expect("it was ended").severity(), "FATAL");
        assert_eq!(code(&mut world.session(second), WRITE), "");
        assert_eq!(tokens(&mut order), [second]);
    }
}

/// The acquiring transaction stays open. Until it ends, no session is admitted under the old token, and no write is
/// lost.
#[test]
fn a_write_during_a_lease_handover_fails_with_the_session() {
    for (end, told) in [("COMMIT", "LF001"), ("ROLLBACK", "")] {
        for level in LEVELS {
            let world = World::start("a_write_during_a_lease_handover_fails_with_the_session", POLICIES);
            let first = world.acquire("cron/scheduler", "a");
            world.expire();
            let mut new = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
            ok(&mut new, "BEGIN");
            ok(&mut new, "SELECT * FROM fencegate.acquire('cron/scheduler', 'b', '1 minute')");
            let mut old = world.session(first);
            let pid = process(&mut old);
            ok(&mut old, &format!("BEGIN ISOLATION LEVEL {level}; SELECT 1"));
            old.send(&message::query(WRITE));
            wait_for_process(&world.postgres, &pid, "wait_event_type = 'Lock'");
            ok(&mut new, end);
            let answer = error_in(&old.read_until_ready()).map_or(String::new(), |error| error.code().to_owned());
            // An older snapshot does not show the current token.
            let expected = if told == "LF001" && level != "READ COMMITTED" { "40001" } else { told };
            assert_eq!(answer, expected, "{level}, {end}");
        }
    }
}

/// The guard of an earlier version admits a transaction with this lock alone.
#[test]
fn the_lock_holder_of_the_fence_is_terminated() {
    let world = World::start("the_lock_holder_of_the_fence_is_terminated", POLICIES);
    let mut old = world.session(1);
    ok(&mut old, "BEGIN; SELECT pg_advisory_xact_lock_shared(hashtextextended('fencegate:scheduler', 0))");
    world.acquire("cron/scheduler", "a");
    // Without an epoch, acquiring the lease waits for no session.
    world.expire();
    world.acquire("cron/scheduler", "b");
    assert_eq!(error_in(&old.query("COMMIT")).expect("it was ended").severity(), "FATAL");
}

/// An older snapshot may lack admissions. Only a proxy can detect them.
#[test]
fn a_lease_acquired_at_another_level_needs_a_proxy() {
    for level in &LEVELS[1..] {
        let world = World::start("a_lease_acquired_at_another_level_needs_a_proxy", POLICIES);
        let acquire = "SELECT * FROM fencegate.acquire('cron/scheduler', 'a', '1 minute')";
        let mut new = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
        assert_eq!(attempt(&mut new, level, &[acquire]), "");
        let token = world.postgres.value("SELECT token FROM fencegate_state.lease").parse().unwrap();
        assert_eq!(code(&mut world.session(token), WRITE), "LF006");
        let proxy = Proxy::start(&world.postgres, POLICIES, &[]);
        assert_eq!(code(&mut ticks::session(&proxy.address(), token), WRITE), "");
        assert_eq!(code(&mut world.session(token), WRITE), "");
    }
}

/// A proxy is notified of the lease, and drains the sessions that it has admitted.
#[test]
fn beside_a_proxy() {
    let world = World::start("beside_a_proxy", POLICIES);
    let proxy = Proxy::start(&world.postgres, POLICIES, &[]);
    let first = world.acquire("cron/scheduler", "a");
    let mut open = ticks::session(&proxy.address(), first);
    ok(&mut open, "BEGIN");
    ok(&mut open, WRITE);
    world.expire();
    let second = world.acquire("cron/scheduler", "b");
    wait_until("the fence is drained", DEADLINE, || world.epochs() == format!("scheduler {second}"));
    assert_eq!(error_in(&open.query("COMMIT")).expect("it was cut off").code(), "LF001");
    // Through the proxy and around it, with a visible write and with a write that only the guard sees.
    for mut new in [ticks::session(&proxy.address(), second), world.session(second)] {
        ok(&mut new, "SELECT write_tick()");
        ok(&mut new, WRITE);
    }
}

/// Without a proxy that could drain it, an admitted session blocks the new leader until it ends.
#[test]
fn an_admission_is_noticed() {
    let world = World::start("an_admission_is_noticed", POLICIES);
    let first = world.acquire("cron/scheduler", "a");
    let mut admitted = world.session(first);
    let pid = process(&mut admitted);
    world.postgres.sql(&format!(
        "INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy) \
         SELECT pid, backend_start, 'scheduler', 1, {first}, 'lost' FROM pg_stat_activity WHERE pid = {pid}"
    ));
    world.expire();
    let second = world.acquire("cron/scheduler", "b");
    assert_eq!(world.epochs(), format!("scheduler {second}!"));
    assert_eq!(code(&mut world.session(second), WRITE), "LF006");
    drop(admitted);
    let is_there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    wait_until("the admitted process has ended", DEADLINE, || world.postgres.value(&is_there) == "0");
    assert_eq!(world.acquire("cron/scheduler", "b"), second);
    assert_eq!(world.epochs(), format!("scheduler {second}"));
}

/// The epoch is deleted, but neither its admissions nor the transactions that the guard has admitted are.
#[test]
fn a_deleted_epoch_does_not_let_both_leaders_write() {
    let world = World::start("a_deleted_epoch_does_not_let_both_leaders_write", POLICIES);
    let mut order = CommitOrder::start(&world.postgres, "postgres");
    let first = world.acquire("cron/scheduler", "a");
    let mut passed = world.session(first);
    ok(&mut passed, "BEGIN");
    ok(&mut passed, WRITE);
    world.postgres.sql("DELETE FROM fencegate_state.epoch");
    world.expire();
    let second = world.acquire("cron/scheduler", "b");
    assert_eq!(error_in(&passed.query("COMMIT")).expect("it was ended").severity(), "FATAL");
    assert_eq!(code(&mut world.session(second), WRITE), "");
    assert_eq!(tokens(&mut order), [second]);

    let mut admitted = world.session(second);
    let pid = process(&mut admitted);
    world.postgres.sql(&format!(
        "INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy) \
         SELECT pid, backend_start, 'scheduler', 3, {second}, 'lost' FROM pg_stat_activity WHERE pid = {pid}; \
         DELETE FROM fencegate_state.epoch"
    ));
    world.expire();
    let third = world.acquire("cron/scheduler", "c");
    assert_eq!(world.epochs(), format!("scheduler {third}!"), "a session is admitted");
    assert_eq!(world.postgres.value("SELECT generation FROM fencegate_state.epoch"), "4");
    assert_eq!(code(&mut world.session(third), WRITE), "LF006");
}

/// A prepared transaction cannot be terminated. The lease is then not acquired, and nothing changes. No other session
/// is terminated because of it, nor is the acquiring session by other sessions that wait.
#[test]
fn a_prepared_transaction_blocks_the_lease() {
    let world = World::start("a_prepared_transaction_blocks_the_lease", POLICIES);
    let first = world.acquire("cron/scheduler", "a");
    let mut old = world.session(first);
    assert_eq!(attempt(&mut old, "READ COMMITTED", &[WRITE, "PREPARE TRANSACTION 'x'"]), "");
    world.expire();
    let acquire = "SELECT * FROM fencegate.acquire('cron/scheduler', 'b', '1 minute')";
    let mut new = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
    let pid = process(&mut new);
    new.send(&message::query(acquire));
    wait_for_process(&world.postgres, &pid, "wait_event = 'advisory'");
    // The session waits for the lock until its grace period ends.
    assert_eq!(code(&mut old, WRITE), "");
    let error = error_in(&new.read_until_ready()).expect("an error");
    assert!(error.code() == "LF006" && error.message().ends_with("a prepared transaction"), "{error:?}");
    assert_eq!(world.epochs(), format!("scheduler {first}"));
    world.postgres.sql("ROLLBACK PREPARED 'x'");
    ok(&mut new, acquire);
}

/// A session that waits for the lock terminates the only holder, but spares an acquiring session for a while.
#[test]
fn the_session_that_acquires_the_lease_is_spared() {
    let world = World::start("the_session_that_acquires_the_lease_is_spared", POLICIES);
    let proxy = Proxy::start(&world.postgres, POLICIES, &[]);
    let first = world.acquire("cron/scheduler", "a");
    world.expire();
    let mut new = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
    ok(&mut new, "BEGIN");
    ok(&mut new, "SELECT * FROM fencegate.acquire('cron/scheduler', 'b', '1 minute')");
    let mut old = [ticks::session(&proxy.address(), first), world.session(first)];
    old.iter_mut().for_each(|wire| wire.send(&message::query(WRITE)));
    // Wait for the end of the grace periods.
    ok(&mut new, "SELECT pg_sleep(1)");
    ok(&mut new, "COMMIT");
    for mut wire in old {
        assert_eq!(error_in(&wire.read_until_ready()).expect("it is stale").code(), "LF001");
    }
}

/// After the blocking transaction has ended, a renewal puts the token in force.
#[test]
fn a_leader_is_admitted_once_the_blocker_has_ended() {
    let world = World::start("a_leader_is_admitted_once_the_blocker_has_ended", POLICIES);
    let first = world.acquire("cron/scheduler", "a");
    let mut other = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
    for again in [
        "renew('cron/scheduler', $1, '1 minute')",
        "acquire('cron/scheduler', 'b', '1 minute')",
        "renew_all('{cron/scheduler}', '{$1}', '1 minute')",
    ] {
        ok(&mut other, "BEGIN; INSERT INTO jobs VALUES (1, 1); PREPARE TRANSACTION 'unrelated'");
        world.expire();
        let token = world.acquire("cron/scheduler", "b");
        assert_eq!(world.epochs(), format!("scheduler {token}!"));
        assert_eq!(code(&mut world.session(token), WRITE), "LF006");
        ok(&mut other, "COMMIT PREPARED 'unrelated'");
        world.postgres.sql(&format!("SELECT * FROM fencegate.{}", again.replace("$1", &token.to_string())));
        assert_eq!(code(&mut world.session(token), WRITE), "", "{again}");
        assert_eq!(code(&mut world.session(first), WRITE), "LF001");
    }
}

/// A blocked fence ends neither its own lease nor leases that are renewed in the same call.
#[test]
fn a_lease_is_renewed_though_its_fence_cannot_be_raised() {
    let world = World::start("a_lease_is_renewed_though_its_fence_cannot_be_raised", POLICIES);
    let token = world.acquire("cron/scheduler", "a");
    let other = world.acquire("unrelated", "a");
    let mut session = world.session(token);
    assert_eq!(attempt(&mut session, "READ COMMITTED", &[WRITE, "PREPARE TRANSACTION 'x'"]), "");
    world.postgres.sql("UPDATE fencegate_state.epoch SET drained = false");
    let mut holder = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
    for again in [
        format!("renew('cron/scheduler', {token}, '1 minute')"),
        "acquire('cron/scheduler', 'a', '1 minute')".to_owned(),
        format!("renew_all('{{cron/scheduler,unrelated}}', '{{{token},{other}}}', '1 minute')"),
    ] {
        world.postgres.sql("UPDATE fencegate_state.lease SET expires = clock_timestamp() + interval '30 s'");
        ok(&mut holder, &format!("SELECT * FROM fencegate.{again}"));
        let short = "SELECT count(*) FROM fencegate_state.lease WHERE expires < clock_timestamp() + interval '40 s'";
        assert_eq!(world.postgres.value(short), if again.starts_with("renew_all") { "0" } else { "1" }, "{again}");
        assert_eq!(code(&mut world.session(token), WRITE), "LF006", "{again}");
    }
    world.postgres.sql("ROLLBACK PREPARED 'x'");
    ok(&mut holder, &format!("SELECT fencegate.renew('cron/scheduler', {token}, '1 minute')"));
    assert_eq!(code(&mut world.session(token), WRITE), "");
}

/// An unrelated prepared transaction has prevented the lease from marking the epoch. A proxy marks it, although no
/// proxy has created the epoch.
#[test]
fn a_proxy_completes_the_drain_of_a_lease() {
    let world = World::start("a_proxy_completes_the_drain_of_a_lease", POLICIES);
    let proxy = Proxy::start(&world.postgres, POLICIES, &[]);
    let _session = Wire::login(&proxy.address(), SUPERUSER, "postgres");
    let mut other = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
    world.acquire("cron/scheduler", "a");
    ok(&mut other, "BEGIN; INSERT INTO jobs VALUES (1, 1); PREPARE TRANSACTION 'unrelated'");
    world.expire();
    let token = world.acquire("cron/scheduler", "b");
    wait_until("the fence is drained", DEADLINE, || world.epochs() == format!("scheduler {token}"));
    ok(&mut other, "COMMIT PREPARED 'unrelated'");
}

/// The fence is raised if the lease was acquired earlier, and if the fence already has higher tokens.
#[test]
fn a_fence_that_comes_later_or_stands_higher_is_raised() {
    let world = World::start("a_fence_that_comes_later_or_stands_higher_is_raised", POLICIES);
    world.guard("remove");
    let token = world.acquire("cron/scheduler", "a");
    world.guard("install");
    assert_eq!(code(&mut world.session(token), WRITE), "LF004");
    assert_eq!(world.acquire("cron/scheduler", "a"), token);
    assert_eq!(code(&mut world.session(token), WRITE), "");
    world.postgres.sql("UPDATE fencegate_state.epoch SET token = 50000000");
    world.expire();
    let next = world.acquire("cron/scheduler", "b");
    assert_eq!(next, 50000001);
    assert_eq!(code(&mut world.session(next), WRITE), "");
}

/// Each transaction of the old leader is shorter than the grace period, and the next begins before the period ends.
#[test]
fn a_busy_old_leader_does_not_keep_the_new_one_out() {
    let world = World::start("a_busy_old_leader_does_not_keep_the_new_one_out", POLICIES);
    let first = world.acquire("cron/scheduler", "a");
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let mut old = world.session(first);
                let steps = ["BEGIN", WRITE, "SELECT pg_sleep(0.002)", "COMMIT"];
                // Until the session is stale or terminated.
                while steps.iter().all(|step| error_in(&old.query(step)).is_none()) {}
            });
        }
        let written = || world.postgres.value("SELECT count(*) > 200 FROM ticks") == "t";
        wait_until("the old leader is busy", DEADLINE, written);
        world.expire();
        world.acquire("cron/scheduler", "b");
    });
}

/// Any role may hold that lock. Without an epoch, no holder is terminated: the lock may be an application's own, which
/// a key's name was chosen to match.
#[test]
fn the_only_lock_holder_is_terminated_only_if_there_is_a_fence() {
    let world = World::start("the_only_lock_holder_is_terminated_only_if_there_is_a_fence", POLICIES);
    world.postgres.sql("CREATE ROLE stranger LOGIN");
    let mut stranger = Wire::login(&world.postgres.socket(), "stranger", "postgres");
    ok(&mut stranger, "SELECT pg_advisory_lock(hashtextextended('fencegate:scheduler', 0))");
    world.acquire("cron/scheduler", "a");
    assert_eq!(code(&mut stranger, "SELECT 1"), "");
    world.expire();
    world.acquire("cron/scheduler", "b");
    assert_eq!(error_in(&stranger.query("SELECT 1")).expect("it was ended").severity(), "FATAL");
}

/// A writer knows the token before the issuing transaction commits, and there was no epoch before. The writer passes
/// the guard only with the resource's lock.
#[test]
fn a_writer_at_the_first_epoch_holds_the_lock() {
    let world = World::start("a_writer_at_the_first_epoch_holds_the_lock", POLICIES);
    world.postgres.sql(
        "CREATE FUNCTION spin() RETURNS void LANGUAGE plpgsql AS $$BEGIN LOOP BEGIN \
         INSERT INTO public.ticks (note) VALUES (NULL); RETURN; EXCEPTION WHEN SQLSTATE 'LF004' THEN NULL; END; END LOOP; END$$",
    );
    for round in 0..30 {
        world.postgres.sql("DELETE FROM fencegate_state.lease; DELETE FROM fencegate_state.epoch");
        let mut new = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
        ok(&mut new, "BEGIN");
        let token = new.rows("SELECT token FROM fencegate.acquire('cron/scheduler', 'a', '1 minute')").unwrap();
        let mut early = world.session(token[0][0].clone().unwrap().parse().unwrap());
        let pid = process(&mut early);
        ok(&mut early, "BEGIN");
        early.send(&message::query("SELECT spin()"));
        wait_for_process(&world.postgres, &pid, "state = 'active'");
        ok(&mut new, "COMMIT");
        assert_eq!(error_in(&early.read_until_ready()), None);
        let locks =
            format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND locktype = 'advisory' AND objsubid = 1");
        assert_eq!(world.postgres.value(&locks), "1", "round {round}");
    }
}

#[test]
fn a_key_is_fenced_by_its_lease() {
    let world = World::start("a_key_is_fenced_by_its_lease", OF_KEYS);
    let (one, two) = (world.acquire("work/1/of", "a"), world.acquire("work/2/of", "a"));
    world.acquire("work/3", "a");
    world.acquire("work/of", "a");
    assert_eq!(world.epochs(), format!("job/1 {one}, job/2 {two}"));
    let write = |id: i32| format!("INSERT INTO jobs VALUES ({id}, 1)");
    let mut worker = world.session(one);
    assert_eq!(code(&mut worker, &write(1)), "");
    assert_eq!(code(&mut worker, &write(2)), "LF001");
    world.expire();
    let next = world.acquire("work/1/of", "b");
    assert_eq!(code(&mut worker, &write(1)), "LF001");
    assert_eq!(code(&mut world.session(next), &write(1)), "");
}

/// A lease whose name has the form of a key's name, but matches no key, raises no fence.
#[test]
fn a_lease_without_a_key_creates_no_epoch() {
    acquire_leases_without_key("a_lease_without_a_key_creates_no_epoch", Options::default());
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_lease_without_a_key_creates_no_epoch_on_18() {
    let options = Options::default().release(Release::Eighteen);
    acquire_leases_without_key("a_lease_without_a_key_creates_no_epoch_on_18", options);
}

fn acquire_leases_without_key(name: &str, options: Options) {
    let world = World::start_with(name, OF_KEYS, options);
    let too_long = "1".repeat(301);
    let keys = [
        "{}", " 1", "1 ", "ü", "%", "%4", "%zz", "%c3%BC", "%C3%bc", "%41", "%2F", "%C3", "%FF", "%00", "1\n",
        &too_long,
    ];
    for key in keys {
        world.acquire(&format!("work/{key}/of"), "a");
        assert_eq!(world.epochs(), "", "{key:?}");
    }
    let valid =
        ["", "1/2", "%C3%BC", "%20", "a-b_c.d:e"].map(|key| (key, world.acquire(&format!("work/{key}/of"), "a")));
    for (key, token) in valid {
        assert!(
            world.epochs().split(", ").any(|epoch| epoch == format!("job/{key} {token}")),
            "{key:?}: {}",
            world.epochs()
        );
    }
}

#[test]
fn the_guard_knows_the_leases_of_the_policies() {
    let world = World::start("the_guard_knows_the_leases_of_the_policies", POLICIES);
    let leased = || {
        world
            .postgres
            .value("SELECT coalesce(string_agg(resource || ' ' || lease, ', '), '') FROM fencegate_state.leased")
    };
    assert_eq!(leased(), "scheduler cron/scheduler");
    assert!(world.guard("status").lines().any(|line| line.starts_with("(leases)") && line.contains("ok")));
    world.postgres.sql("UPDATE fencegate_state.leased SET lease = 'another'");
    let control = format!("postgres://{SUPERUSER}@127.0.0.1:{}/postgres", world.postgres.port());
    let status = guard("status", &control, Some(&world.folder));
    assert_eq!(status.status.code(), Some(1));
    assert!(
        String::from_utf8(status.stdout)
            .unwrap()
            .lines()
            .any(|it| it.starts_with("(leases)") && it.contains("changed"))
    );
    world.guard("install");
    assert_eq!(leased(), "scheduler cron/scheduler");
    // A fence that only observes rejects no session.
    std::fs::write(world.folder.join("policies.yaml"), POLICIES.replace("tables:", "mode: observe, tables:")).unwrap();
    world.guard("install");
    assert_eq!(leased(), "");
    std::fs::write(world.folder.join("policies.yaml"), POLICIES).unwrap();
    world.guard("install");
    world.guard("remove");
    assert_eq!(leased(), "");
}

const TWO: &str = "version: 1\nresources:\n  - {name: scheduler, lease: cron/scheduler, tables: [public.ticks]}\n  \
    - {name: 'job/{id}', lease: 'work/{id}/of', tables: [{name: public.jobs, key: id}]}\nopaque: allow\n";

/// A session of a role that may lead only jobs. It holds the lock of the other resource while it acquires a lease of
/// its own.
fn acquire_while_holding_another_lock(world: &World, job: u32) -> Wire {
    let mut worker = Wire::login(&world.postgres.address(), "worker", "postgres");
    ok(&mut worker, "SELECT pg_advisory_lock(hashtextextended('fencegate:scheduler', 0))");
    ok(&mut worker, &format!("BEGIN; SELECT * FROM fencegate.acquire('work/{job}/of', 'w', '1 minute')"));
    worker
}

#[test]
fn a_session_that_acquires_another_resources_lease_is_terminated() {
    let world = World::start("a_session_that_acquires_another_resources_lease_is_terminated", TWO);
    world.postgres.sql("CREATE ROLE worker LOGIN");
    ticks::may_lead(&world.postgres, "worker", "work/*");
    let proxy = Proxy::start(&world.postgres, TWO, &[]);
    let first = world.acquire("cron/scheduler", "a");
    let mut worker = acquire_while_holding_another_lock(&world, 1);
    assert_eq!(code(&mut ticks::session(&proxy.address(), first), WRITE), "");
    assert_eq!(error_in(&worker.query("SELECT 1")).expect("it was ended").code(), "57P01");
    let mut worker = acquire_while_holding_another_lock(&world, 2);
    world.expire();
    let second = world.acquire("cron/scheduler", "b");
    assert_eq!(error_in(&worker.query("SELECT 1")).expect("it was ended").code(), "57P01");
    // With only the guard.
    wait_until("the fence is drained", DEADLINE, || world.epochs() == format!("scheduler {second}"));
    let mut worker = acquire_while_holding_another_lock(&world, 3);
    assert_eq!(code(&mut world.session(second), WRITE), "");
    assert_eq!(error_in(&worker.query("SELECT 1")).expect("it was ended").code(), "57P01");
}

/// This also applies to a role that the session's role may become. While the session may still commit, the error names
/// it.
#[test]
fn a_session_that_acquires_the_resources_lease_is_spared_and_named() {
    let world = World::start("a_session_that_acquires_the_resources_lease_is_spared_and_named", TWO);
    world.postgres.sql("CREATE ROLE worker; CREATE ROLE service LOGIN NOINHERIT; GRANT worker TO service");
    for (election, resource, write) in
        [("cron/scheduler", "scheduler", WRITE), ("work/1/of", "job/1", "INSERT INTO jobs VALUES (1)")]
    {
        ticks::may_lead(&world.postgres, "worker", election);
        let proxy = Proxy::start(&world.postgres, TWO, &[]);
        let first = world.acquire(election, "a");
        world.expire();
        let mut service = Wire::login(&world.postgres.address(), "service", "postgres");
        let process = process(&mut service);
        ok(
            &mut service,
            &format!("SET ROLE worker; BEGIN; SELECT * FROM fencegate.acquire('{election}', 'b', '1 minute')"),
        );
        let mut old = ticks::session(&proxy.address(), first);
        let frames = old.query(write);
        let error = error_in(&frames).expect("its lock is held");
        assert_eq!(error.code(), "LF006", "{resource}: {error:?}");
        assert!(error.message().contains(&format!("process {process} of role service")), "{resource}: {error:?}");
        ok(&mut service, "COMMIT");
    }
}
