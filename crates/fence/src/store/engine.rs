//! Whether the server at the other end is an engine that the protocol can work with.
//!
//! Decides by trying each feature. The engine's name is only for the message.

use fencegate_postgres::sql::{answers, is_true, rows, text};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

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

/// The engine lacks features that the protocol needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} cannot be fenced: it lacks {}", .lacking.join(", "))]
pub struct UnsuitableEngine {
    engine: String,
    lacking: Vec<&'static str>,
}

/// Tries each feature. Ignores a lost connection and errors with another cause. Has no time limit of its own.
/// Cancel-safe.
///
/// # Errors
/// The engine lacks a feature.
pub(super) async fn check(client: &Client) -> Result<(), UnsuitableEngine> {
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
mod tests {
    use super::*;

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
