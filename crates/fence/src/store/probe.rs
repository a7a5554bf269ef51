//! Queries over connections of their own. Before policies are put in force, they determine whether control connections can be opened
//! and meet the needs of the fences, whether the protocol works with the server's engine, and whether other live proxies enforce
//! other policies. For operators, they report the coverage of policies in a database, and which of their tables and functions exist.
//! Any role that can connect may run the latter.
//!
//! Decides about the engine by trying each feature; its name is only for the message. Must never change anything, or leave a
//! connection open, because it would block DROP DATABASE.

use super::common::blockers;
use super::error::{UnsuitableEngine, is_no_database};
use super::probed::Probed;
use super::{StoreError, sql};
use fencegate_catalog::{
    Catalog, CatalogError, DatabaseNames, Dependencies, Explanation, Fenced, NamesFound, PolicyNames, Views,
    database_and_functions, explanation, functions_that_mention, most_rows, question, question_of_dependencies,
};
use fencegate_policy::{PolicySet, Resource};
use fencegate_postgres::sql::{StatementResult, answers, column, is_true, message, query_rows, rows, text};
use fencegate_postgres::tls::ControlConfig;
use futures_util::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

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
        check_engine(&client).await?;
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

/// Returns true if the server reports that the database does not exist. Returns false if the server does not answer in time.
/// Cancel-safe.
pub async fn is_missing(config: &ControlConfig) -> bool {
    matches!(timeout(LIMIT, config.connect()).await, Ok(Err(error)) if is_no_database(&error))
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

/// Why policies cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// No connection.
    #[error("cannot connect: {}", message(.0))]
    Connect(#[source] tokio_postgres::Error),
    /// The server refused.
    #[error("cannot read the catalog: {}", message(.0))]
    Refused(#[source] tokio_postgres::Error),
    /// The catalog cannot be understood.
    #[error("cannot read the catalog: {0}")]
    Catalog(#[from] CatalogError),
}

/// Reads what the policies cover in the database of `config`. Cancel-safe.
///
/// # Errors
/// The database cannot be queried, or its catalog cannot be decoded.
pub async fn explain(config: &ControlConfig, policies: &PolicySet) -> Result<Explanation, ExplainError> {
    let client = config.client().await.map_err(ExplainError::Connect)?;
    ask(&client, "SET standard_conforming_strings = on; SET search_path = pg_catalog; SET jit = off").await?;
    let fences = Fenced(&policies.resources);
    let asked = question(fences, None, Views::Reported);
    let answers = match ask(&client, &asked).await {
        Ok(answers) => answers,
        // A view is being altered. Treat all views as writable.
        Err(_) => ask(&client, &question(fences, None, Views::AllWritable)).await?,
    };
    let catalog = Catalog::read(&answers, most_rows(None))?;
    let answers = ask(&client, &question_of_dependencies(fences)).await?;
    let dependencies = Dependencies::read(&answers)?;
    let answers = ask(&client, &database_and_functions(policies)).await?;
    let mentions = ask(&client, &functions_that_mention(policies)).await?;
    Ok(explanation(policies, &catalog, &dependencies, &answers, &mentions))
}

async fn ask(client: &Client, query: &str) -> Result<Vec<StatementResult>, ExplainError> {
    client.simple_query(query).await.map(answers).map_err(ExplainError::Refused)
}

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
        let all = list_in_time(&control(listing)).await?;
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

async fn list_in_time(config: &ControlConfig) -> Result<Vec<String>, StoreError> {
    timeout(LIMIT, databases(config)).await.unwrap_or(Err(StoreError::TimedOut(LIMIT)))
}

async fn read(config: &ControlConfig, question: &str) -> DatabaseNames {
    let unread = |error: tokio_postgres::Error| DatabaseNames::Unread(message(&error));
    let client = match config.client().await {
        Ok(client) => client,
        Err(error) if is_no_database(&error) => return DatabaseNames::NoDatabase,
        Err(error) => return unread(error),
    };
    let settings = "SET standard_conforming_strings = on; SET application_name = 'fencegate control'; \
        SET search_path = pg_catalog; SET jit = off; SET statement_timeout = '5s'";
    match query_rows(&client, &format!("{settings}; {question}")).await {
        Ok(rows) => DatabaseNames::Found(NamesFound::read(&rows)),
        Err(error) => unread(error),
    }
}

/// The key of the advisory lock that is tried, in shared mode.
const LOCK: &str = "7236839146501";

/// Each feature, and a query with the column `works`.
///
/// Some engines accept advisory locks and ignore them, so `pg_locks` has to show the lock. The catalog's rows cannot be
/// locked by most roles: their error shows that the server knows FOR SHARE.
fn features() -> [(&'static str, String); 6] {
    [
        (
            "pg_stat_activity with backend_start",
            "SELECT count(*) = 1 AS works FROM pg_catalog.pg_stat_activity \
             WHERE pid = pg_catalog.pg_backend_pid() AND backend_start IS NOT NULL"
                .to_owned(),
        ),
        ("pg_terminate_backend", "SELECT pg_catalog.pg_terminate_backend(NULL) IS NULL AS works".to_owned()),
        (
            "advisory locks",
            format!(
                "SELECT pg_catalog.pg_advisory_xact_lock_shared({LOCK}); \
                 SELECT count(*) > 0 AS works FROM pg_catalog.pg_locks \
                 WHERE locktype = 'advisory' AND granted AND pid = pg_catalog.pg_backend_pid()"
            ),
        ),
        (
            "SELECT … FOR SHARE",
            "SELECT count(*) = 0 AS works FROM (SELECT 1 FROM pg_catalog.pg_class WHERE false FOR SHARE) locked"
                .to_owned(),
        ),
        ("the system column ctid", "SELECT count(ctid) > 0 AS works FROM pg_catalog.pg_database".to_owned()),
        (
            "pg_control_system",
            "SELECT system_identifier IS NOT NULL AS works FROM pg_catalog.pg_control_system()".to_owned(),
        ),
    ]
}

/// Engines that name themselves in `version()`, by a part of it.
const NAMES: [(&str, &str); 3] =
    [("CockroachDB", "CockroachDB"), ("-YB-", "YugabyteDB"), ("Redshift", "Amazon Redshift")];
/// Maximum length of an unknown engine's version in the message, in characters.
const LONGEST_VERSION: usize = 60;

/// Tries each feature. Ignores a lost connection and errors with another cause. Has no time limit of its own.
/// Cancel-safe.
///
/// # Errors
/// The engine lacks a feature.
pub(super) async fn check_engine(client: &Client) -> Result<(), UnsuitableEngine> {
    let mut lacking = Vec::new();
    for (feature, query) in features() {
        let works = match client.simple_query(&query).await.map(answers) {
            Ok(answers) => rows(&answers).any(|row| is_true(row, "works")),
            Err(error) => !error.code().is_some_and(is_unknown),
        };
        if !works {
            lacking.push(feature);
        }
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let version = client.simple_query("SELECT version() AS version").await.map(answers).unwrap_or_default();
    let version = rows(&version).find_map(|row| text(row, "version")).unwrap_or_default();
    Err(UnsuitableEngine { engine: name(&version), lacking })
}

/// Errors of a server that does not know a part of the query.
fn is_unknown(code: &SqlState) -> bool {
    [
        SqlState::SYNTAX_ERROR,
        SqlState::FEATURE_NOT_SUPPORTED,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_OBJECT,
        SqlState::INVALID_SCHEMA_NAME,
    ]
    .contains(code)
}

fn name(version: &str) -> String {
    let known = NAMES.iter().find(|(part, _)| version.contains(part));
    known.map_or_else(
        || {
            let version = version.chars().filter(|it| !it.is_control()).take(LONGEST_VERSION).collect::<String>();
            format!("this server ({version})")
        },
        |(_, name)| (*name).to_owned(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fencegate_postgres::sql::column;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_postgres::{Config, NoTls};

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[tag], &length.to_be_bytes()[..], body].concat()
    }

    /// The result if the server accepts the login and sends this answer.
    async fn answered(answer: Vec<u8>) -> Result<Vec<StatementResult>, ExplainError> {
        let (mut server, stream) = duplex(4096);
        let ready = message(b'Z', b"I");
        tokio::spawn(async move {
            for answer in [message(b'R', &[0; 4]), answer] {
                assert!(server.read(&mut [0; 1024]).await.unwrap() > 0);
                server.write_all(&[&answer[..], &ready].concat()).await.unwrap();
            }
        });
        let (client, connection) = Config::new().user("app").connect_raw(stream, NoTls).await.unwrap();
        tokio::spawn(connection);
        ask(&client, "SELECT 'one' AS word").await
    }

    #[tokio::test]
    async fn results_and_errors_of_the_server_are_returned() {
        let columns = message(b'T', b"\0\x01word\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
        let row = message(b'D', b"\0\x01\0\0\0\x03one");
        let answers = answered([columns, row, message(b'C', b"SELECT 1\0")].concat()).await.unwrap();
        let words: Vec<_> = answers.iter().flat_map(|it| &it.rows).map(|row| column(row, "word")).collect();
        assert_eq!((answers.len(), words), (1, vec![Some("one")]));
        let refused = answered(message(b'E', b"SERROR\0C42501\0Mno\0\0")).await.unwrap_err();
        assert_eq!(refused.to_string(), "cannot read the catalog: no");
    }

    #[test]
    fn names_of_engines() {
        for (version, expected) in [
            ("CockroachDB CCL v23.2.4 (x86_64-pc-linux-gnu, built 2024/04/08)", "CockroachDB"),
            ("PostgreSQL 11.2-YB-2.20.3.0-b0 on x86_64-pc-linux-gnu, compiled by clang", "YugabyteDB"),
            ("PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC, Redshift 1.0.12103", "Amazon Redshift"),
            ("Other 1\n", "this server (Other 1)"),
        ] {
            assert_eq!(name(version), expected);
        }
    }
}
