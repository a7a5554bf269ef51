//! The order in which rows were committed, read from the server's own log by logical decoding.
//!
//! Timestamps and sequences show when a row was written; only the log shows when it was committed.

use super::postgres::Postgres;
use std::collections::HashMap;

/// A row that an INSERT has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// The position of its transaction among all committed transactions, from 0.
    pub transaction: usize,
    /// Schema-qualified: `public.ticks`.
    pub table: String,
    /// As text; None is NULL.
    pub columns: HashMap<String, Option<String>>,
}

impl Inserted {
    /// The value of an integer column.
    pub fn number(&self, column: &str) -> i64 {
        let value = self.columns.get(column).unwrap_or_else(|| panic!("{self:?} has no column {column}"));
        value.as_ref().expect("not null").parse().expect("a whole number")
    }
}

/// A replication slot that keeps all commits since its creation.
pub struct CommitOrder<'a> {
    postgres: &'a Postgres,
    database: String,
    slot: String,
}

impl<'a> CommitOrder<'a> {
    pub fn start(postgres: &'a Postgres, database: &str) -> Self {
        let slot = format!("commit_order_{database}");
        postgres.sql_in(database, &format!("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"));
        Self { postgres, database: database.into(), slot }
    }

    /// The rows inserted into `table` (with its schema) so far, in commit order. Rows are returned once.
    pub fn take(&mut self, table: &str) -> Vec<Inserted> {
        take_inserted(self.postgres, &self.database, &self.slot, table)
    }
}

/// Like [`CommitOrder::take`], from a slot that was created elsewhere.
pub fn take_inserted(postgres: &Postgres, database: &str, slot: &str, table: &str) -> Vec<Inserted> {
    let changes = format!("SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL)");
    let rows = postgres.sql_in(database, &changes);
    let mut transaction = 0;
    let mut inserted = Vec::new();
    for line in rows.into_iter().flatten().flatten() {
        if line.starts_with("COMMIT") {
            transaction += 1;
        } else if let Some((name, columns)) = insert(&line).filter(|(name, _)| *name == table) {
            inserted.push(Inserted { transaction, table: name.into(), columns: parse_columns(columns) });
        }
    }
    inserted
}

impl Drop for CommitOrder<'_> {
    fn drop(&mut self) {
        // If the test is failing, the server may be gone, and its slot too.
        if !std::thread::panicking() {
            self.postgres.sql_in(&self.database, &format!("SELECT pg_drop_replication_slot('{}')", self.slot));
        }
    }
}

/// Splits `table public.t: INSERT: id[integer]:1 name[text]:'it''s'` into table and columns.
fn insert(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("table ")?.split_once(": INSERT: ")
}

/// Parses `id[integer]:1 name[text]:'it''s' note[text]:null`.
/// Types may contain spaces and brackets: `character varying[]`.
fn parse_columns(mut text: &str) -> HashMap<String, Option<String>> {
    let mut columns = HashMap::new();
    while let Some((name, rest)) = text.split_once('[') {
        let (_type, rest) = rest.split_once("]:").expect("a value follows the type");
        let (value, rest) = split_value(rest);
        columns.insert(name.trim_matches('"').to_owned(), value);
        text = rest.trim_start();
    }
    columns
}

fn split_value(text: &str) -> (Option<String>, &str) {
    let Some(quoted) = text.strip_prefix('\'') else {
        let (value, rest) = text.split_once(' ').unwrap_or((text, ""));
        return ((value != "null").then(|| value.to_owned()), rest);
    };
    let mut value = String::new();
    let mut rest = quoted;
    loop {
        let (part, after) = rest.split_once('\'').expect("the quote is closed");
        value.push_str(part);
        // Within the value, two quotes stand for one.
        let Some(after_pair) = after.strip_prefix('\'') else { return (Some(value), after) };
        value.push('\'');
        rest = after_pair;
    }
}
