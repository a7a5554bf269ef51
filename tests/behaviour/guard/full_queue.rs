//! With a full notification queue, which any role that can connect may cause, takeovers, leases and definitions
//! continue. On PostgreSQL 18 the queue is really full. On older servers, whose queue holds 8 GB, the tests replace two
//! server functions to simulate a full queue, in which NOTIFY fails at COMMIT.

use super::world::{guard, policy_folder};
use crate::metrics::page::{get, samples, sum};
use crate::metrics::world::http_address;
use crate::support::fenced::{code, ok};
use crate::support::frozen::Frozen;
use crate::support::postgres::SUPERUSER;
use crate::support::ticks::{self, WRITE};
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Release, Wire, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};

const POLICIES: &str = "version: 1
resources:
  - {name: scheduler, tables: [public.ticks]}
  - {name: reports, lease: cron/reports, tables: [public.reports]}
";

/// Renamed, because a server calls its own functions by OID.
const REPLACED: &str = "
CREATE TABLE sent (n int);
CREATE FUNCTION too_many() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = 'too many notifications in the NOTIFY queue'; END$$;
CREATE CONSTRAINT TRIGGER too_many AFTER INSERT ON sent DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION too_many();
ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO pg_notify_before;
ALTER FUNCTION pg_catalog.pg_notification_queue_usage() RENAME TO pg_notification_queue_usage_before;
CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.sent VALUES (1)';
CREATE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS double precision LANGUAGE sql AS 'SELECT 0.25::double precision';
";
const NOW_FULL: &str = "CREATE OR REPLACE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS double precision \
    LANGUAGE sql AS 'SELECT 0.75::double precision'";

struct World {
    // Before the server: fields are dropped in this order.
    proxies: [Proxy; 2],
    postgres: Postgres,
}

impl World {
    /// `prepare` runs before the proxies start.
    fn start(options: Options, prepare: &str) -> Self {
        let postgres = Postgres::start(options);
        ticks::init(&postgres, SUPERUSER);
        ticks::may_lead(&postgres, SUPERUSER, "*");
        postgres.sql("CREATE TABLE reports (n int); CREATE ROLE stranger LOGIN");
        postgres.sql(prepare);
        let options = ProxyOptions::default().policies(POLICIES).arguments(&["--http", "127.0.0.1:0"]);
        let proxies = [(); 2].map(|()| Proxy::start_with(&postgres, &options));
        World { proxies, postgres }
    }

    fn install_guard(&self, name: &str) {
        let control = format!("postgres://{SUPERUSER}@127.0.0.1:{}/postgres", self.postgres.port());
        let installed = guard("install", &control, Some(&policy_folder(name, POLICIES)));
        assert!(installed.status.success(), "{installed:?}");
    }

    /// A session through the first or the second proxy.
    fn session(&self, proxy: usize, token: i64) -> Wire {
        ticks::session(&self.proxies[proxy].address(), token)
    }

    fn metric(&self, proxy: usize, name: &str, labels: &[(&str, &str)]) -> f64 {
        sum(&samples(&get(http_address(|| self.proxies[proxy].log()), "/metrics").body), name, labels)
    }

    /// A new leader replaces a session of each proxy; the second proxy, which was not notified, detects it as well.
    fn take_over(&self) {
        let mut idle = Wire::login(&self.proxies[1].address(), SUPERUSER, "postgres");
        ok(&mut idle, "SELECT 1");
        let [mut old, mut elsewhere] = [0, 1].map(|proxy| self.session(proxy, 5));
        for session in [&mut old, &mut elsewhere] {
            assert_eq!(code(session, WRITE), "");
        }
        assert_eq!(code(&mut self.session(0, 6), WRITE), "");
        for session in [&mut old, &mut elsewhere] {
            assert_eq!(code(session, WRITE), "LF001");
        }
        assert_eq!(code(&mut self.session(0, 7), WRITE), "");
        wait_until("the other proxy has read the epoch", DEADLINE, || {
            self.metric(1, "fencegate_fence_token", &[("resource", "scheduler")]) == 7.0
        });
        let mut console = Wire::login(&self.proxies[0].address(), SUPERUSER, "fencegate");
        ok(&mut console, "FENCE RESET scheduler TO 3");
        assert_eq!(code(&mut self.session(0, 3), WRITE), "");
        wait_until("the other proxy has read the reset", DEADLINE, || code(&mut self.session(1, 3), WRITE).is_empty());
    }

