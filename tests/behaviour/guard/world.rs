//! A server with fenced tables, the guard on them, and the proxy in front of it.

use crate::support::fenced::code;
use crate::support::postgres::{Options, SUPERUSER};
use crate::support::proxy::{Proxy, fencegate};
use crate::support::wire::error_in;
use crate::support::{Address, Postgres, Wire, ticks};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

pub const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Opaque statements may write as far as the gate is concerned.
pub const POLICIES: &str = "
version: 1
resources:
  - name: scheduler
    tables: [public.ticks, public.parts, public.owned]
    functions: [public.named]
opaque: allow
";

const SCHEMA: &str = "
CREATE TABLE parts (id int, note text) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (1000);
CREATE TABLE owners (id int PRIMARY KEY);
CREATE TABLE owned (id int REFERENCES owners ON DELETE CASCADE);
INSERT INTO owners SELECT generate_series(1, 100);
INSERT INTO owned SELECT generate_series(1, 100);
CREATE FUNCTION unnamed() RETURNS void LANGUAGE sql VOLATILE AS 'INSERT INTO public.ticks (note) VALUES (''function'')';
CREATE FUNCTION named() RETURNS void LANGUAGE sql VOLATILE AS 'INSERT INTO public.ticks (note) VALUES (''named'')';
CREATE PROCEDURE procedure() LANGUAGE sql AS 'INSERT INTO public.ticks (note) VALUES (''procedure'')';
CREATE FUNCTION pass_on() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.unnamed(); RETURN NULL; END';
CREATE TABLE inbox (id int);
CREATE TRIGGER pass_on AFTER INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION pass_on();
CREATE TABLE outbox (id int);
CREATE CONSTRAINT TRIGGER pass_on AFTER INSERT ON outbox DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION pass_on();
CREATE TABLE elsewhere (id int);
CREATE ROLE reader LOGIN;
";

pub struct World {
    // Before the server: fields are dropped in this order.
    pub proxy: Proxy,
    pub postgres: Postgres,
    pub folder: PathBuf,
}

impl World {
    pub fn start(name: &str) -> Self {
        Self::start_with(name, POLICIES, Options::default())
    }

    /// Installs the guard, and puts token 5 in force. `name` must differ between tests.
    pub fn start_with(name: &str, policies: &str, options: Options) -> Self {
        let postgres = Postgres::start(options);
        ticks::init(&postgres, SUPERUSER);
        postgres.sql(SCHEMA);
        let folder = policy_folder(name, policies);
        let world = World { proxy: Proxy::start(&postgres, policies, &[]), postgres, folder };
        world.guard("install");
        let mut leader = world.session(5);
        assert_eq!(code(&mut leader, ticks::WRITE), "");
        world
    }

    /// Runs `fencegate guard`, which must succeed.
    pub fn guard(&self, what: &str) -> Output {
        let output = self.try_guard(what);
        assert!(output.status.success(), "{what}: {output:?}");
        output
    }

    /// Gives the proxy and `guard` these policies.
    pub fn load(&self, policies: &str) {
        fs::write(self.folder.join("policies.yaml"), policies).unwrap();
        self.proxy.write_policies(policies);
        let mut console = Wire::login(&self.proxy.address(), SUPERUSER, "fencegate");
        console.rows("RELOAD").unwrap();
    }

    pub fn try_guard(&self, what: &str) -> Output {
        guard(what, &self.control(SUPERUSER), Some(&self.folder))
    }

    pub fn control(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.postgres.port())
    }

    /// A session through the proxy.
    pub fn session(&self, token: i64) -> Wire {
        ticks::session(&self.proxy.address(), token)
    }

    /// A session around the proxy.
    pub fn around(&self, token: i64) -> Wire {
        ticks::session(&self.postgres.socket(), token)
    }

    /// A summary of all fenced rows.
    pub fn state(&self) -> String {
        self.postgres.value(
            "SELECT concat((SELECT count(*) FROM ticks), ' ', (SELECT count(*) FROM parts), ' ', (SELECT count(*) FROM owned))",
        )
    }
}

pub fn guard(what: &str, control: &str, policies: Option<&Path>) -> Output {
    let mut command = fencegate();
    command.args(["guard", what, "--control", control]);
    if let Some(policies) = policies.filter(|_| what != "remove") {
        command.arg("--policies").arg(policies);
    }
    command.output().unwrap()
}

pub fn policy_folder(name: &str, policies: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guard").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("policies.yaml"), policies).unwrap();
    folder
}

/// A session without a token.
pub fn without_token(address: &Address) -> Wire {
    Wire::login(address, SUPERUSER, "postgres")
}

/// Runs the statements in a transaction. Returns the first error's SQLSTATE, including an error of the COMMIT; empty
/// without an error.
pub fn attempt(session: &mut Wire, level: &str, statements: &[&str]) -> String {
    let begin = format!("BEGIN ISOLATION LEVEL {level}");
    for sql in std::iter::once(begin.as_str()).chain(statements.iter().copied()).chain(["COMMIT"]) {
        let frames = session.query(sql);
        if let Some(error) = error_in(&frames) {
            assert!(!error.code().starts_with("LF") || !error.hint().is_empty(), "the error has a hint: {error:?}");
            code(session, "ROLLBACK");
            return error.code().to_owned();
        }
    }
    String::new()
}
