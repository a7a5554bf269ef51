//! The lock that serializes `init`, `remove` and changes of the guard. Any role can take and hold it.
//!
//! Owns the wait for the lock. Terminates holders that cannot be such a command, and reports the others.

use super::sql::lock::{INIT_LOCK, holders};
use fencegate_postgres::sql::{answers, column, is_true, rows};
use std::fmt;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryRow};

/// The wait of one attempt. Well below `deadlock_timeout`, which is 1 s by default.
pub const LOCK_TIMEOUT: Duration = Duration::from_millis(300);
/// Grace period before any holder is terminated.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum number of holders that an error names.
const MOST_NAMED: usize = 10;

/// Why the transaction did not begin.
#[derive(Debug, thiserror::Error)]
pub enum InitLockError {
    /// Other processes hold the lock.
    #[error(
        "timed out waiting for the lock of `fencegate init`, `remove` and `guard`, which run one at a time; nothing was changed. The lock is held by {0}. If that is such a command, wait for it. Otherwise end the holder as a superuser with pg_terminate_backend(PID) or ROLLBACK PREPARED"
    )]
    Held(Holders),
    /// The server refused the transaction or the lock.
    #[error("cannot take the lock of `fencegate init`, `remove` and `guard`: {}", fencegate_postgres::sql::message(.0))]
    Refused(#[from] tokio_postgres::Error),
}

/// The processes and prepared transactions that hold the lock.
#[derive(Debug)]
pub struct Holders(Vec<String>);

impl fmt::Display for Holders {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_at_checked(MOST_NAMED) {
            Some((named, more)) if !more.is_empty() => {
                write!(formatter, "{} and {} more", named.join(", "), more.len())
            }
            _ if self.0.is_empty() => formatter.write_str("a process that has since ended"),
            _ => formatter.write_str(&self.0.join(", ")),
        }
    }
}

/// Settings that these commands require, as every control connection does: those of the role have no effect.
const SETTINGS: [&str; 3] = ["standard_conforming_strings = on", "search_path = pg_catalog", "synchronous_commit = on"];

/// Applies the settings to a session.
pub(crate) async fn set_up(client: &Client) -> Result<(), tokio_postgres::Error> {
    let settings = SETTINGS.map(|setting| format!("SET {setting}; ")).concat();
    client.batch_execute(&format!("{settings}SET default_transaction_isolation = 'read committed'")).await
}

/// How a transaction ends that changes the schemas or the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The changes are committed.
    Commit,
    /// The changes are rolled back. The caller only needs the script.
    Script,
}

/// The statements that such a transaction has executed: a script that psql can run.
#[derive(Debug, Default)]
pub struct Script(String);

impl Script {
    /// Executes statements. Not cancel-safe.
    pub async fn run(&mut self, client: &Client, statements: &str) -> Result<(), tokio_postgres::Error> {
        client.batch_execute(statements).await?;
        self.add(statements);
        Ok(())
    }

    /// Adds statements without executing them.
    pub fn add(&mut self, statements: &str) {
        let statements = statements.trim().trim_end_matches(';');
        if !statements.is_empty() {
            self.0.push_str(&format!("{statements};\n"));
        }
    }

    /// Ends the transaction. Not cancel-safe.
    pub async fn end(&self, client: &Client, effect: Effect) -> Result<(), tokio_postgres::Error> {
        let end = match effect {
            Effect::Commit => "COMMIT",
            Effect::Script => "ROLLBACK",
        };
        client.batch_execute(end).await
    }

    /// The transaction, with the settings that it requires.
    pub fn text(&self) -> String {
        let settings = SETTINGS.map(|setting| format!("SET LOCAL {setting};\n")).concat();
        format!("BEGIN;\nSET LOCAL client_encoding = 'UTF8';\n{settings}{};\n{}COMMIT;\n", take(), self.0)
    }
}

/// Takes the lock. Each wait for a lock in the transaction is short.
fn take() -> String {
    format!("SET LOCAL lock_timeout = {};\n{INIT_LOCK}", LOCK_TIMEOUT.as_millis())
}

/// Begins a transaction that holds the lock. Each wait for another lock in the transaction is short. Waits until `deadline`.
/// Terminates no process if only the script is needed.
///
/// Not cancel-safe: processes may have been terminated, and the transaction may have begun.
pub async fn begin(client: &Client, effect: Effect, deadline: Instant) -> Result<(), InitLockError> {
    let begin = format!("BEGIN; {}", take());
    let grace_over = Instant::now() + GRACE;
    loop {
        let Err(error) = client.batch_execute(&begin).await else { return Ok(()) };
        client.batch_execute("ROLLBACK").await?;
        if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
            return Err(error.into());
        }
        let holders = end_strangers(client, effect == Effect::Commit && Instant::now() >= grace_over).await?;
        if Instant::now() >= deadline {
            return Err(InitLockError::Held(holders));
        }
    }
}

/// Returns the holders of the lock. With `ends`, terminates strangers and logs them.
async fn end_strangers(client: &Client, ends: bool) -> Result<Holders, InitLockError> {
    let answers = answers(client.simple_query(&holders(ends)).await?);
    let mut holding = Vec::new();
    for row in rows(&answers) {
        let [pid, role, application] = ["pid", "role", "application"].map(|name| column(row, name).unwrap_or_default());
        if is_true(row, "signalled") {
            tracing::warn!(pid, role, application, "init_lock_holder_ended");
        }
        if is_true(row, "granted") || column(row, "gid").is_some() {
            holding.push(holder(row));
        }
    }
    Ok(Holders(holding))
}

fn holder(row: &SimpleQueryRow) -> String {
    let text = |name| column(row, name).unwrap_or_default().replace(char::is_control, " ");
    if column(row, "gid").is_some() {
        return format!("prepared transaction {}", text("gid"));
    }
    format!("process {} of role {} (application {})", text("pid"), text("role"), text("application"))
}
