//! Statements that drivers, pools and psql send to every server: BEGIN and the like, SET, and queries that test the
//! connection.
//!
//! Must never have an effect: commands with one are in `command`.

use super::command::CommandWord;
use super::result_set::{ColumnType, ResultSet, Table, TableColumn};
use crate::config::SETTINGS;
use fencegate_wire::error::ErrorText;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DriverStatement {
    /// Begins a transaction. Commands do not become part of it.
    Begin(&'static str),
    /// Ends a transaction.
    End(&'static str),
    /// Answered with only this tag.
    Done(&'static str),
    /// Removes the prepared statement of that name, or all.
    Deallocate(Option<String>),
    /// Closes all portals.
    CloseAll,
    /// Removes all prepared statements and portals.
    DiscardAll,
    Ask(Question),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    One,
    Version,
    Isolation,
    ConformingStrings,
    Schema,
    UnlockAll,
}

impl DriverStatement {
    /// Returns None for other commands.
    /// Returns an error for a statement that appears to change a setting but cannot.
    pub(super) fn read(words: &[CommandWord]) -> Result<Option<Self>, ErrorText> {
        let keywords: Vec<String> = words.iter().map(|word| word.keyword().to_ascii_lowercase()).collect();
        let said: Vec<&str> = keywords.iter().map(String::as_str).collect();
        Ok(Some(match said.as_slice() {
            ["begin", rest @ ..] if are_modes(without_noise(rest)) => DriverStatement::Begin("BEGIN"),
            ["start", "transaction", rest @ ..] if are_modes(rest) => DriverStatement::Begin("START TRANSACTION"),
            ["commit" | "end", rest @ ..] if without_noise(rest).is_empty() => DriverStatement::End("COMMIT"),
            ["rollback" | "abort", rest @ ..] if without_noise(rest).is_empty() => DriverStatement::End("ROLLBACK"),
            ["set", "transaction", modes @ ..]
            | ["set", "session", "characteristics", "as", "transaction", modes @ ..]
                if !modes.is_empty() && are_modes(modes) =>
            {
                DriverStatement::Done("SET")
            }
            ["set", ..] => return set(&words[1..]).map(|is_one| is_one.then_some(DriverStatement::Done("SET"))),
            ["reset", _] => return reset(&words[1]).map(|is_one| is_one.then_some(DriverStatement::Done("RESET"))),
            ["close", "all"] => DriverStatement::CloseAll,
            ["unlisten", _] => DriverStatement::Done("UNLISTEN"),
            ["discard", "all"] => DriverStatement::DiscardAll,
            ["deallocate", "all"] | ["deallocate", "prepare", "all"] => DriverStatement::Deallocate(None),
            ["deallocate", _] | ["deallocate", "prepare", _] => match words.last().and_then(CommandWord::sql_name) {
                Some(name) => DriverStatement::Deallocate(Some(name)),
                None => return Ok(None),
            },
            ["select", "1"] => DriverStatement::Ask(Question::One),
            ["select", "version()" | "pg_catalog.version()"] => DriverStatement::Ask(Question::Version),
            ["show", "transaction", "isolation", "level"] | ["show", "transaction_isolation"] => {
                DriverStatement::Ask(Question::Isolation)
            }
            ["show", "standard_conforming_strings"] => DriverStatement::Ask(Question::ConformingStrings),
            ["select", "current_schema()" | "pg_catalog.current_schema()"] => DriverStatement::Ask(Question::Schema),
            ["select", "pg_advisory_unlock_all()"] => DriverStatement::Ask(Question::UnlockAll),
            _ => return Ok(None),
        }))
    }
}

fn without_noise<'a, 'b>(words: &'a [&'b str]) -> &'a [&'b str] {
    match words {
        ["work" | "transaction", rest @ ..] => rest,
        all => all,
    }
}

/// Modes of a transaction, separated by blanks or by commas that end a word.
fn are_modes(words: &[&str]) -> bool {
    const MODES: [&[&str]; 8] = [
        &["isolation", "level", "serializable"],
        &["isolation", "level", "repeatable", "read"],
        &["isolation", "level", "read", "committed"],
        &["isolation", "level", "read", "uncommitted"],
        &["read", "write"],
        &["read", "only"],
        &["not", "deferrable"],
        &["deferrable"],
    ];
    let words: Vec<_> = words.iter().flat_map(|word| word.strip_suffix(',').unwrap_or(word).split(',')).collect();
    let mut rest = words.as_slice();
    while let Some(after) = MODES.iter().find_map(|mode| rest.strip_prefix(*mode)) {
        rest = after;
    }
    rest.is_empty()
}

/// `SET` one parameter, by `=` or `TO`.
fn set(words: &[CommandWord]) -> Result<bool, ErrorText> {
    let words = match words {
        [scope, rest @ ..] if scope.is("SESSION") || scope.is("LOCAL") => rest,
        all => all,
    };
    let Some((name, rest)) = words.split_first().and_then(|(first, rest)| Some((first.sql_name()?, rest))) else {
        return Ok(false);
    };
    let (name, has_value) = match (name.split_once('='), rest) {
        (Some((name, value)), rest) => (name.to_owned(), !value.is_empty() || !rest.is_empty()),
        (None, [to, value @ ..]) if to.is("TO") => (name, !value.is_empty()),
        (None, [to, value @ ..]) => match to.keyword().strip_prefix('=') {
            Some(attached) => (name, !attached.is_empty() || !value.is_empty()),
            None => return Ok(false),
        },
        (None, []) => return Ok(false),
    };
    of_session(&name).map(|()| has_value && !name.is_empty())
}

/// `RESET` of one parameter, or of all.
fn reset(word: &CommandWord) -> Result<bool, ErrorText> {
    let Some(name) = word.sql_name() else { return Ok(false) };
    of_session(&name)?;
    Ok(name.chars().all(|c| c.is_alphanumeric() || "_.".contains(c)))
}

/// An error, because otherwise a client would assume that it has changed a setting of the proxy.
fn of_session(name: &str) -> Result<(), ErrorText> {
    if !SETTINGS.iter().any(|setting| setting.key == name) {
        return Ok(());
    }
    Err(ErrorText::new("42601", format!("\"{name}\" is a setting of the proxy, and commands cannot change it"))
        .hint("Change it in the --config file and run RELOAD. SHOW CONFIG has its source."))
}

impl Question {
    /// The column has the server's name for it; the row is `server_version` of the server behind the proxy.
    pub(super) fn table<'a>(self) -> Table<&'a str> {
        vec![match self {
            Question::One => TableColumn("?column?", ColumnType::Integer, |_| 1_i64.into()),
            // Programs parse the number after the first word.
            Question::Version => TableColumn("version", ColumnType::Text, |server_version| {
                format!("PostgreSQL {server_version}, behind fencegate {}", env!("CARGO_PKG_VERSION")).into()
            }),
            Question::Isolation => TableColumn("transaction_isolation", ColumnType::Text, |_| "read committed".into()),
            Question::ConformingStrings => {
                TableColumn("standard_conforming_strings", ColumnType::Text, |_| "on".into())
            }
            // The console has no schemas, but drivers query them.
            Question::Schema => TableColumn("current_schema", ColumnType::Text, |_| "public".into()),
            Question::UnlockAll => TableColumn("pg_advisory_unlock_all", ColumnType::Text, |_| "".into()),
        }]
    }

    pub(super) fn answer(self, server_version: &str) -> ResultSet {
        let tag = if matches!(self, Question::Isolation | Question::ConformingStrings) { "SHOW" } else { "SELECT" };
        ResultSet::tagged(tag, &self.table(), [server_version])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::console::command::words;

    #[test]
    fn only_statements_without_effect_are_skipped() {
        let read = |text| DriverStatement::read(&words(text).unwrap()).map_err(|error| error.code);
        for (text, driver_statement) in [
            ("begin", DriverStatement::Begin("BEGIN")),
            ("BEGIN WORK", DriverStatement::Begin("BEGIN")),
            ("begin isolation level serializable, READ ONLY,deferrable", DriverStatement::Begin("BEGIN")),
            ("START TRANSACTION READ WRITE NOT DEFERRABLE", DriverStatement::Begin("START TRANSACTION")),
            ("ABORT", DriverStatement::End("ROLLBACK")),
            ("commit transaction", DriverStatement::End("COMMIT")),
            ("SET application_name = 'x'", DriverStatement::Done("SET")),
            ("SET application_name='x'", DriverStatement::Done("SET")),
            ("set session DateStyle TO ISO, MDY", DriverStatement::Done("SET")),
            ("SET extra_float_digits =3", DriverStatement::Done("SET")),
            ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", DriverStatement::Done("SET")),
            ("RESET ALL", DriverStatement::Done("RESET")),
            ("RESET \"search_path\"", DriverStatement::Done("RESET")),
            ("DISCARD ALL", DriverStatement::DiscardAll),
            ("DEALLOCATE \"_pg3_0\"", DriverStatement::Deallocate(Some("_pg3_0".to_owned()))),
            ("select 1", DriverStatement::Ask(Question::One)),
        ] {
            assert_eq!(read(text), Ok(Some(driver_statement)), "{text}");
        }
        for other in [
            "SET",
            "SET x",
            "SET x 7",
            "SET x =",
            "SET x TO",
            "SET = 7",
            "SET TRANSACTION",
            "RESET",
            "RESET scheduler TO 7",
            "RESET scheduler=7",
            "begin fence reset scheduler to 7",
            "BEGIN 'x'",
            "START TRANSACTION READ",
            "COMMIT PREPARED 'x'",
            "ROLLBACK TO s",
            "SELECT 1, 2",
            "SELECT 2",
            "\"select\" 1",
            "'begin'",
            "DEALLOCATE \"\"",
            "SHOW ALL",
            "SAVEPOINT s",
        ] {
            assert_eq!(read(other), Ok(None), "{other}");
        }
        for setting in ["SET max_connections=7", "set Max_Connections to 7", "SET \"http\" = x", "RESET idle_timeout"] {
            assert_eq!(read(setting), Err("42601"), "{setting}");
        }
    }
}
