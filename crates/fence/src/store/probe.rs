//! Checks before policies are put in force: whether control connections can be opened and meet the needs of the fences, and
//! whether other live proxies enforce other policies.
//!
//! Must never change anything, or leave a connection open, because it would block DROP DATABASE.

use super::common::blockers;
use super::control::Probed;
use super::{StoreError, engine, sql};
use fencegate_policy::Resource;
use fencegate_postgres::sql::{answers, column, is_true, query_rows, rows, text};
use fencegate_postgres::tls::ControlConfig;
use std::sync::Arc;
use tokio_postgres::Client;

/// The purpose of a control connection. Each purpose includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A server that accepts writes, and a role with the privileges on it that the fences need.
    Server,
    /// The schema, and the privileges of the role in it.
    Schema,
    /// The tables of the schema, without blocking locks.
    Tables,
}

/// Opens a connection as the fence does, checks the need, and closes the connection. Has no time limit of its own. Cancel-safe:
/// the connection is closed.
///
/// # Errors
/// Why the fence could not use the connection.
pub async fn probe(config: &ControlConfig, need: Need) -> Result<(), StoreError> {
    let client = config.client().await.map_err(|error| StoreError::on_connect(config, error))?;
    let probed = Probed::of(config, &client, "off").await;
    // `fencegate init` has checked a server that has the schema.
    if probed.as_ref().map_or(true, |probed| probed.has_schema().is_err()) {
        engine::check(&client).await?;
    }
    let probed = probed?;
    probed.is_of_primary(config)?;
    probed.may_fence()?;
    let mut question = "SELECT pg_is_in_recovery() AS recovering".to_owned();
    if need >= Need::Tables {
        question = format!("{question}; {}", sql::lock::all());
    }
    let answers = answers(client.simple_query(&question).await.map_err(|error| StoreError::on_opening(config, error))?);
    if rows(&answers).any(|row| is_true(row, "recovering")) {
        return Err(StoreError::Standby);
    }
    if need >= Need::Schema {
        probed.has_schema()?;
        probed.has_privileges()?;
    }
    let holders = blockers(answers.get(1..).unwrap_or_default());
    if holders.is_empty() { Ok(()) } else { Err(StoreError::TablesLocked(holders)) }
}

/// The names of the server's databases to which this role may connect. Has no time limit of its own. Cancel-safe.
pub async fn databases(config: &ControlConfig) -> Result<Vec<String>, StoreError> {
    list(config, true).await
}

/// The names of the databases for which this role lacks CONNECT. Has no time limit of its own. Cancel-safe.
pub async fn closed_databases(config: &ControlConfig) -> Result<Vec<String>, StoreError> {
    list(config, false).await
}

async fn list(config: &ControlConfig, may_connect: bool) -> Result<Vec<String>, StoreError> {
    let failed = |error| StoreError::on_opening(config, error);
    let client = config.client().await.map_err(failed)?;
    let names = format!(
        "SELECT datname FROM pg_catalog.pg_database WHERE datallowconn AND NOT datistemplate \
         AND pg_catalog.has_database_privilege(oid, 'CONNECT') = {may_connect} ORDER BY 1"
    );
    let rows = query_rows(&client, &names).await.map_err(failed)?;
    Ok(rows.iter().filter_map(|row| text(row, "datname")).collect())
}

/// Descriptions of the differences between these policies and those in force. Empty if they agree, if no policies are in
/// force, or if the role may not read them. The database must have the schema `fencegate`. Cancel-safe.
///
/// # Errors
/// The server refused the query.
pub async fn other_policies(
    client: &Client,
    resources: &[Arc<Resource>],
) -> Result<Vec<String>, tokio_postgres::Error> {
    let may = query_rows(client, &sql::proxy::may_know_policies()).await?;
    if !may.iter().any(|row| is_true(row, "may")) {
        return Ok(Vec::new());
    }
    let rows = query_rows(client, &sql::proxy::other_policies(resources)).await?;
    let difference = |row| match (column(row, "resource"), column(row, "proxy")) {
        (Some(resource), _) => Some(format!("different policies of resource {resource} are in force")),
        (None, Some(proxy)) => Some(format!("proxy {proxy} enforces a fence that these policies do not have")),
        (None, None) => None,
    };
    Ok(rows.iter().filter_map(difference).collect())
}
