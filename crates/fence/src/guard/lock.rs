//! The connection and the transaction in which the guard is changed, and the locks of its tables.
//!
//! Owns taking all locks at once, retrying while another process holds one of them, and terminating sessions whose temporary
//! objects prevent a function from being dropped. Must never wait so long that the deadlock detector terminates a writer
//! that waits for another of these locks.

use super::outcome::GuardError;
use crate::store::set_up;
use crate::{Effect, Script, begin_with_init_lock};
use fencegate_postgres::sql::{column, is_true, query_rows, quote};
use fencegate_postgres::sql_file::Value::Sql;
use fencegate_postgres::tls::ControlConfig;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryRow};

/// Total time for attempts, and the pause between them, in which writers proceed.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// Grace period before a holder of a temporary object is terminated.
const GRACE: Duration = Duration::from_secs(1);

/// Makes the change in one transaction, and returns its script. Retries while other processes hold the required locks.
/// After an error nothing was changed.
pub(super) async fn transaction<T>(
    client: &Client,
    effect: Effect,
    change: impl AsyncFn(&mut Script) -> Result<T, GuardError>,
) -> Result<(T, Script), GuardError> {
    let began = Instant::now();
    let deadline = began + PATIENCE;
    loop {
        let error = match attempt(client, deadline, effect, &change).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        refused("roll back", client.batch_execute("ROLLBACK").await)?;
        if !is_about_locks(&error) || Instant::now() >= deadline {
            return Err(explain(client, error).await?);
        }
        end_holders(client, effect == Effect::Commit && began.elapsed() >= GRACE).await?;
        sleep(PAUSE).await;
    }
}

/// Adds the lock holders to an error about locks. Call it outside transactions.
pub(super) async fn explain(client: &Client, error: GuardError) -> Result<GuardError, GuardError> {
    if !is_about_locks(&error) {
        return Ok(error);
    }
    let (relations, source) = match error {
        GuardError::HeldUp { relations, source, .. } => (relations, source),
        GuardError::Refused(what, source) => match end_holders(client, false).await? {
            by if by.is_empty() => return Ok(GuardError::Refused(what, source)),
            by => return Ok(GuardError::HeldUp { relations: String::new(), by, source }),
        },
        error => return Ok(error),
    };
    let by = holders(client, &relations).await?;
    Ok(GuardError::HeldUp { relations, by, source })
}

async fn attempt<T>(
    client: &Client,
    deadline: Instant,
    effect: Effect,
    change: impl AsyncFn(&mut Script) -> Result<T, GuardError>,
) -> Result<(T, Script), GuardError> {
    begin_with_init_lock(client, effect, deadline).await?;
    let mut script = Script::default();
    let done = change(&mut script).await?;
    refused("commit", script.end(client, effect).await)?;
    Ok((done, script))
}

fn is_about_locks(error: &GuardError) -> bool {
    let (GuardError::Refused(_, source) | GuardError::HeldUp { source, .. }) = error else { return false };
    source.code().is_some_and(|code| [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].contains(code))
}

/// Takes the locks that changing or dropping triggers of these relations requires, always in the same order.
pub(super) async fn lock_tables(
    client: &Client,
    script: &mut Script,
    relations: impl Iterator<Item = String>,
    drops: bool,
) -> Result<(), GuardError> {
    // Only dropping a trigger blocks readers.
    let mode = if drops { "ACCESS EXCLUSIVE" } else { "SHARE ROW EXCLUSIVE" };
    let relations = literals(relations);
    let tables = sql_file!("sql/tables_to_lock.sql").with(&[("relation_names", Sql(&relations))]);
    let answer = rows(client, "read the catalog", &tables).await?;
    let Some(tables) = answer.first().and_then(|row| column(row, "tables")) else { return Ok(()) };
    let lock = script.run(client, &format!("LOCK TABLE {tables} IN {mode} MODE")).await;
    lock.map_err(|source| GuardError::HeldUp { relations, by: String::new(), source })
}

/// A list of literals.
pub(super) fn literals(relations: impl Iterator<Item = String>) -> String {
    relations.map(|relation| quote(&relation)).collect::<Vec<_>>().join(", ")
}

/// The holders of locks on these relations and on those that inherit from them.
async fn holders(client: &Client, relations: &str) -> Result<String, GuardError> {
    let query = sql_file!("sql/lock_holders.sql").with(&[("relation_names", Sql(relations))]);
    let answer = rows(client, "find the lock holders", &query).await?;
    let holders = answer.first().and_then(|row| column(row, "holders"));
    Ok(holders.unwrap_or("a process that has since ended").to_owned())
}

/// The processes that hold locks on temporary objects in a schema with such a dependent: only the session that owns the
/// schema uses these objects. With `ends`, terminates the processes that this role may terminate. Returns them; empty
/// if there are none.
pub(super) async fn end_holders(client: &Client, ends: bool) -> Result<String, GuardError> {
    let ends = if ends { "true" } else { "false" };
    let query = sql_file!("sql/end_temporary_holders.sql").with(&[("ends", Sql(ends))]);
    let mut found = Vec::new();
    for row in &rows(client, "find the lock holders", &query).await? {
        let [pid, role, application] = ["pid", "role", "application"].map(|name| column(row, name).unwrap_or_default());
        if is_true(row, "signalled") {
            tracing::warn!(pid, role, application, "temporary_holder_ended");
        }
        found.push(format!("process {pid} of role {role}, on a temporary object that depends on fencegate"));
    }
    Ok(found.join("; "))
}

/// A connection, which ends when the client is dropped.
pub(super) async fn open(config: &ControlConfig) -> Result<Client, GuardError> {
    let client = config.client().await.map_err(GuardError::Connect)?;
    refused("set up the session", set_up(&client).await)?;
    Ok(client)
}

pub(super) async fn run(client: &Client, script: &mut Script, what: &str, sql: &str) -> Result<(), GuardError> {
    refused(what, script.run(client, sql).await)
}

pub(super) fn refused<T>(what: &str, result: Result<T, tokio_postgres::Error>) -> Result<T, GuardError> {
    result.map_err(|source| GuardError::Refused(what.to_owned(), source))
}

pub(super) async fn rows(client: &Client, what: &str, query: &str) -> Result<Vec<SimpleQueryRow>, GuardError> {
    refused(what, query_rows(client, query).await)
}
