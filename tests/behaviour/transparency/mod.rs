//! No client can distinguish the proxy from the server: the same random sessions run on two identical servers, one of
//! them behind a proxy, and all responses are compared byte for byte.

mod copy;
mod newer;
mod pipeline;
mod query;
mod session;
mod sides;
mod sql;
mod start;
mod talk;
mod values;

use crate::support::fenced::init;
use crate::support::{Options, Postgres, Proxy, Release, Wire, length, proxy};
use sides::{Counts, Side, compare};
use sql::Scope;
use std::time::Instant;

const SCHEMA: &str = include_str!("schema.sql");
const FENCED: &str = "version: 1\nresources:\n  - {name: ledger, tables: [public.ledger]}\n";

fn sessions() -> u64 {
    length(6, 60)
}

#[test]
fn nothing_is_fenced() {
    differential(Release::Installed, proxy::NO_POLICIES, Scope::Everything, 1, sessions());
}

#[test]
fn judged_statements() {
    differential(Release::Installed, FENCED, Scope::Judged, 2, sessions());
}

#[test]
fn opaque_statements_that_are_allowed() {
    differential(Release::Installed, &format!("{FENCED}opaque: allow\n"), Scope::Everything, 3, sessions());
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn postgres_18() {
    differential(Release::Eighteen, FENCED, Scope::Judged, 4, sessions() / 2);
}

/// Runs the sessions on both sides, one after the other.
fn differential(release: Release, policies: &str, scope: Scope, seed: u64, sessions: u64) {
    let seed = crate::support::seed() * 100_000_000 + seed * 1_000_000;
    let [first, second] = [start(release), start(release)];
    let proxy = Proxy::start(&second, policies, &[]);
    let direct = Side { postgres: &first, address: first.address() };
    let proxied = Side { postgres: &second, address: proxy.address() };
    let (begin, mut counts) = (Instant::now(), Counts::default());
    for number in 0..sessions {
        compare(&talk::session(seed + number, scope), &direct, &proxied, &mut counts);
    }
    println!("{counts} in {:?}", begin.elapsed());
}

/// A server in the common initial state. New objects will receive the same OIDs on each server.
fn start(release: Release) -> Postgres {
    let postgres = Postgres::start(settings(release));
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    // The server creates a temporary schema once for each process slot. Creates them for all slots that the sessions
    // need.
    let mut wires: Vec<Wire> = (0..30).map(|_| Wire::login(&postgres.address(), "postgres", "postgres")).collect();
    for wire in &mut wires {
        crate::support::fenced::ok(wire, "CREATE TEMP TABLE first (t text)");
    }
    postgres
}

/// No background activity, and rows are returned in physical order.
fn settings(release: Release) -> Options {
    Options::default()
        .unused()
        .release(release)
        .setting("autovacuum", "off")
        .setting("synchronize_seqscans", "off")
        .setting("max_parallel_workers_per_gather", "0")
        .setting("jit", "off")
}
