//! The catalog as the guard needs it: the relations that the policies name, and the installed parts of the guard. Also the
//! functions of the guard: their names, and whether they are those that this program installs.
//!
//! Owns the queries, and the hash in the functions' comment. Must never change anything, nor mistake changed functions for its
//! own.

use super::lock::{literals, rows};
use super::outcome::{GuardError, GuardState};
use super::trigger::GuardedRelation;
use fencegate_policy::FencedTable;
use fencegate_postgres::sql::{arrays, column, is_true, query_rows, quote, text};
use fencegate_postgres::sql_file::Value::{Sql, Text};
use fencegate_postgres::sql_file::{Fragment, fill};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryRow};

pub(super) const EVENT_TRIGGERS: [&str; 2] = ["fencegate_guard_definition", "fencegate_guard_drop"];

pub(super) struct InstalledTrigger {
    pub(super) definition: String,
    pub(super) enabled: char,
    pub(super) is_copy: bool,
    pub(super) may_alter: bool,
}

/// Relation and name of a trigger.
pub(super) type TriggerName = (String, String);

/// Part of the guard, and the statement that removes it.
pub(super) struct Removal {
    pub(super) what: String,
    pub(super) statement: String,
}

/// The existing triggers, each with its relation. Omits copies, which are dropped with their original.
pub(super) async fn drops(client: &Client) -> Result<Vec<(String, Removal)>, GuardError> {
    let query = sql_file!("sql/triggers.sql").with(&[]);
    let rows = rows(client, "read the triggers", &query).await?;
    let drop = |row: &SimpleQueryRow| {
        let (relation, name) = (text(row, "relation")?, text(row, "name")?);
        let (what, statement) = (format!("trigger {name} on {relation}"), format!("DROP TRIGGER {name} ON {relation}"));
        Some((relation, Removal { what, statement }))
    };
    Ok(rows.iter().filter_map(drop).collect())
}

/// The existing event triggers, functions and leases of resources.
pub(super) async fn others(client: &Client) -> Result<Vec<Removal>, GuardError> {
    let names = EVENT_TRIGGERS.map(quote).join(", ");
    let query = sql_file!("sql/event_triggers.sql").with(&[("event_triggers", Sql(&names))]);
    let event_triggers = rows(client, "read the catalog", &query).await?;
    let event_triggers = event_triggers.iter().filter_map(|row| Some(format!("event trigger {}", text(row, "name")?)));
    let drop = |what: String, cascade: &str| Removal { statement: format!("DROP {what}{cascade}"), what };
    let mut others: Vec<Removal> = event_triggers.map(|what| drop(what, "")).collect();
    for signature in SIGNATURES.iter().rev().chain([&NOTICE_SIGNATURE]) {
        let query = sql_file!("sql/function_cascade.sql").with(&[
            ("signature", Text(signature)),
            ("class", Sql("'pg_proc'::regclass")),
            ("object", Sql("it.oid")),
        ]);
        let there = rows(client, "read the catalog", &query).await?;
        others.extend(
            there.first().map(|row| drop(format!("function {signature}"), column(row, "cascade").unwrap_or_default())),
        );
    }
    let is_there = sql_file!("sql/has_leases.sql").with(&[]);
    let is_there = rows(client, "read the catalog", &is_there);
    if is_there.await?.iter().any(|row| is_true(row, "there")) {
        let leases = leased(client).await?.into_keys();
        others.extend(leases.map(|resource| Removal {
            statement: format!("DELETE FROM fencegate_state.leased WHERE resource = {}", quote(&resource)),
            what: format!("the lease of resource {resource}"),
        }));
    }
    Ok(others)
}

/// The installed leases of resources.
pub(super) async fn leased(client: &Client) -> Result<BTreeMap<String, String>, GuardError> {
    let rows = rows(client, "read the leases", &sql_file!("sql/leases.sql").with(&[])).await?;
    Ok(rows.iter().filter_map(|row| Some((text(row, "resource")?, text(row, "lease")?))).collect())
}

/// Each enabled subscription of this database to a guarded table.
pub(super) struct Subscription {
    pub(super) name: String,
    /// The role as which its workers write, including those of the initial copy.
    pub(super) owner: String,
    /// Its rows carry no token, and a trigger rejects such rows.
    pub(super) is_rejected: bool,
}

