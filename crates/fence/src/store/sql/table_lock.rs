//! SQL for locks on fencegate's own tables. PUBLIC cannot name these tables, so a holder acts for a superuser or the owner.
//!
//! Must never terminate a process that was not named before, that belongs to fencegate, or that does not block the control
//! process.

use super::process::pairs;
use crate::store::DESCRIBED;
use fencegate_postgres::sql_file::Value::{self, Count, Part, Sql, Text};

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
    let values = [described, ("key", Part(":init_key")), ("process", Sql("a")), ("role", Sql("t"))];
    sql_file!("table_lock/holders.sql").with(&[which, &values].concat())
}
