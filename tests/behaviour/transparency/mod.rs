//! No client can tell the proxy from the server: the same sessions, made by chance, go to two servers that started
//! alike, to one of them through a proxy, and everything that comes back is compared byte for byte.
//!
//! Longer: `FENCEGATE_TRANSPARENCY_SECONDS=600 cargo test --test transparency -- --nocapture`, which starts with a
//! seed of its own and prints it. To repeat: `FENCEGATE_TRANSPARENCY_SEED=…` in place of it, or with it.

mod copy;
mod dice;
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
use crate::support::{Options, Postgres, Proxy, Release, Wire, proxy};
use sides::{Counts, Side, compare};
use sql::Scope;
use std::time::{Duration, Instant};

const SCHEMA: &str = include_str!("schema.sql");
const FENCED: &str = "version: 1\nresources:\n  - {name: ledger, tables: [public.ledger]}\n";

/// In `cargo test`.
const SESSIONS: u64 = 60;

#[test]
fn nothing_is_fenced() {
    differential(Release::Installed, proxy::NO_POLICIES, Scope::Everything, 1, SESSIONS);
}

#[test]
fn what_can_be_judged() {
    differential(Release::Installed, FENCED, Scope::Judged, 2, SESSIONS);
}

#[test]
fn what_cannot_be_judged_and_is_allowed() {
    differential(Release::Installed, &format!("{FENCED}opaque: allow\n"), Scope::Everything, 3, SESSIONS);
}

#[test]
fn postgres_18() {
    differential(Release::Eighteen, FENCED, Scope::Judged, 4, SESSIONS / 2);
}

/// Plays sessions on both sides, each after the other.
fn differential(release: Release, policies: &str, scope: Scope, seed: u64, sessions: u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seconds = number("FENCEGATE_TRANSPARENCY_SECONDS").map(Duration::from_secs);
    let seed = number("FENCEGATE_TRANSPARENCY_SEED").unwrap_or(match seconds {
        Some(_) => u64::from(std::process::id()) * 1_000_000,
        None => seed * 1_000_000,
    });
    println!("first seed: {seed}");
    let [first, second] = [start(release), start(release)];
    let proxy = Proxy::start(&second, policies, &[]);
    let direct = Side { postgres: &first, address: first.address() };
    let proxied = Side { postgres: &second, address: proxy.address() };
    let (begin, mut counts) = (Instant::now(), Counts::default());
    for number in 0.. {
        if seconds.map_or(number >= sessions, |seconds| begin.elapsed() >= seconds) {
            break;
        }
        compare(&talk::session(seed + number, scope), &direct, &proxied, &mut counts);
    }
    println!("{counts} in {:?}", begin.elapsed());
}

/// A server in the state in which all of them start, down to the numbers that it will give to new objects.
fn start(release: Release) -> Postgres {
    let postgres = Postgres::start(settings(release));
    postgres.sql(SCHEMA);
    init(&postgres, "postgres");
    // A schema for temporary tables is made once for each process slot: here, for as many as there will be.
    let mut wires: Vec<Wire> = (0..30).map(|_| Wire::login(&postgres.address(), "postgres", "postgres")).collect();
    for wire in &mut wires {
        crate::support::fenced::ok(wire, "CREATE TEMP TABLE first (t text)");
    }
    postgres
}

/// Nothing happens at a time of its own, and rows come in the order in which they lie.
fn settings(release: Release) -> Options {
    Options::default()
        .release(release)
        .setting("autovacuum", "off")
        .setting("synchronize_seqscans", "off")
        .setting("max_parallel_workers_per_gather", "0")
        .setting("jit", "off")
}
