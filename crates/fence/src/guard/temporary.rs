//! Temporary objects of other sessions that depend on fencegate's functions, which PUBLIC may execute: views, defaults,
//! triggers.
//!
//! Owns finding these objects, and terminating the sessions that prevent them from being dropped. Must never terminate
//! a session that holds no lock on a temporary object of its own.

use super::connection::rows;
use super::error::GuardError;
use fencegate_postgres::sql::{column, is_true};
use fencegate_postgres::sql_file::Value::Sql;
use tokio_postgres::Client;

/// The processes that hold locks on temporary objects in a schema with such a dependent: only the session that owns the
/// schema uses these objects. With `ends`, terminates the processes that this role may terminate. Returns them; empty
/// if there are none.
pub(super) async fn end_holders(client: &Client, ends: bool) -> Result<String, GuardError> {
    let query = sql_file!("sql/end_temporary_holders.sql").with(&[
        ("ends", Sql(if ends { "true" } else { "false" })),
        ("process", Sql("a")),
        ("role", Sql("t")),
    ]);
    let mut found = Vec::new();
    for row in &rows(client, "find the lock holders", &query).await? {
        let [pid, role, application] = ["pid", "role", "application"].map(|name| column(row, name).unwrap_or_default());
        if is_true(row, "signalled") {
            tracing::warn!(pid, role, application, "temporary_holder_ended");
        }
        found.push(format!("process {pid} of role {role}, on a temporary object that depends on fencegate"));
    }
    Ok(found.join("; "))
}
