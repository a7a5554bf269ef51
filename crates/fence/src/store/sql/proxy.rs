//! SQL for server processes (the control connection's own, and processes to terminate) and for proxies: the fences that each
//! enforces.
//!
//! Must never terminate a process that reuses the pid of another, or a process of another database. Must never forget a lost
//! proxy immediately, because its sessions may continue.

use super::FRAGMENTS;
use super::epoch::is_called;
use super::{Prepared, numbers};
use crate::session::Epoch;
use crate::store::{GRACE, Key};
use fencegate_policy::{QualifiedName, Resource};
use fencegate_postgres::sql::{array, arrays, quote};
use fencegate_postgres::sql_file::Value::{Number, Part, Sql, Text};
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
    let starts = array("numeric", own.iter().map(|(_, start)| start.as_str()));
    sql_file!("proxy/other_sessions.sql").with(&[("pids", Sql(&pids)), ("starts", Sql(&starts))])
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

/// First Query of a new control connection: its settings, then the probe.
pub fn open(synchronous_commit: &str) -> String {
    let grace = Number(i64::try_from(GRACE.as_millis()).unwrap_or(i64::MAX));
    sql_file!("process/open.sql").with(&[("synchronous_commit", Sql(synchronous_commit)), ("grace", grace)])
}

/// The connection's own server process and its start.
pub fn own() -> String {
    sql_file!("process/own.sql").with(&[])
}

/// A row for each of these server processes of this database that has not ended.
pub fn alive(processes: &[(String, String)]) -> String {
    sql_file!("process/alive.sql").with(&[("processes", Sql(&pairs(processes)))])
}

/// The processes for `is_one_of.sql`.
pub(super) fn pairs(processes: &[(String, String)]) -> String {
    processes.iter().map(|(pid, start)| format!(", ({pid}, {}::numeric)", quote(start))).collect()
}

/// One row: the grants and privileges that this role lacks. Can be executed without any of them.
pub fn privileges() -> String {
    sql_file!("process/privileges.sql").with(&[])
}

/// Terminates one server process, if it still has the same start.
pub fn end_process(pid: &str, backend_start: &str) -> String {
    sql_file!("process/end_process.sql").with(&[("pid", Sql(pid)), ("backend_start", Text(backend_start))])
}

/// Terminates those of the processes that still have the same start, are in this database, and that this role may signal.
/// Does nothing if the current epoch is below the bound. Spares a process whose own proxy has released it since: the process
/// may hold a newer admission.
pub fn terminate(processes: &[Key], resource: &str, bound: Epoch) -> String {
    TERMINATE.execute(&[
        &numbers("integer", processes.iter().map(|(pid, _)| pid)),
        &array("numeric", processes.iter().map(|(_, start)| start.as_str())),
        &quote(resource),
        &bound.generation.to_string(),
        &bound.token.to_string(),
    ])
}

pub(super) const TERMINATE: Prepared = Prepared::new("terminate", || sql_file!("process/terminate.sql").with(&[]));

/// The open transactions of this database, including prepared ones. Includes transactions without a lock on the relation,
/// because they may still take it, for example in a function that sleeps.
pub fn open_transactions() -> String {
    sql_file!("process/open_transactions.sql").with(&[])
}
