//! `fencegate remove`: removes all fencegate objects from a database.
//!
//! Owns the list of these objects and of the dependents that prevent removal. Must never drop other users' objects,
//! except temporary ones: each object is dropped separately, and with CASCADE only if temporary objects depend on it.

use super::catalog::{EVENT_TRIGGERS, GUARD_FUNCTIONS, NOTICE_FUNCTION};
use super::lock::{lock_tables, open, rows, run, transaction};
use super::outcome::GuardError;
use crate::{Effect, FUNCTIONS, RELATIONS, Script, is_newer, is_proxy};
use fencegate_postgres::sql::{column, is_true, quote, text};
use fencegate_postgres::sql_file::SqlFile;
use fencegate_postgres::sql_file::Value::{self, Part, Sql, Text};
use fencegate_postgres::tls::ControlConfig;
use std::fmt::Display;
use tokio_postgres::Client;

/// Maximum number of users or dependents that an error names.
const MOST_NAMED: usize = 50;

/// The outcome of `remove`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The objects, as DROP names them. None: the database had none.
    pub objects: Vec<String>,
    /// The former control role with the memberships that it keeps: they count in all databases of the server.
    pub memberships: Option<(String, String)>,
}

/// Removes the schemas, the guard and all other fencegate objects from the database of `config`. `keep_token` keeps the
/// function `fencegate.token`. Repeatable. Returns the executed statements, too.
///
/// Cancel-safe: all changes are one transaction.
///
/// # Errors
/// A proxy uses the database, or another user's object depends on a removed one. Nothing was removed.
pub async fn remove_everything(
    config: &ControlConfig,
    keep_token: bool,
    effect: Effect,
) -> Result<(Removed, Script), GuardError> {
    if is_proxy(config).await {
        return Err(GuardError::Proxy);
    }
    let client = &open(config).await?;
    transaction(client, effect, async |script| remove(client, script, &Parts { keep_token }).await).await
}

async fn remove(client: &Client, script: &mut Script, parts: &Parts) -> Result<Removed, GuardError> {
    let what = "read the catalog";
    // Checked before taking locks, so that a refused `remove` disturbs no session, and again afterwards, when nothing
    // new can begin.
    check(client, parts).await?;
    let tables = rows(client, what, &parts.tables()).await?;
    lock_tables(client, script, tables.iter().filter_map(|row| text(row, "name")), true).await?;
    let admissions = check(client, parts).await?;
    let memberships = rows(client, what, &memberships()).await?;
    let membership = memberships.first().and_then(|row| Some((text(row, "role")?, text(row, "groups")?)));
    let mut removed = Removed::default();
    // When the script runs, a proxy may use the database.
    script.add(&unless_used(admissions));
    for row in &rows(client, what, &parts.removals()).await? {
        let (Some(object), Some(statement)) = (column(row, "object"), column(row, "statement")) else { continue };
        run(client, script, &format!("remove {object}"), statement).await?;
        removed.objects.push(object.to_owned());
    }
    removed.memberships = membership.filter(|_| !removed.objects.is_empty());
    Ok(removed)
}

/// Returns the table of admissions, if there is one.
async fn check(client: &Client, parts: &Parts) -> Result<Option<String>, GuardError> {
    let what = "read the catalog";
    let facts = rows(client, what, &parts.facts()).await?;
    let fact = |name| facts.first().and_then(|row| text(row, name));
    let [database, role] = ["database", "role"].map(|name| fact(name).unwrap_or_default());
    if let Some(version) = fact("version").filter(|version| is_newer(version)) {
        return Err(GuardError::Newer { database, version });
    }
    if fact("parts").as_deref() == Some("0") {
        return Ok(None);
    }
    if let Some(others) = fact("others") {
        return Err(GuardError::NotAllowed { role, others });
    }
    if !facts.iter().any(|row| is_true(row, "sees")) {
        return Err(GuardError::Blind(role));
    }
    let admissions = fact("admissions");
    let users = format!("SELECT pg_stat_clear_snapshot(); {}", users(admissions.as_deref()));
    let users = list(&rows(client, "find the processes that use the database", &users).await?, "who");
    if !users.is_empty() {
        return Err(GuardError::InUse { database, users });
    }
    let dependents = rows(client, what, &parts.dependents()).await?;
    if dependents.is_empty() {
        return Ok(admissions);
    }
    let may_keep = dependents.iter().any(|row| is_true(row, "on_token"));
    Err(GuardError::Needed { database, dependents: list(&dependents, "what"), may_keep })
}

