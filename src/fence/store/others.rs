//! Whether policies are those in force: what the database has recorded, and what live proxies enforce.
//!
//! Must never change anything.

use super::sql;
use crate::policy::Resource;
use crate::sql::{column, is_true, query_rows};
use std::sync::Arc;
use tokio_postgres::Client;

/// What these policies and those in force differ in, in words; empty if they agree, nothing is in force, or the role may not
/// read what is. The database has the schema `fencegate`. Cancel-safe.
///
/// # Errors
/// The server refused to tell.
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
        (Some(resource), _) => Some(format!("other policies of resource {resource} are in force")),
        (None, Some(proxy)) => Some(format!("proxy {proxy} enforces a fence that these policies do not have")),
        (None, None) => None,
    };
    Ok(rows.iter().filter_map(difference).collect())
}
