//! Whether control connections can be opened, and do what the fences need of them.
//!
//! Must leave no connection behind: it would block DROP DATABASE.

use super::control::Said;
use super::table_lock::blockers;
use super::{StoreError, sql};
use crate::sql::{answers, is_true, query_rows, rows, text};
use crate::tls::ControlConfig;

/// The purpose of a control connection. Each purpose includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A server that takes writes, and a role that may use it as the fences do.
    Server,
    /// The schema, and the privileges of the role in it.
    Schema,
    /// Its tables, which nobody has locked.
    Tables,
}

/// Opens a connection as the fence does, checks what is needed, and closes it. Without a limit of its own on time. Cancel-safe: the
/// connection is closed. The error says why the fence could not use it.
pub async fn probe(config: &ControlConfig, need: Need) -> Result<(), StoreError> {
    let (client, connection) = config.connect().await.map_err(|error| StoreError::on_connect(config, error))?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    let said = Said::of(config, &client, "off").await?;
    said.may_fence()?;
    let mut question = "SELECT pg_is_in_recovery() AS recovering".to_owned();
    if need >= Need::Tables {
        question = format!("{question}; {}", sql::table_lock::all());
    }
    let answers = answers(client.simple_query(&question).await.map_err(|error| StoreError::on_opening(config, error))?);
    if rows(&answers).any(|row| is_true(row, "recovering")) {
        return Err(StoreError::Standby);
    }
    if need >= Need::Schema {
        said.has_schema()?;
        said.has_privileges()?;
    }
    let holders = blockers(answers.get(1..).unwrap_or_default());
    if holders.is_empty() { Ok(()) } else { Err(StoreError::TablesLocked(holders)) }
}

/// The databases of the server that take connections of this role, by name. Without a limit of its own on time. Cancel-safe.
pub async fn databases(config: &ControlConfig) -> Result<Vec<String>, StoreError> {
    list(config, true).await
}

/// The databases for which this role lacks CONNECT, by name. Without a limit of its own on time. Cancel-safe.
pub async fn closed_databases(config: &ControlConfig) -> Result<Vec<String>, StoreError> {
    list(config, false).await
}

async fn list(config: &ControlConfig, may_connect: bool) -> Result<Vec<String>, StoreError> {
    let failed = |error| StoreError::on_opening(config, error);
    let (client, connection) = config.connect().await.map_err(failed)?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    let names = format!(
        "SELECT datname FROM pg_catalog.pg_database WHERE datallowconn AND NOT datistemplate \
         AND pg_catalog.has_database_privilege(oid, 'CONNECT') = {may_connect} ORDER BY 1"
    );
    let rows = query_rows(&client, &names).await.map_err(failed)?;
    Ok(rows.iter().filter_map(|row| text(row, "datname")).collect())
}
