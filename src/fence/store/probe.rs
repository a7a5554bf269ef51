//! Whether control connections can be opened, and do what the fences need of them.
//!
//! Must leave no connection behind: one would be in the way of whoever drops the database.

use super::control::Said;
use super::error::{ControlError, unreachable};
use crate::tls::ControlConfig;
use tokio_postgres::{Client, SimpleQueryMessage};

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
    if in_recovery(&client).await? {
        return Err(ControlError::Standby);
    }
    if needs_schema {
        said.has_schema()?;
        said.has_tables(&client).await?;
    }
    Ok(())
}

/// Nothing can be written, nor anybody admitted.
async fn in_recovery(client: &Client) -> Result<bool, ControlError> {
    let messages = client.simple_query("SELECT pg_is_in_recovery()").await.map_err(unreachable)?;
    let is_true =
        |message: &SimpleQueryMessage| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"));
    Ok(messages.iter().any(is_true))
}
