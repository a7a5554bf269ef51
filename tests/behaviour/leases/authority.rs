//! A policy names a lease: only its token raises the fence, and acquiring it shuts out the old leader immediately.

use crate::metrics::page::get;
use crate::metrics::world::http_address;
use crate::support::postgres::SUPERUSER;
use crate::support::ticks::{self, WRITE, ok, process, refused, session, wait_until_harmless};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Postgres, Proxy, Wire, wait_until};

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, lease: cron/scheduler, tables: [public.ticks]}\n";
const OF_KEYS: &str =
    "version: 1\nresources:\n  - {name: 'job/{id}', lease: 'work/{id}', tables: [{name: public.jobs, key: id}]}\n";

/// Without a proxy or etcd.
struct World(Postgres);

impl World {
    fn start() -> Self {
        let postgres = ticks::server();
        ticks::may_lead(&postgres, SUPERUSER, "*");
        Self(postgres)
    }

    fn proxy(&self) -> Proxy {
        Proxy::start(&self.0, POLICIES, &[])
    }

    /// Acquires a lease of one minute and returns its token.
    fn acquire(&self, election: &str, holder: &str) -> i64 {
        let token = format!("SELECT token FROM fencegate.acquire('{election}', '{holder}', '1 minute')");
        self.0.value(&token).parse().unwrap()
    }

    fn release(&self, election: &str, token: i64) {
        assert_eq!(self.0.value(&format!("SELECT fencegate.release('{election}', {token})")), "t");
    }

    fn expire(&self, election: &str) {
        self.0.sql(&format!(
            "UPDATE fencegate_state.lease SET expires = clock_timestamp() WHERE election = '{election}'"
        ));
    }

    fn epoch(&self, resource: &str) -> String {
        self.0.value(&format!(
            "SELECT coalesce(max(generation || '/' || token || CASE WHEN drained THEN '' ELSE '!' END), 'none') \
             FROM fencegate_state.epoch WHERE resource = '{resource}'"
        ))
    }

    #[track_caller]
    fn wait_for_epoch(&self, resource: &str, epoch: &str) {
        wait_until(format!("the epoch of {resource} is {epoch}"), DEADLINE, || self.epoch(resource) == epoch);
    }

    /// One leader writes in a transaction that stays open and in a session that is then idle. Another acquires the
    /// lease.
    fn deposed(&self, proxies: [&Proxy; 2]) -> ([Wire; 2], i64, i64) {
        let first = self.acquire("cron/scheduler", "a");
        let [mut open, mut idle] = proxies.map(|proxy| session(&proxy.address(), first));
        ok(&mut open, "BEGIN");
        ok(&mut open, WRITE);
        ok(&mut idle, WRITE);
        self.expire("cron/scheduler");
        ([open, idle], first, self.acquire("cron/scheduler", "b"))
    }
}

#[test]
fn only_a_lease_in_force_raises_the_fence() {
    let world = World::start();
    let proxy = world.proxy();
    let unissued = |token: i64, why: &str, detail: &str| {
        let error = refused(&mut session(&proxy.address(), token), WRITE, "LF005");
        assert!(error.message().ends_with(why), "{error:?}");
        assert_eq!(error.detail(), format!("resource=scheduler presented={token}{detail}"));
        assert!(error.hint().contains("fencegate.acquire"), "{error:?}");
    };
    unissued(7, "was not issued: lease cron/scheduler has no leader", "");
    assert_eq!(world.epoch("scheduler"), "none");
    let first = world.acquire("cron/scheduler", "a");
    unissued(first + 1, &format!("the leader of lease cron/scheduler holds {first}"), &format!(" highest={first}"));
    ok(&mut session(&proxy.address(), first), WRITE);

    world.release("cron/scheduler", first);
    let second = world.acquire("cron/scheduler", "b");
    ok(&mut session(&proxy.address(), second), WRITE);
    world.release("cron/scheduler", second);
    // A token in force stays in force: no other leader can exist yet.
    ok(&mut session(&proxy.address(), second), WRITE);
    drop(proxy);

    // No session follows the lease now.
    let third = world.acquire("cron/scheduler", "c");
    world.release("cron/scheduler", third);
    let proxy = world.proxy();
    let error = refused(&mut session(&proxy.address(), third), WRITE, "LF005");
    assert!(error.message().ends_with("is no longer in force: lease cron/scheduler was released"), "{error:?}");
    // The proxy follows the lease as long as it has a session.
    let mut console = Wire::login(&proxy.address(), "postgres", "fencegate");
    wait_until("its session has ended", DEADLINE, || console.rows("SHOW SESSIONS").unwrap().is_empty());
    let fourth = world.acquire("cron/scheduler", "d");
    world.expire("cron/scheduler");
    let error = refused(&mut session(&proxy.address(), fourth), WRITE, "LF005");
    assert!(error.message().ends_with("is no longer in force: lease cron/scheduler has expired"), "{error:?}");
    refused(&mut session(&proxy.address(), third), WRITE, "LF001");
    assert_eq!(world.epoch("scheduler"), format!("1/{second}"));
}

