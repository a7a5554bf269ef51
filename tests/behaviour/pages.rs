//! README, guide and the page on leases are correct: a new user can follow them in order. Tests run the commands as
//! written, with the ports of temporary servers.

use crate::support::page::Reader;
use crate::support::{Etcd, Options, Postgres};
use std::fs;

#[test]
fn every_command_runs_and_prints_the_documented_output() {
    let postgres = Postgres::start(Options::default());
    let etcd = Etcd::start();
    let reader = Reader::new(&postgres, Some(etcd.url()));
    for page in ["README.md", "docs/guide.md", "docs/leases.md"] {
        reader.follow(page);
    }
    let value = |database: &str, query: &str| postgres.sql_in(database, query)[0][0].clone().unwrap();
    assert_eq!(value("app", "SELECT run_by FROM ticks"), "node-b");
    let picture = fs::read_to_string(reader.folder.join("timeline.svg")).unwrap();
    for text in [">C</text>", "LF001: UPDATE, ticks, token 1: the highest is 2", "LF002: UPDATE, ticks, no token"] {
        assert!(picture.contains(text), "{text} in {picture}");
    }
    let leases = "SELECT string_agg(election || ' ' || token || ' ' || released, ', ' ORDER BY token) FROM fencegate_state.lease";
    assert_eq!(value("leases", leases), "cron/scheduler 1 true, cron/nightly 2 false, cron/reports 3 true");
    assert_eq!(value("leases", "SELECT count(*) FROM reports"), "1");
}
