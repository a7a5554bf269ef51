//! Whether control connections can be opened, and do what the fences need of them.
//!
//! Must leave no connection behind: it would block DROP DATABASE.

use super::control::Said;
use super::error::{ControlError, unreachable};
use crate::sql::{is_true, query_rows};
use crate::tls::ControlConfig;

/// Opens a connection as the fence does, checks its role, that the server takes writes, and where fences need them the schema
/// and what the role may do in it, and closes it. Without a limit of its own on time. Cancel-safe: the connection is closed.
/// The error says why the fence could not use it.
pub async fn probe(config: &ControlConfig, needs_schema: bool) -> Result<(), String> {
    check(config, needs_schema).await.map_err(|error| error.to_string())
}

async fn check(config: &ControlConfig, needs_schema: bool) -> Result<(), ControlError> {
    let (client, connection) = config.connect().await.map_err(unreachable)?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    let said = Said::of(&client, "off").await?;
    said.has_privileges()?;
    let recovery = query_rows(&client, "SELECT pg_is_in_recovery() AS recovering").await.map_err(unreachable)?;
    if recovery.iter().any(|row| is_true(row, "recovering")) {
        return Err(ControlError::Standby);
    }
    if needs_schema {
        said.has_schema()?;
        said.has_tables(&client).await?;
    }
    Ok(())
}