pub(super) async fn subscriptions(client: &Client) -> Result<Vec<Subscription>, GuardError> {
    let query = sql_file!("sql/subscriptions.sql").with(&[]);
    let rows = rows(client, "read the subscriptions", &query).await?;
    let subscription = |row: &SimpleQueryRow| {
        let (name, owner) = (text(row, "name")?, text(row, "owner")?);
        Some(Subscription { name, owner, is_rejected: is_true(row, "rejected") })
    };
    Ok(rows.iter().filter_map(subscription).collect())
}

/// One row about the current role and the objects other than triggers.
pub(super) fn facts() -> String {
    let names = EVENT_TRIGGERS.map(quote).join(", ");
    sql_file!("sql/facts.sql").with(&[
        ("guard_columns", Sql(&GUARD_FUNCTIONS.columns("content", "seal"))),
        ("notice_columns", Sql(&NOTICE_FUNCTION.columns("notice_content", "notice_seal"))),
        ("guard_functions", Sql(GUARD_FUNCTIONS.names)),
        ("event_triggers", Sql(&names)),
    ])
}

/// The relations of a policy's entry: the table first.
pub(super) fn tree(table: &FencedTable) -> String {
    let [schemas, names] = arrays([&table.name]);
    sql_file!("sql/tree.sql").with(&[("schemas", Sql(&schemas)), ("table_names", Sql(&names))])
}

pub(super) fn relation(row: &SimpleQueryRow) -> GuardedRelation {
    let text = |name| column(row, name).unwrap_or_default().to_owned();
    GuardedRelation {
        oid: text("oid"),
        name: text("name"),
        kind: text("kind").chars().next().unwrap_or_default(),
        is_partition: is_true(row, "is_partition"),
        root: column(row, "root").map(str::to_owned),
        may_alter: is_true(row, "may_alter"),
        has_foreign_parent: is_true(row, "has_foreign_parent"),
    }
}

/// The triggers that belong to the guard. On the `fenced` relations, these are all that have its names. On other
/// relations, only those that a role related to fencegate or to these relations may have created. Also returns the
/// relations with such triggers of other roles.
pub(super) async fn found(
    client: &Client,
    fenced: &[GuardedRelation],
) -> Result<(BTreeMap<TriggerName, InstalledTrigger>, Vec<String>), GuardError> {
    let oids: Vec<&str> = fenced.iter().map(|it| it.oid.as_str()).collect();
    let query = sql_file!("sql/found.sql").with(&[("fenced", Text(&format!("{{{}}}", oids.join(","))))]);
    let rows = query_rows(client, &query).await.map_err(|source| match source.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            let relations = literals(fenced.iter().map(|it| it.name.clone()));
            GuardError::HeldUp { relations, by: String::new(), source }
        }
        _ => GuardError::Refused("read the triggers".to_owned(), source),
    })?;
    let (ours, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| is_true(row, "belongs"));
    let mut others: Vec<String> = others.into_iter().filter_map(|row| text(row, "relation")).collect();
    others.sort();
    others.dedup();
    let found = ours.into_iter().map(|row| {
        let text = |name| column(row, name).unwrap_or_default().to_owned();
        let found = InstalledTrigger {
            definition: text("definition"),
            enabled: text("enabled").chars().next().unwrap_or_default(),
            is_copy: is_true(row, "is_copy"),
            may_alter: is_true(row, "may_alter"),
        };
        ((text("relation"), text("name")), found)
    });
    Ok((found.collect(), others))
}

/// State of the event triggers and their function. They are required once a superuser has created them, as the function
/// shows.
pub(super) fn event_triggers_state(there: &str, enabled: &str, function: GuardState) -> GuardState {
    let all = EVENT_TRIGGERS.len().to_string();
    match (there, enabled) {
        ("0", _) if function == GuardState::Missing => GuardState::NotMade,
        _ if there != all => GuardState::Missing,
        _ if enabled != all => GuardState::Disabled,
        _ => function,
    }
}

pub(super) const FUNCTIONS: &str = concat!(include_str!("../store/check.sql"), include_str!("guard.sql"));
const NOTICE: &str = include_str!("notice.sql");