/// Formats a line for each row.
fn list(rows: &[tokio_postgres::SimpleQueryRow], name: &str) -> String {
    let line = |text: &dyn Display| format!("\n  {}", text.to_string().replace(char::is_control, " "));
    let named = rows.iter().take(MOST_NAMED).filter_map(|row| column(row, name)).map(|it| line(&it));
    let more = rows.len().saturating_sub(MOST_NAMED);
    named.chain((more > 0).then(|| line(&format!("{more} more")))).collect()
}

/// The objects that fencegate created.
struct Parts {
    keep_token: bool,
}

impl Parts {
    /// One row: the current role, and whether it has all required privileges.
    fn facts(&self) -> String {
        self.query(sql_file!("sql/remove/facts.sql"), &[])
    }

    /// The tables to be locked.
    fn tables(&self) -> String {
        self.query(sql_file!("sql/remove/tables.sql"), &[])
    }

    /// A row per other object that depends on one of these.
    fn dependents(&self) -> String {
        self.query(sql_file!("sql/remove/dependents.sql"), &[])
    }

    /// The objects, and the statements that remove them, in order.
    fn removals(&self) -> String {
        let object = [("class", Sql("part.classid")), ("object", Sql("part.objid"))];
        self.query(sql_file!("sql/remove/removals.sql"), &object)
    }

    /// The query of the file, with the values for `parts.sql`.
    fn query(&self, file: SqlFile, values: &[(&str, Value)]) -> String {
        let names = |names: &[&str]| names.iter().map(|it| quote(it)).collect::<Vec<_>>().join(", ");
        let parts = [
            ("keep_token", Sql(if self.keep_token { "true" } else { "false" })),
            ("event_triggers", Sql(&names(&EVENT_TRIGGERS))),
            ("own_functions", Sql(&names(&FUNCTIONS))),
            ("guard_functions", Sql(GUARD_FUNCTIONS.names)),
            ("notice_functions", Sql(NOTICE_FUNCTION.names)),
            ("own_relations", Sql(&names(&RELATIONS))),
        ];
        file.with(&[&parts, values].concat())
    }
}

/// A statement that fails if a process uses the database. `admissions`: the table.
fn unless_used(admissions: Option<String>) -> String {
    let users = users(admissions.as_deref());
    let users = users.trim_end().trim_end_matches(';');
    format!(
        "DO $check$\nDECLARE users text;\nBEGIN\nPERFORM pg_stat_clear_snapshot();\n\
         SELECT string_agg(who, '; ') INTO users FROM ({users}) AS used;\n\
         IF users IS NOT NULL THEN RAISE EXCEPTION 'the database is in use by %', users; END IF;\nEND $check$"
    )
}

/// A row for each live user. `admissions`: the table.
fn users(admissions: Option<&str>) -> String {
    let file = sql_file!("sql/remove/users.sql");
    let Some(table) = admissions else { return file.with(&[("may_admit", Sql("true")), ("admitted", Sql(""))]) };
    file.with(&[
        ("may_admit", Part(":may_admit_to")),
        ("admitted", Part(":admitted_users")),
        ("admissions", Text(table)),
        ("admissions_table", Sql(table)),
    ])
}

/// The row: the owner of the schema, and which of the roles that `init` grants it is a member of.
fn memberships() -> String {
    sql_file!("sql/remove/memberships.sql").with(&[])
}
