//! SQL for locks on resources and on their relations, and for the holders of these locks.
//!
//! Owns the keys of advisory locks; `guard.sql` uses the same keys. Must never overlook a relation that other sessions cannot
//! see yet.

use super::prepared::{Prepared, numbers};
use fencegate_policy::Resource;
use fencegate_postgres::sql::{arrays, quote};
use fencegate_postgres::sql_file::Value::{Part, Sql, Text};
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

/// Takes those of several resources' locks that are free.
pub(super) const TRY: Prepared =
    Prepared::new("try_locks", || sql_file!("lock/try_locks.sql").with(&[("name", Sql("n"))]));

/// The subset of the processes that hold one of these locks on the resource's relations.
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
        ("process", Sql("s")),
        ("role", Sql("t")),
    ])
}

/// The name whose hash is the key of the resource's lock.
pub(super) fn lock_name(resource: &str) -> String {
    format!("fencegate:{resource}")
}
