//! SQL for proxies: the fences that each proxy enforces.
//!
//! Must never forget a lost proxy immediately, because its sessions may continue.

use super::FRAGMENTS;
use super::epoch::is_called;
use super::prepared::{numbers, texts};
use crate::store::Key;
use fencegate_policy::{QualifiedName, Resource};
use fencegate_postgres::sql::{arrays, quote};
use fencegate_postgres::sql_file::Value::{Part, Sql, Text};
use fencegate_postgres::sql_file::fill;
use std::sync::Arc;

/// Publishes the fences that this proxy enforces. Deletes the rows of proxies that were lost long ago, and lost rows of other
/// databases.
pub fn announce_enforced(proxy: &str, fingerprints: &[String]) -> String {
    sql_file!("proxy/announce_enforced.sql")
        .with(&[("proxy", Text(proxy)), ("fingerprints", Sql(&list(fingerprints.iter().map(String::as_str))))])
}

/// Deletes the row of this proxy, which has no more sessions here.
pub fn leave(proxy: &str) -> String {
    sql_file!("proxy/leave.sql").with(&[("proxy", Text(proxy))])
}

/// One row: whether a client is connected to this database, apart from these sessions and any proxy's control connections.
/// A lost proxy that still has sessions has such a client.
pub fn other_sessions(own: &[Key]) -> String {
    let pids = numbers("integer", own.iter().map(|(pid, _)| pid));
    let starts = texts("numeric", own.iter().map(|(_, start)| start.as_str()));
    sql_file!("proxy/other_sessions.sql").with(&[
        ("pids", Sql(&pids)),
        ("starts", Sql(&starts)),
        ("process", Sql("s")),
        ("role", Sql("t")),
    ])
}

/// Disagreements between these policies and those in force, one per row: resources whose epochs have other policies
/// recorded, and live proxies that enforce a fence outside these policies.
pub fn other_policies(resources: &[Arc<Resource>]) -> String {
    let recorded = |it: &Arc<Resource>| {
        let of_keys = it.keyed.as_ref().map(|keyed| is_called(&keyed.names));
        let is_it = of_keys.as_deref().map_or(Part("e.resource = :'resource'"), Sql);
        let values = [("resource", Text(&it.name)), ("policy", Text(&it.fingerprint)), ("is_it", is_it)];
        fill(":recorded_policy", FRAGMENTS, &values).text + " "
    };
    let recorded: String = resources.iter().map(recorded).collect();
    sql_file!("proxy/other_policies.sql").with(&[
        ("recorded", Sql(&recorded)),
        ("fingerprints", Sql(&list(resources.iter().map(|it| it.fingerprint.as_str())))),
    ])
}

/// One row: whether this role may read the tables that [`other_policies`] reads.
pub fn may_know_policies() -> String {
    sql_file!("proxy/may_know_policies.sql").with(&[])
}

/// For each fence with one of these fingerprints: the numbers of proxies, of lost proxies, and of live proxies that enforce
/// the fence. The second statement's rows are the tables that do not exist.
pub fn enforcement(fingerprints: &[&str], tables: &[&QualifiedName]) -> String {
    let [schemas, names] = arrays(tables.iter().copied());
    sql_file!("proxy/enforcement.sql").with(&[
        ("fingerprints", Sql(&list(fingerprints.iter().copied()))),
        ("schemas", Sql(&schemas)),
        ("names", Sql(&names)),
    ])
}

/// A list of literals.
fn list<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.map(quote).collect::<Vec<_>>().join(", ")
}
