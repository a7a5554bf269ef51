//! The fenced table `public.ticks`: its server, sessions that present a token, and checks of the commit order.

use super::commit_order::CommitOrder;
use super::postgres::{Options, Postgres, SUPERUSER};
use super::programs::run;
use super::proxy::{Proxy, fencegate};
use super::wait::{DEADLINE, wait_until};
use super::wire::{Address, Fields, Wire, error_in};

pub const TABLE: &str = "public.ticks";

pub const POLICIES: &str = "
version: 1
resources:
  - name: scheduler
    tables: [public.ticks]
";

/// The server stores in `token` the token under which the row is written.
const CREATE_TABLE: &str = "CREATE TABLE ticks (
    id bigint GENERATED ALWAYS AS IDENTITY,
    token bigint DEFAULT fencegate.token('scheduler'),
    note text
)";

/// A leader's write, where its content does not matter.
pub const WRITE: &str = "INSERT INTO ticks (note) VALUES ('tick')";

/// A server with the schema and the table.
pub fn server() -> Postgres {
    let postgres = Postgres::start(Options::default());
    init(&postgres, SUPERUSER);
    postgres
}

/// Creates the schema, owned by `role`, and the table, which all roles may write.
pub fn init(postgres: &Postgres, role: &str) {
    let database = format!("{}postgres", postgres.control_url());
    run(fencegate().args(["init", "--control", &database, "--role", role]));
    postgres.sql(&format!("{CREATE_TABLE}; GRANT ALL ON ticks TO PUBLIC"));
}

/// Permits the role to lead these elections.
pub fn may_lead(postgres: &Postgres, role: &str, elections: &str) {
    let database = format!("{}postgres", postgres.control_url());
    run(fencegate().args(["init", "--control", &database, "--leases-for", role, "--elections", elections]));
}

pub fn proxy(postgres: &Postgres) -> Proxy {
    Proxy::start(postgres, POLICIES, &[])
}

/// A session of the superuser that presents this token from its start.
pub fn session(address: &Address, token: i64) -> Wire {
    session_of(address, SUPERUSER, token)
}

pub fn session_of(address: &Address, user: &str, token: i64) -> Wire {
    let mut wire = Wire::connect(address).expect("the server accepts connections");
    let options = format!("-c lease.fence={token}");
    let frames = wire.start(&[("user", user), ("database", "postgres"), ("options", &options)], "");
    assert_eq!(error_in(&frames), None, "login under token {token}");
    wire
}

/// Runs SQL, which must succeed.
#[track_caller]
pub fn ok(wire: &mut Wire, sql: &str) {
    let frames = wire.query(sql);
    assert_eq!(error_in(&frames), None, "{sql}");
    assert_eq!(frames.last().map(|frame| frame.tag), Some(b'Z'), "{sql}: the session ended");
}

/// Runs SQL, which must fail with this SQLSTATE without ending the session.
#[track_caller]
pub fn refused(wire: &mut Wire, sql: &str, code: &str) -> Fields {
    let frames = wire.query(sql);
    let error = error_in(&frames).unwrap_or_else(|| panic!("{sql}: no error, but {frames:?}"));
    assert_eq!((error.severity(), error.code()), ("ERROR", code), "{sql}: {error:?}");
    assert_eq!(frames.last().map(|frame| frame.tag), Some(b'Z'), "{sql}: the session ended");
    error
}

/// The process id of the session's server process.
pub fn process(wire: &mut Wire) -> String {
    wire.rows("SELECT pg_backend_pid()").unwrap()[0][0].clone().unwrap()
}

/// Waits until the process satisfies this condition on pg_stat_activity.
#[track_caller]
pub fn wait_for_process(postgres: &Postgres, process: &str, condition: &str) {
    let query = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process} AND {condition}");
    wait_until(format!("process {process}: {condition}"), DEADLINE, || postgres.value(&query) == "1");
}

/// Waits until the process has ended, or can commit nothing more.
#[track_caller]
pub fn wait_until_harmless(postgres: &Postgres, process: &str) {
    let harmless = "state IN ('idle', 'idle in transaction (aborted)')";
    let query = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process} AND NOT {harmless}");
    wait_until(format!("process {process} is at an end"), DEADLINE, || postgres.value(&query) == "0");
}

/// The tokens of the rows, in commit order.
pub fn tokens(order: &mut CommitOrder) -> Vec<i64> {
    order.take(TABLE).iter().map(|row| row.number("token")).collect()
}

/// Number of rows that were committed after a row with a higher token.
pub fn out_of_order(tokens: &[i64]) -> usize {
    let mut highest = 0;
    let behind = |token: &&i64| {
        highest = highest.max(**token);
        **token < highest
    };
    tokens.iter().filter(behind).count()
}
