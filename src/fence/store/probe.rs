//! Whether control connections can be opened, and do what the fences need of them.
//!
//! Must leave no connection behind: it would block DROP DATABASE.

use super::control::Said;
use super::error::{ControlError, not_connected, unreachable};
use crate::fence::Cause;
use crate::sql::{is_true, query_rows, text};
use crate::tls::ControlConfig;

/// Opens a connection as the fence does, checks its role, that the server takes writes, and where fences need them the schema
/// and what the role may do in it, and closes it. Without a limit of its own on time. Cancel-safe: the connection is closed.
/// The error says why the fence could not use it.
pub async fn probe(config: &ControlConfig, needs_schema: bool) -> Result<(), Cause> {
    check(config, needs_schema).await.map_err(Cause::from)
}

/// The databases of the server that take connections of this role, by name. Without a limit of its own on time. Cancel-safe.
pub async fn databases(config: &ControlConfig) -> Result<Vec<String>, String> {
    list(config, true).await
}

/// The databases for which this role lacks CONNECT, by name. Without a limit of its own on time. Cancel-safe.
pub async fn closed_databases(config: &ControlConfig) -> Result<Vec<String>, String> {
    list(config, false).await
}

async fn list(config: &ControlConfig, may_connect: bool) -> Result<Vec<String>, String> {
    let (client, connection) = config.connect().await.map_err(|error| unreachable(error).to_string())?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    let names = format!(
        "SELECT datname FROM pg_catalog.pg_database WHERE datallowconn AND NOT datistemplate \
         AND pg_catalog.has_database_privilege(oid, 'CONNECT') = {may_connect} ORDER BY 1"
    );
    let rows = query_rows(&client, &names).await.map_err(|error| unreachable(error).to_string())?;
    Ok(rows.iter().filter_map(|row| text(row, "datname")).collect())
}

async fn check(config: &ControlConfig, needs_schema: bool) -> Result<(), ControlError> {
    let (client, connection) = config.connect().await.map_err(|error| not_connected(config, error))?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    let said = Said::of(&client, "off").await?;
    said.may_fence()?;
    let recovery = query_rows(&client, "SELECT pg_is_in_recovery() AS recovering").await.map_err(unreachable)?;
    if recovery.iter().any(|row| is_true(row, "recovering")) {
        return Err(ControlError::Standby);
    }
    if needs_schema {
        said.has_schema()?;
        said.has_privileges()?;
    }
    Ok(())
}