#[test]
fn acquiring_the_lease_shuts_out_the_old_leader() {
    let world = World::start();
    let proxy = world.proxy();
    let ([mut open, mut idle], first, second) = world.deposed([&proxy, &proxy]);
    world.wait_for_epoch("scheduler", &format!("1/{second}"));
    let detail = format!("resource=scheduler presented={first} highest={second}");
    assert_eq!(refused(&mut idle, WRITE, "LF001").detail(), detail);
    let cut_off = error_in(&open.query("COMMIT")).expect("the session was terminated");
    assert!(cut_off.code() == "LF001" && cut_off.detail().starts_with(&detail), "{cut_off:?}");
    assert_eq!(world.0.value("SELECT count(*) FROM ticks"), "1");
}

#[test]
fn through_two_proxies() {
    let world = World::start();
    let (one, other) = (world.proxy(), world.proxy());
    let ([mut open, mut idle], _, second) = world.deposed([&one, &other]);
    world.wait_for_epoch("scheduler", &format!("1/{second}"));
    // Its own proxy ends its admission or, on a busy machine, the other proxy terminates it.
    assert_eq!(error_in(&idle.query(WRITE)).expect("the session is shut out").code(), "LF001");
    assert_eq!(error_in(&open.query("COMMIT")).expect("the session was terminated").code(), "LF001");
}

/// The proxy reads missed changes when it listens again.
#[test]
fn while_the_proxy_could_not_listen() {
    let world = World::start();
    let proxy = world.proxy();
    let first = world.acquire("cron/scheduler", "a");
    let mut old = session(&proxy.address(), first);
    ok(&mut old, WRITE);
    world.release("cron/scheduler", first);
    // This change sends no notification.
    world.0.sql(
        "UPDATE fencegate_state.lease SET token = nextval('fencegate_state.lease_token'), released = false, \
         expires = clock_timestamp() + '1 minute'",
    );
    world.0.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencegate control'");
    let second = world.0.value("SELECT token FROM fencegate_state.lease");
    world.wait_for_epoch("scheduler", &format!("1/{second}"));
    refused(&mut old, WRITE, "LF001");
}

/// Until its transaction commits, the token is invisible to other sessions. A session that renews in the transaction
/// that writes need not wait.
#[test]
fn a_transaction_renews_and_writes_but_does_not_acquire_and_write() {
    let world = World::start();
    let proxy = world.proxy();
    let mut wire = Wire::login(&proxy.address(), "postgres", "postgres");
    ok(&mut wire, "BEGIN");
    let token = wire.rows("SELECT token FROM fencegate.acquire('cron/scheduler', 'a', '1 minute')").unwrap();
    let token = token[0][0].clone().unwrap();
    ok(&mut wire, &format!("SET LOCAL lease.fence = {token}"));
    refused(&mut wire, WRITE, "LF005");
    ok(&mut wire, "ROLLBACK");
    let token = world.acquire("cron/scheduler", "a");
    ok(&mut wire, &format!("BEGIN; SET LOCAL lease.fence = {token}"));
    ok(&mut wire, &format!("SELECT fencegate.renew('cron/scheduler', {token}, '1 minute')"));
    ok(&mut wire, WRITE);
    ok(&mut wire, "COMMIT");
}

