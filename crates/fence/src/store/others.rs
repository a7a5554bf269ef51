//! Compares policies with those in force: the policies recorded in the database, and those that live proxies enforce.
//!
//! Must never change anything.

use super::sql;
use fencegate_policy::Resource;
use fencegate_postgres::sql::{column, is_true, query_rows};
use std::sync::Arc;
use tokio_postgres::Client;

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
