//! Passwords change while a program runs: each new connection reads the password file.

use crate::support::fenced::init;
use crate::support::guardian::{Folder, Program};
use crate::support::programs::run;
use crate::support::proxy::{BINARY, fencegate};
use crate::support::ticks::{self, POLICIES, WRITE, ok, session_of};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A server that requires a password for the role `warden`, and a password file.
struct World {
    postgres: Postgres,
    folder: Folder,
}

impl World {
    fn start() -> Self {
        let postgres = Postgres::start(Options::default().hba("host all warden all scram-sha-256"));
        postgres.sql("CREATE ROLE warden LOGIN PASSWORD 'first'; CREATE ROLE writer LOGIN");
        let world = Self { postgres, folder: Folder::new("passwords") };
        world.write("first");
        world
    }

    fn file(&self) -> String {
        self.folder.join("pgpass").display().to_string()
    }

    fn write(&self, password: &str) {
        // The file is never incomplete or readable by others.
        let unfinished = self.folder.join("unfinished");
        fs::write(&unfinished, format!("*:*:*:warden:{password}\n")).unwrap();
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&unfinished, self.file()).unwrap();
    }

    fn url(&self) -> String {
        self.postgres.control_url().replace("postgres@", "warden@")
    }

    /// The server accepts only the new password, and the role must reconnect.
    fn rotate_at_server(&self, password: &str) {
        self.postgres.sql(&format!("ALTER ROLE warden PASSWORD '{password}'"));
        self.postgres.sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'warden'");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// A leader with a lease in the database. Waits until it leads.
    fn lead(&self, ttl: &str) -> Program {
        init(&self.postgres, "postgres");
        let database = self.postgres.control_url() + "postgres";
        run(fencegate().args(["init", "--control", &database, "--leases-for", "warden"]));
        let (file, url) = (format!("PGPASSFILE={}", self.file()), self.url() + "postgres");
        let environment = ["env", &file, "RUST_LOG=fencegate=debug", BINARY];
        let lead = ["lead", "--coordinator", &url, "--election", "cron/nightly", "--ttl", ttl, "--", "sleep", "1000"];
        let program = Program::start(&[&environment[..], &lead].concat(), &self.folder.join("log"), "KILL");
        wait_until("it leads", DEADLINE, || self.log().contains("lease_acquired"));
        program
    }

    fn renewals(&self) -> usize {
        self.log().matches("lease_renewed").count()
    }
}

#[test]
fn a_rotated_password_of_the_control_role_needs_no_restart() {
    let world = World::start();
    ticks::init(&world.postgres, "warden");
    let options = ProxyOptions::default().policies(POLICIES).control(&world.url());
    let proxy = Proxy::start_with(&world.postgres, &options.variable("PGPASSFILE", &world.file()));
    ok(&mut session_of(&proxy.address(), "writer", 1), WRITE);
    world.write("second");
    world.rotate_at_server("second");
    let mut next = session_of(&proxy.address(), "writer", 2);
    wait_until("the next leader writes", DEADLINE, || error_in(&next.query(WRITE)).is_none());
}

#[test]
fn a_rotated_password_of_a_leader_needs_no_restart() {
    let world = World::start();
    let _lead = world.lead("9");
    world.write("second");
    world.rotate_at_server("second");
    let before = world.renewals();
    wait_until("the lease is renewed under the new password", DEADLINE, || world.renewals() > before + 1);
    assert!(!world.log().contains("lease_lost"), "{}", world.log());
}

#[test]
fn a_leader_whose_password_is_refused_reports_it() {
    let world = World::start();
    let mut lead = world.lead("6");
    world.rotate_at_server("second");
    assert_eq!(lead.wait(), 75, "{}", world.log());
    let log = world.log();
    let lost = log.lines().find(|line| line.contains("lease_lost")).unwrap_or_else(|| panic!("{log}"));
    assert!(lost.contains("reason=\"refused\"") && lost.contains("password authentication failed"), "{lost}");
}
