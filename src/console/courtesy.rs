//! What drivers, pools and psql say to every server: transactions that there are none of, settings that change nothing,
//! questions whether the server is there.
//!
//! Must never do anything: a command that does something is in `command`.

use super::answer::{Answer, Column, Kind, Value};
use super::words::Word;

/// Something said out of courtesy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Courtesy {
    /// A transaction begins; nothing that a command does is part of it.
    Begin(&'static str),
    /// It ends.
    End(&'static str),
    /// Answered with this tag alone.
    Done(&'static str),
    /// Prepared statements are to go: the one of that name, or all.
    Deallocate(Option<String>),
    /// A question with one answer.
    Ask(Question),
}

/// A question with one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    One,
    Version,
    Isolation,
    ConformingStrings,
    UnlockAll,
}

impl Courtesy {
    /// None for anything else.
    pub(super) fn read(words: &[Word]) -> Option<Self> {
        let said: Vec<String> = words.iter().map(|word| word.text().to_ascii_lowercase()).collect();
        let said: Vec<&str> = said.iter().map(String::as_str).collect();
        Some(match said.as_slice() {
            ["begin", ..] => Courtesy::Begin("BEGIN"),
            ["start", "transaction", ..] => Courtesy::Begin("START TRANSACTION"),
            ["commit" | "end"] | ["commit" | "end", "work" | "transaction"] => Courtesy::End("COMMIT"),
            ["rollback" | "abort"] | ["rollback" | "abort", "work" | "transaction"] => Courtesy::End("ROLLBACK"),
            ["set", _, ..] => Courtesy::Done("SET"),
            ["reset", _, ..] => Courtesy::Done("RESET"),
            ["close", "all"] => Courtesy::Done("CLOSE CURSOR ALL"),
            ["unlisten", _] => Courtesy::Done("UNLISTEN"),
            ["discard", "all"] | ["deallocate", "all"] | ["deallocate", "prepare", "all"] => Courtesy::Deallocate(None),
            ["deallocate", _] | ["deallocate", "prepare", _] => Courtesy::Deallocate(words.last()?.sql_name()),
            ["select", "1"] => Courtesy::Ask(Question::One),
            ["select", "version()" | "pg_catalog.version()"] => Courtesy::Ask(Question::Version),
            ["show", "transaction", "isolation", "level"] | ["show", "transaction_isolation"] => {
                Courtesy::Ask(Question::Isolation)
            }
            ["show", "standard_conforming_strings"] => Courtesy::Ask(Question::ConformingStrings),
            ["select", "pg_advisory_unlock_all()"] => Courtesy::Ask(Question::UnlockAll),
            _ => return None,
        })
    }
}

impl Question {
    /// As the server calls it.
    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Question::One => &[Column("?column?", Kind::Integer)],
            Question::Version => &[Column("version", Kind::Text)],
            Question::Isolation => &[Column("transaction_isolation", Kind::Text)],
            Question::ConformingStrings => &[Column("standard_conforming_strings", Kind::Text)],
            Question::UnlockAll => &[Column("pg_advisory_unlock_all", Kind::Text)],
        }
    }

    /// `server_version` as the server behind the proxy says it.
    pub(super) fn answer(self, server_version: &str) -> Answer {
        let value: Value = match self {
            Question::One => 1_i64.into(),
            // Programs read the number behind the first word.
            Question::Version => {
                format!("PostgreSQL {server_version}, behind fencegate {}", env!("CARGO_PKG_VERSION")).into()
            }
            Question::Isolation => "read committed".into(),
            Question::ConformingStrings => "on".into(),
            Question::UnlockAll => "".into(),
        };
        let tag = if matches!(self, Question::Isolation | Question::ConformingStrings) { "SHOW" } else { "SELECT" };
        Answer { tag, ..Answer::show(self.columns(), vec![vec![value]]) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::words;
    use super::*;

    #[test]
    fn only_what_does_nothing_is_a_courtesy() {
        let read = |text| Courtesy::read(&words(text).unwrap());
        assert_eq!(read("begin isolation level serializable"), Some(Courtesy::Begin("BEGIN")));
        assert_eq!(read("ABORT"), Some(Courtesy::End("ROLLBACK")));
        assert_eq!(read("SET application_name = 'x'"), Some(Courtesy::Done("SET")));
        assert_eq!(read("DEALLOCATE \"_pg3_0\""), Some(Courtesy::Deallocate(Some("_pg3_0".to_owned()))));
        assert_eq!(read("select 1"), Some(Courtesy::Ask(Question::One)));
        for other in ["SET", "ROLLBACK TO s", "SELECT 1, 2", "SELECT 2", "SHOW ALL", "SAVEPOINT s"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
