//! SQL for server processes: the control connection's own, and processes to terminate.
//!
//! Must never terminate a process that reuses the pid of another, or a process of another database.

use super::prepared::{Prepared, numbers, texts};
use crate::session::Epoch;
use crate::store::{GRACE, Key};
use fencegate_postgres::sql::quote;
use fencegate_postgres::sql_file::Value::{Number, Sql, Text};

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
        &texts("numeric", processes.iter().map(|(_, start)| start.as_str())),
        &quote(resource),
        &bound.generation.to_string(),
        &bound.token.to_string(),
    ])
}

pub(super) const TERMINATE: Prepared = Prepared::new("terminate", || {
    sql_file!("process/terminate.sql").with(&[("process", Sql("s")), ("role", Sql("t"))])
});

/// The open transactions of this database, including prepared ones. Includes transactions without a lock on the relation,
/// because they may still take it, for example in a function that sleeps.
pub fn open_transactions() -> String {
    sql_file!("process/open_transactions.sql").with(&[])
}