/// The functions of `check.sql`, which `init` creates too.
pub(super) const CHECK_SIGNATURES: [&str; 7] = [
    "fencegate.presented(text)",
    "fencegate.own_pid()",
    "fencegate.own_start()",
    "fencegate.missing_token_hint()",
    "fencegate.await_lock(text)",
    "fencegate.check_write(text, text, boolean)",
    "fencegate.claim(text)",
];
/// The functions of `guard.sql`.
pub(super) const SIGNATURES: [&str; 6] = [
    "fencegate.is_admitted(text, text)",
    "fencegate.observe_write(text, boolean)",
    "fencegate.keyed(text, text, text)",
    "fencegate.check_every_key(text, boolean, boolean)",
    "fencegate.guard_table()",
    "fencegate.guard()",
];
const NOTICE_SIGNATURE: &str = "fencegate.notice_definition()";

/// Functions that are created together. A hash of their definitions is stored in the comment on one of them.
pub(super) struct Functions {
    text: &'static str,
    /// Names, as a list of literals.
    pub(super) names: &'static str,
    /// The function with the comment. Takes no arguments.
    commented: &'static str,
}

pub(super) const GUARD_FUNCTIONS: Functions = Functions {
    text: FUNCTIONS,
    names: "'presented', 'own_pid', 'own_start', 'missing_token_hint', 'await_lock', 'check_write', 'claim', 'is_admitted', 'observe_write', \
            'keyed', 'check_every_key', 'guard_table', 'guard'",
    commented: "guard",
};
/// Separate, because only a superuser can create it.
pub(super) const NOTICE_FUNCTION: Functions =
    Functions { text: NOTICE, names: "'notice_definition'", commented: "notice_definition" };

/// The statements that create the event triggers and their function.
pub(super) fn event_triggers() -> String {
    format!("{NOTICE}\n{}", NOTICE_FUNCTION.seal())
}

impl Functions {
    /// The statement that records the version of the functions in a comment.
    pub(super) fn seal(&self) -> String {
        let (commented, version, content) = (self.commented, self.version(), self.content());
        format!(
            "DO $seal$ BEGIN EXECUTE format('COMMENT ON FUNCTION fencegate.{commented}() IS %L', '{version} ' || {content}); END $seal$"
        )
    }

    /// Columns: the current hash, and the comment.
    pub(super) fn columns(&self, content: &str, seal: &str) -> String {
        let values = [
            ("function_names", Sql(self.names)),
            ("commented", Text(self.commented)),
            ("content_column", Sql(content)),
            ("seal_column", Sql(seal)),
        ];
        fill(":sealed_content", FRAGMENTS, &values).text
    }

    fn content(&self) -> String {
        fill(":content", FRAGMENTS, &[("function_names", Sql(self.names))]).text
    }

    pub(super) fn state(&self, content: &str, seal: &str) -> GuardState {
        match content {
            "" => GuardState::Missing,
            _ if seal == format!("{} {content}", self.version()) => GuardState::Ok,
            _ => GuardState::Changed,
        }
    }

    /// Version of the functions that this program installs.
    fn version(&self) -> String {
        let hash = Sha256::digest(self.text);
        format!("fencegate guard {:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3])
    }
}

pub(super) const FRAGMENTS: &[Fragment] = &[
    ("admitted_users", include_str!("sql/fragments/admitted_users.sql")),
    ("cascade", include_str!("sql/fragments/cascade.sql")),
    ("content", include_str!("sql/fragments/content.sql")),
    ("dependent_schema", include_str!("sql/fragments/dependent_schema.sql")),
    ("is_guards", include_str!("sql/fragments/is_guards.sql")),
    ("is_here", include_str!("sql/fragments/is_here.sql")),
    ("is_temporary", include_str!("sql/fragments/is_temporary.sql")),
    ("may_admit_to", include_str!("sql/fragments/may_admit_to.sql")),
    ("parts", include_str!("sql/fragments/parts.sql")),
    ("sealed_content", include_str!("sql/fragments/sealed_content.sql")),
    ("may_terminate", include_str!("../store/sql/fragments/may_terminate.sql")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_raised_error_has_a_hint() {
        for text in [FUNCTIONS, NOTICE, include_str!("../store/schema.sql"), include_str!("../store/leases.sql")] {
            for raised in text.split("RAISE EXCEPTION").skip(1) {
                let raised = raised.split_once(";\n").map_or(raised, |(raised, _)| raised);
                // LF000 does not leave its block.
                assert!(raised.contains("HINT = ") || raised.contains("'LF000'"), "{raised}");
            }
        }
    }
}
