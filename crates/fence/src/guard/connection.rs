//! The connection over which the guard is read and changed.

use super::error::GuardError;
use fencegate_postgres::sql::query_rows;
use fencegate_postgres::tls::ControlConfig;
use tokio_postgres::{Client, SimpleQueryRow};

/// The settings that `init` and every control connection use too: the role's own settings have no effect.
const SETTINGS: &str = "SET standard_conforming_strings = on; SET search_path = pg_catalog; \
     SET default_transaction_isolation = 'read committed'; SET synchronous_commit = on";

/// A connection, which ends when the client is dropped.
pub(super) async fn open(config: &ControlConfig) -> Result<Client, GuardError> {
    let (client, connection) = config.connect().await.map_err(GuardError::Connect)?;
    tokio::spawn(connection);
    run(&client, "set up the session", SETTINGS).await?;
    Ok(client)
}

pub(super) async fn run(client: &Client, what: &str, sql: &str) -> Result<(), GuardError> {
    refused(what, client.batch_execute(sql).await)
}

pub(super) fn refused<T>(what: &str, result: Result<T, tokio_postgres::Error>) -> Result<T, GuardError> {
    result.map_err(|source| GuardError::Refused(what.to_owned(), source))
}

pub(super) async fn rows(client: &Client, what: &str, query: &str) -> Result<Vec<SimpleQueryRow>, GuardError> {
    refused(what, query_rows(client, query).await)
}
