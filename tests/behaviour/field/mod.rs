//! Known failures of locks, leases and proxies. Each is shown with a naive baseline, and prevented by fencegate.
//! docs/internals/known-failures.md has a row for each, with its public reference.

mod elections;
mod proxies;
mod tokens;
mod writes;

use crate::support::commit_order::take_inserted;
use crate::support::programs::run;
use crate::support::ticks::{self, out_of_order};
use crate::support::{Address, Postgres, Proxy, Via};
use std::process::Command;

/// The tokens of the deposed leader and of its successor.
const OLD: i64 = 7;
const NEW: i64 = 8;

/// A server with the table `public.ticks`, and the proxy if the route uses one.
struct Field {
    // Before the server: fields are dropped in this order.
    proxy: Option<Proxy>,
    postgres: Postgres,
}

impl Field {
    fn start(via: Via) -> Self {
        let postgres = ticks::server();
        let proxy = (via == Via::Proxy).then(|| ticks::proxy(&postgres));
        Self { proxy, postgres }
    }

    fn address(&self) -> Address {
        self.proxy.as_ref().map_or_else(|| self.postgres.address(), Proxy::address)
    }
}

/// The tokens of the rows that a scenario commits, in commit order.
fn commits(via: Via, scenario: fn(&mut Field)) -> Vec<i64> {
    let mut field = Field::start(via);
    field.postgres.sql("SELECT pg_create_logical_replication_slot('field', 'test_decoding')");
    scenario(&mut field);
    let rows = take_inserted(&field.postgres, "postgres", "field", ticks::TABLE);
    rows.iter().map(|row| row.number("token")).collect()
}

/// Without a comparison of tokens in the database, the stale write is committed.
#[track_caller]
fn lands(scenario: fn(&mut Field)) {
    let tokens = commits(Via::Direct, scenario);
    assert!(out_of_order(&tokens) > 0, "{tokens:?}");
}

/// The stale write is not committed, but the successor's is.
#[track_caller]
fn is_kept_out(scenario: fn(&mut Field)) {
    let tokens = commits(Via::Proxy, scenario);
    assert_eq!(out_of_order(&tokens), 0, "{tokens:?}");
    assert!(tokens.contains(&NEW), "{tokens:?}");
}

#[test]
fn tests_named_in_the_table_exist() {
    let listed = run(Command::new(std::env::current_exe().unwrap()).arg("--list")).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let table =
        include_str!("../../../docs/internals/known-failures.md").lines().filter_map(|line| line.strip_suffix("` |"));
    let commands = table.filter_map(|row| Some(row.rsplit_once('`')?.1));
    let filters: Vec<&str> = commands.filter(|command| !command.contains(' ')).collect();
    assert!(filters.len() >= 10, "{filters:?}");
    let missing: Vec<_> =
        filters.iter().filter(|filter| !listed.lines().any(|test| test.starts_with(**filter))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
