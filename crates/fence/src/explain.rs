//! The coverage of policies in a database, and which of their tables and functions exist. Any role that can connect may run it.
//!
//! Must never leave a connection open, because it would block DROP DATABASE.

use super::store::{StoreError, databases, is_no_database};
use fencegate_catalog::{
    Catalog, CatalogError, DatabaseNames, Dependencies, Explanation, Fenced, NamesFound, PolicyNames, Views,
    database_and_functions, explanation, functions_that_mention, most_rows, question, question_of_dependencies,
};
use fencegate_policy::PolicySet;
use fencegate_postgres::sql::{StatementResult, answers, message, query_rows};
use fencegate_postgres::tls::ControlConfig;
use futures_util::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::Client;

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
    let asked = question(fences, None, Views::Asked);
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
}
