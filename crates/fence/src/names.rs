//! Reads which tables and functions of the policies exist in databases. Any role that can connect may run it.
//!
//! Must never leave a connection open, because it would block DROP DATABASE.

use super::store::{StoreError, databases, is_no_database};
use fencegate_catalog::{DatabaseNames, NamesFound, PolicyNames};
use fencegate_policy::PolicySet;
use fencegate_postgres::sql::{message, query_rows};
use fencegate_postgres::tls::ControlConfig;
use futures_util::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::timeout;

/// Time limit for one database, and for the list of databases.
const LIMIT: Duration = Duration::from_secs(5);
/// Number of databases that are read at the same time.
const AT_ONCE: usize = 4;
/// Maximum number of databases that are read if the policies name none. `known` databases come first.
const MOST_DATABASES: usize = 100;

/// Reads the names of all these sets in each database to which one of the sets applies: those under `databases`, or all
/// databases of the server. `known` databases are read first. Cancel-safe: connections are closed.
///
/// # Errors
/// The databases of the server cannot be listed.
pub async fn read_names(
    control: impl Fn(&str) -> ControlConfig,
    sets: &[&PolicySet],
    listing: &str,
    known: &BTreeSet<String>,
) -> Result<BTreeMap<String, DatabaseNames>, StoreError> {
    let named = sets.iter().filter_map(|set| set.databases.as_ref()).flatten().cloned();
    let mut databases: BTreeSet<String> = named.collect();
    if sets.iter().any(|set| set.databases.is_none()) {
        let all = list(&control(listing)).await?;
        let (first, others): (Vec<String>, Vec<String>) = all.into_iter().partition(|it| known.contains(it));
        databases.extend(first.into_iter().chain(others).take(MOST_DATABASES));
    }
    Ok(read_names_in(control, sets, databases).await)
}

/// Reads the names in these databases. Cancel-safe: connections are closed.
pub async fn read_names_in(
    control: impl Fn(&str) -> ControlConfig,
    sets: &[&PolicySet],
    databases: BTreeSet<String>,
) -> BTreeMap<String, DatabaseNames> {
    let question = PolicyNames::of(sets).question();
    let reads = databases.into_iter().map(|database| {
        let (config, question) = (control(&database), &question);
        async move {
            let names = timeout(LIMIT, read(&config, question)).await;
            let no_answer = |_| DatabaseNames::Unread(StoreError::TimedOut(LIMIT).to_string());
            let names = names.unwrap_or_else(no_answer);
            (database, names)
        }
    });
    stream::iter(reads).buffer_unordered(AT_ONCE).collect().await
}

async fn list(config: &ControlConfig) -> Result<Vec<String>, StoreError> {
    timeout(LIMIT, databases(config)).await.unwrap_or(Err(StoreError::TimedOut(LIMIT)))
}

async fn read(config: &ControlConfig, question: &str) -> DatabaseNames {
    let unread = |error: tokio_postgres::Error| DatabaseNames::Unread(message(&error));
    let (client, connection) = match config.connect().await {
        Ok(connected) => connected,
        Err(error) if is_no_database(&error) => return DatabaseNames::NoDatabase,
        Err(error) => return unread(error),
    };
    // Ends when the client is dropped.
    tokio::spawn(connection);
    let settings = "SET standard_conforming_strings = on; SET application_name = 'fencegate control'; \
        SET search_path = pg_catalog; SET jit = off; SET statement_timeout = '5s'";
    match query_rows(&client, &format!("{settings}; {question}")).await {
        Ok(rows) => DatabaseNames::Found(NamesFound::read(&rows)),
        Err(error) => unread(error),
    }
}