#[test]
fn a_key_has_a_lease_of_its_own() {
    let world = World::start();
    world.0.sql("CREATE TABLE jobs (id int, n int)");
    let proxy = Proxy::start(&world.0, OF_KEYS, &[]);
    let (seven, eight) = (world.acquire("work/7", "a"), world.acquire("work/8", "b"));
    let mut worker = session(&proxy.address(), seven);
    let write = |id: i32| format!("INSERT INTO jobs VALUES ({id}, 1)");
    ok(&mut worker, &write(7));
    refused(&mut worker, &write(8), "LF001");
    ok(&mut session(&proxy.address(), eight), &write(8));
    let pid = process(&mut worker);
    ok(&mut worker, "BEGIN");
    ok(&mut worker, &write(7));
    world.release("work/7", seven);
    let next = world.acquire("work/7", "c");
    world.wait_for_epoch("job/7", &format!("1/{next}"));
    wait_until_harmless(&world.0, &pid);
    assert_eq!(error_in(&worker.query("COMMIT")).expect("the session was terminated").code(), "LF001");
    assert_eq!(world.epoch("job/8"), format!("1/{eight}"));
}

#[test]
fn operators_see_the_leases() {
    let world = World::start();
    let proxy = Proxy::start(&world.0, POLICIES, &["--http", "127.0.0.1:0"]);
    let mut console = Wire::login(&proxy.address(), "postgres", "fencegate");
    let shown = |console: &mut Wire, command: &str, columns: &[usize]| -> Vec<String> {
        let rows = console.rows(command).unwrap();
        rows.iter()
            .map(|row| columns.iter().map(|it| row[*it].clone().unwrap()).collect::<Vec<_>>().join(" "))
            .collect()
    };
    let first = world.acquire("cron/scheduler", "node-a");
    let mut leader = session(&proxy.address(), first);
    ok(&mut leader, WRITE);
    let of_leases = format!("postgres cron/scheduler {first} in force node-a postgres");
    assert_eq!(shown(&mut console, "SHOW LEASES", &[0, 1, 2, 3, 4, 5]), [of_leases.as_str()]);
    let of_fences = format!("lease cron/scheduler {first} {first} leads");
    assert_eq!(shown(&mut console, "SHOW FENCES", &[3, 5, 8, 9]), [of_fences]);
    let has = |value: &str| {
        let line = format!("fencegate_lease_token{{database=\"postgres\",lease=\"cron/scheduler\"}} {value}");
        get(http_address(|| proxy.log()), "/metrics").body.lines().any(|it| it == line)
    };
    wait_until("its token is counted", DEADLINE, || has(&first.to_string()));

    let above = format!("FENCE RESET scheduler TO {}", first + 5);
    let error = error_in(&console.query(&above)).unwrap();
    assert!(error.code() == "55006" && error.message().contains("the leader of lease cron/scheduler"), "{error:?}");
    console.rows(&format!("{above} FORCE")).unwrap();
    wait_until("tokens have gone back", DEADLINE, || {
        refused(&mut leader, WRITE, "LF001").message().starts_with("tokens have gone back: the leader of lease")
    });
    console.rows(&format!("FENCE RESET scheduler TO {first} FORCE")).unwrap();
    ok(&mut leader, WRITE);

    // Expiry is not announced.
    world.expire("cron/scheduler");
    assert_eq!(shown(&mut console, "SHOW LEASES", &[2, 3]), [format!("{first} expired")]);
    wait_until("there is no leader", DEADLINE, || has("0"));
    world.0.sql("UPDATE fencegate_state.lease SET released = true");
    assert_eq!(shown(&mut console, "SHOW LEASES", &[2, 3]), [format!("{first} released")]);
}