    /// Runs statements that notify, or would.
    fn define_and_lead(&self) {
        let mut session = Wire::login(&self.postgres.socket(), SUPERUSER, "postgres");
        for statement in ["CREATE TABLE t (n int)", "DROP TABLE t"] {
            assert_eq!(code(&mut session, statement), "", "{statement}");
        }
        let acquire =
            |holder: &str| format!("SELECT token FROM fencegate.acquire('cron/reports', '{holder}', '1 minute')");
        for holder in ["a", "b"] {
            let token = session.rows(&acquire(holder)).unwrap().remove(0).remove(0).unwrap();
            for call in [
                format!("proclaim('cron/reports', {token}, 'another')"),
                format!("renew('cron/reports', {token}, '1 minute')"),
                format!("release('cron/reports', {token})"),
            ] {
                assert_eq!(code(&mut session, &format!("SELECT fencegate.{call}")), "", "{call}");
            }
        }
        assert_eq!(code(&mut session, "SELECT fencegate.prune('0', 'reports')"), "");
    }

    fn wait_for_usage(&self, is_right: impl Fn(f64) -> bool) {
        let _open = Wire::login(&self.proxies[0].address(), SUPERUSER, "postgres");
        wait_until("the usage is measured", DEADLINE, || {
            is_right(self.metric(0, "fencegate_notification_queue_usage", &[]))
        });
    }
}

/// The queue has become full since the last check.
#[test]
fn takeovers_go_on_while_notify_fails() {
    let world = World::start(Options::default().unused(), REPLACED);
    world.take_over();
    world.wait_for_usage(|usage| usage == 0.25);
}

/// A transaction with NOTIFY holds a lock of the server until its COMMIT is replicated.
#[test]
fn takeovers_do_not_wait_for_notifications() {
    let world = World::start(Options::default().unused(), "");
    let mut stranger = Wire::login(&world.postgres.socket(), "stranger", "postgres");
    let pid = stranger.rows("SELECT pg_backend_pid()").unwrap().remove(0).remove(0).unwrap();
    let replicate = |to: &str| {
        world.postgres.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{to}'"));
        world.postgres.sql("SELECT pg_reload_conf()");
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stranger, is_done) = (&mut stranger, &is_done);
        scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                stranger.query("NOTIFY x");
            }
        });
        let waits = format!("SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = {pid}");
        let mut look = Wire::login(&world.postgres.socket(), SUPERUSER, "postgres");
        replicate("nobody");
        wait_until("its COMMIT waits", DEADLINE, || look.rows(&waits).unwrap()[0][0].as_deref() == Some("t"));
        is_done.store(true, Ordering::Relaxed);
        let _frozen = Frozen::processes([pid.as_str()]);
        replicate("");
        world.take_over();
    });
}

#[test]
fn a_full_queue_blocks_nothing() {
    let world = World::start(Options::default().unused(), &format!("{REPLACED}{NOW_FULL}"));
    world.install_guard("a_full_queue_blocks_nothing");
    world.take_over();
    world.define_and_lead();
    world.wait_for_usage(|usage| usage == 0.75);
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_full_queue_blocks_nothing_on_18() {
    let options = Options::default().release(Release::Eighteen).setting("max_notify_queue_pages", "64");
    let world = World::start(options, "");
    world.install_guard("a_full_queue_blocks_nothing_on_18");
    let [mut deaf, mut flood] = [(); 2].map(|()| Wire::login(&world.postgres.socket(), "stranger", "postgres"));
    ok(&mut deaf, "LISTEN x");
    ok(&mut deaf, "BEGIN; SELECT 1");
    let notify = "SELECT pg_notify('x', n || repeat('x', 7000)) FROM generate_series(1, 8) n";
    wait_until("the queue is full", DEADLINE, || code(&mut flood, notify) == "54000");
    world.take_over();
    world.define_and_lead();
    world.wait_for_usage(|usage| usage > 0.9);
    ok(&mut deaf, "ROLLBACK");
    world.wait_for_usage(|usage| usage < 0.1);
}
