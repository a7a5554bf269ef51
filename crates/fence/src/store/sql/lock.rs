//! SQL for locks on resources, on their relations and on fencegate's own tables, for the lock of `init`, and for the holders of
//! these locks.
//!
//! Owns the keys of advisory locks; `guard.sql` uses the same keys. Must never
//! - overlook a relation that other sessions cannot see yet;
//! - terminate a process that may be a fencegate command, that was not named before, or that does not block the control process.

use super::proxy::pairs;
use super::{Prepared, numbers};
use crate::store::DESCRIBED;
use fencegate_policy::Resource;
use fencegate_postgres::sql::{arrays, quote};
use fencegate_postgres::sql_file::Value::{self, Count, Part, Sql, Text};
use std::time::Duration;

/// Takes the lock that `init`, `remove` and every change of the guard hold, until the transaction ends, so that these changes
/// wait for one another. Any role can take the lock.
pub const INIT_LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('fencegate {init}', 0))";

/// Takes the resource's lock, shared.
pub(super) const SHARE: Prepared =
    Prepared::new("share_lock", || sql_file!("lock/share_lock.sql").with(&[("name", Sql("$1"))]));

/// Takes the resource's lock exclusively.
pub(super) const TAKE: Prepared =
    Prepared::new("take_lock", || sql_file!("lock/take_lock.sql").with(&[("name", Sql("$1"))]));

/// Takes the free ones among the locks of several resources.
pub(super) const TRY: Prepared =
    Prepared::new("try_locks", || sql_file!("lock/try_locks.sql").with(&[("name", Sql("n"))]));

/// Takes the free ones among the locks of several resources, shared.
pub(super) const TRY_SHARED: Prepared =
    Prepared::new("try_locks_shared", || sql_file!("lock/try_locks_shared.sql").with(&[("name", Sql("n"))]));

/// The subset of the processes that hold a lock for writes or for locking rows on the resource's relations.
pub fn lockers(resource: &Resource, pids: &[i32]) -> String {
    let [schemas, tables] = arrays(resource.tables.iter().map(|table| &table.name));
    // The tables that a function has written are unknown: any write counts.
    let any_write = (!resource.functions.is_empty()).to_string();
    LOCKERS.execute(&[&schemas, &tables, &numbers("integer", pids), &any_write])
}

pub(super) const LOCKERS: Prepared =
    Prepared::new("lockers", || sql_file!("lock/lockers.sql").with(&[("modes", Part(":write_or_row_locks"))]));

/// The current epoch, if the guard has permitted a write to the resource in the open transaction of this process.
pub fn guarded_write(resource: &Resource, pid: i32) -> String {
    GUARDED_WRITE.execute(&[&quote(&resource.name), &pid.to_string(), &quote(resource.lock_name())])
}

pub(super) const GUARDED_WRITE: Prepared = Prepared::new("guarded_write", || {
    sql_file!("lock/guarded_write.sql").with(&[("key", Part(":resource_key")), ("name", Sql("$1"))])
});

/// Makes the Query fail with 55P03 once it has waited for a lock for `limit`. Adds one result, before the others.
pub fn with_lock_timeout(limit: Duration, query: &str) -> String {
    format!("SET LOCAL lock_timeout = {}; {query}", limit.as_millis())
}

/// Terminates the processes that block the control process: holders of the resource's lock, and processes ahead of it that
/// wait for the exclusive lock. The second statement's rows are prepared transactions.
pub fn end_blockers(resource: &str, (control_pid, control_start): (&str, &str)) -> String {
    sql_file!("lock/end_blockers.sql").with(&[
        ("control_pid", Sql(control_pid)),
        ("control_start", Text(control_start)),
        ("resource", Text(resource)),
        ("key", Part("hashtextextended(:'lock_name', 0)")),
        ("lock_name", Text(&lock_name(resource))),
    ])
}

/// The name whose hash is the key of the resource's lock.
pub(super) fn lock_name(resource: &str) -> String {
    format!("fencegate:{resource}")
}

/// The processes that hold the lock or wait for it, holders first. With `ends`, terminates those that cannot be commands. The
/// second statement's rows are prepared transactions that hold the lock.
pub fn holders(ends: bool) -> String {
    sql_file!("init_lock/holders.sql").with(&[("key", Part(":init_key")), ("ends", Sql(&ends.to_string()))])
}

/// The processes that hold a lock that conflicts with those of control connections on a table of fencegate, or wait for one.
/// The second statement's rows are the prepared transactions. At most [`DESCRIBED`] of each.
pub fn all() -> String {
    query(&[("awaited", Sql("true")), ("blocks", Sql("true")), ("is_named", Sql("false"))])
}

/// The processes that block the control process while it waits for a table of fencegate. Terminates those that were named
/// before. Never terminates `init`, `remove` and changes of the guard: they hold their locks briefly and give up by themselves.
///
/// The control process is identified by its pid and its start, because another process may reuse the pid.
pub fn blocking((control_pid, control_start): (&str, &str), named: &[(String, String)]) -> String {
    query(&[
        ("awaited", Part(":control_awaits")),
        ("blocks", Part(":control_is_blocked")),
        ("is_named", Part(":is_one_of")),
        ("control_pid", Sql(control_pid)),
        ("control_start", Text(control_start)),
        ("processes", Sql(&pairs(named))),
    ])
}

fn query(which: &[(&str, Value)]) -> String {
    let described = ("described", Count(DESCRIBED));
    let values = [described, ("key", Part(":init_key"))];
    sql_file!("table_lock/holders.sql").with(&[which, &values].concat())
}
