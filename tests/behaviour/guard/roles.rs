//! Which role may install which part of the guard. The command prints the other steps.

use super::command::{stderr, stdout};
use super::world::{guard, policy_folder};
use crate::support::guardian::Folder;
use crate::support::postgres::{Options, SUPERUSER};
use crate::support::proxy::fencegate;
use crate::support::{Postgres, programs, ticks};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const POLICIES: &str = "version: 1\nresources: [{name: r, tables: [public.jobs, public.ticks]}]\n";

/// `control` owns the schema. `owner` and `worker` own a fenced table each.
struct Roles {
    postgres: Postgres,
    policies: PathBuf,
    scripts: Folder,
}

impl Roles {
    fn start(name: &str) -> Self {
        let postgres = Postgres::start(Options::default());
        postgres.sql("CREATE ROLE control LOGIN; CREATE ROLE owner LOGIN; CREATE ROLE worker LOGIN");
        ticks::init(&postgres, "control");
        postgres.sql("CREATE TABLE jobs (id int); ALTER TABLE jobs OWNER TO worker; ALTER TABLE ticks OWNER TO owner");
        Roles { postgres, policies: policy_folder(name, POLICIES), scripts: Folder::new("scripts") }
    }

    fn guard(&self, what: &str, role: &str) -> Output {
        let control = format!("postgres://{role}@127.0.0.1:{}/postgres", self.postgres.port());
        guard(what, &control, Some(&self.policies))
    }

    /// Runs the printed script as this role.
    fn run(&self, printed: &Output, role: &str) -> Output {
        let script = self.scripts.join("script.sql");
        fs::write(&script, &printed.stdout).unwrap();
        let mut psql = Command::new(programs::postgres_program("psql"));
        programs::for_address(&mut psql, &self.postgres.address(), "postgres");
        psql.env("PGUSER", role).arg("-Xqf").arg(&script).output().unwrap()
    }
}

/// The first line of the output, and the exit code.
fn said(output: &Output) -> (String, Option<i32>) {
    (stdout(output).lines().next().unwrap_or_default().to_owned(), output.status.code())
}

#[test]
fn each_role_installs_its_part() {
    let roles = Roles::start("each_role_installs_its_part");
    let output = roles.guard("install", "owner");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("only a superuser or control, the owner of the schema fencegate"), "{output:?}");

    let output = roles.guard("install", "control");
    assert_eq!(said(&output), ("-- guard: 0 of 8 triggers on 2 tables, 1 change".into(), Some(1)), "{output:?}");
    assert!(stderr(&output).contains("warning: there are no event triggers"), "{output:?}");
    // Each owner's part is one transaction, and changes nothing of the other's.
    assert!(stderr(&roles.run(&output, "worker")).contains("must be owner of table ticks"));
    let output = roles.guard("install", "control");
    assert_eq!(said(&output), ("-- guard: 4 of 8 triggers on 2 tables, 0 changes".into(), Some(1)));
    let ran = roles.run(&output, "owner");
    assert_eq!(stderr(&ran), "");
    for role in ["control", "owner", "worker", SUPERUSER] {
        let status = roles.guard("status", role);
        assert_eq!(status.status.code(), Some(0), "{role}: {status:?}");
        let line = stdout(&status).lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(line.starts_with("(event triggers) none definitions that bypass the proxies"), "{line}");
    }
    assert_eq!(roles.postgres.try_sql("postgres", ticks::WRITE).unwrap_err().code(), "LF002");

    // The functions exist, so an owner needs no other role for its own table.
    roles.postgres.sql("ALTER TABLE ticks DISABLE TRIGGER USER");
    let output = roles.guard("install", "owner");
    assert_eq!(said(&output), ("guard: 8 triggers on 2 tables, 4 changes".into(), Some(0)), "{output:?}");
}

#[test]
fn event_triggers_are_required_once_created() {
    let roles = Roles::start("event_triggers_are_required_once_created");
    let output = roles.guard("install", SUPERUSER);
    assert_eq!(said(&output), ("guard: 8 triggers on 2 tables, 18 changes".into(), Some(0)), "{output:?}");
    roles.postgres.sql("ALTER EVENT TRIGGER fencegate_guard_drop DISABLE");
    assert_eq!(roles.guard("status", "owner").status.code(), Some(1));
    let output = roles.guard("install", "owner");
    assert_eq!(said(&output), ("-- guard: 8 triggers on 2 tables, 0 changes".into(), Some(1)), "{output:?}");
    let ran = roles.run(&output, SUPERUSER);
    assert!(ran.status.success() && !stderr(&ran).contains("ERROR"), "{ran:?}");
    assert_eq!(roles.guard("status", "owner").status.code(), Some(0));

    roles.postgres.sql("DROP EVENT TRIGGER fencegate_guard_drop; DROP EVENT TRIGGER fencegate_guard_definition");
    assert_eq!(roles.guard("status", "owner").status.code(), Some(1));
    let output = roles.guard("install", SUPERUSER);
    assert_eq!(said(&output), ("guard: 8 triggers on 2 tables, 1 change".into(), Some(0)), "{output:?}");
}

/// Grants that `init` may not run are printed as a script too.
#[test]
fn steps_that_init_may_not_run() {
    let roles = Roles::start("steps_that_init_may_not_run");
    roles.postgres.sql("GRANT CREATE ON DATABASE postgres TO control; REVOKE pg_signal_backend FROM control");
    let control = format!("postgres://control@127.0.0.1:{}/postgres", roles.postgres.port());
    let init = || fencegate().args(["init", "--control", &control]).output().unwrap();
    let output = init();
    assert_eq!(said(&output), ("-- schema fencegate: up to date, owned by control".into(), Some(1)), "{output:?}");
    let ran = roles.run(&output, SUPERUSER);
    assert_eq!((stderr(&ran).as_str(), ran.status.code()), ("", Some(0)));
    assert_eq!(said(&init()), ("schema fencegate: up to date, owned by control".into(), Some(0)));
}
