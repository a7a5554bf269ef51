//! Every statement of PostgreSQL's own regression tests, compared with its verdict: none crashes the parsers, the
//! parsers know every statement that the server accepts, few are opaque, and the verdict covers the actual writes of
//! the server.

mod second_reader;
mod session;
mod stream;
mod suite;
mod trial;

use crate::support::{postgres_source, seed};
use fencegate_statement::rows::{Column, ColumnValue};
use fencegate_statement::{OpaqueReason, Script, Statement, StatementKind, Unreadable, Write, analyze_rows};
use fencegate_testing::dice::Dice;
use fencegate_testing::literals::{LEXING, read_once};
use second_reader::Target;
use session::Record;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// An invalid partitioning strategy. PostgreSQL up to 15 rejects it after parsing, and newer releases in the grammar.
const REFUSED_LATER: &str = "PARTITION BY MAGIC";

const LIST: &str = include_str!("opaque.txt");

static SUITE: LazyLock<Record> = LazyLock::new(suite::run);

#[test]
fn accepted_texts_have_no_syntax_error() {
    let queries = SUITE.queries.len();
    println!("{queries} query strings");
    assert!(queries > 40_000, "{queries}");
    let unknown: Vec<_> =
        SUITE.unknown.iter().filter(|text| !text.contains(REFUSED_LATER)).map(String::as_str).collect();
    assert!(unknown.is_empty(), "{} unknown:\n{}", unknown.len(), unknown.join("\n"));
}

/// The opaque statements by kind and reason are those of the list. The list's counts are those of one release.
#[test]
fn few_are_opaque() {
    let (mut total, mut opaque) = (0, BTreeMap::<String, usize>::new());
    for query in &SUITE.queries {
        match &query.read {
            Ok(script) => {
                let counted =
                    |statement: &&Arc<Statement>| ![StatementKind::Do, StatementKind::Call].contains(&statement.kind);
                for statement in script.statements.iter().filter(counted) {
                    total += 1;
                    if let Some(why) = statement.opaque {
                        *opaque.entry(format!("{}: {why}", statement.kind)).or_default() += 1;
                    }
                }
            }
            // The server rejects it too.
            Err(Unreadable::Syntax) => {}
            Err(why) => {
                total += 1;
                *opaque.entry(format!("a text: {}", OpaqueReason::from(why))).or_default() += 1;
            }
        }
    }
    let all: usize = opaque.values().sum();
    println!("{all} of {total} are opaque");
    let release = postgres_source::release();
    let found: Vec<_> = opaque.iter().map(|(kind, count)| format!("{count:>4} {kind}")).collect();
    let found = [format!("{release}\n"), found.join("\n"), "\n".to_owned()].concat();
    let is_same_release = LIST.lines().next() == Some(release.as_str());
    let comparable = |list: &str| -> Vec<String> {
        let lines = list.lines().skip(1);
        lines
            .map(|line| if is_same_release { line.into() } else { line.trim_start()[2..].trim_start().into() })
            .collect()
    };
    assert!(all * 100 <= total, "{all} of {total} are opaque:\n{found}");
    assert_eq!(comparable(&found), comparable(LIST), "tests/soak/corpus/opaque.txt should be:\n{found}");
}

#[test]
fn rows_written_are_in_the_verdict() {
    let trials = &SUITE.trials;
    println!("{trials:#?}");
    assert!(trials["written as the verdict names it"] > 3_000);
    let missed = &SUITE.missed;
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
}

#[test]
fn tokens_and_parsers_agree() {
    let (mut proved, mut wrong) = (0, Vec::new());
    for query in &SUITE.queries {
        let Some((proof, read)) = fencegate_testing::properties::tokens::both(&query.text, query.lexing) else {
            continue;
        };
        proved += 1;
        if proof != read {
            wrong.push(format!("{}\n    {proof:?}\n    {read:?}", query.text.escape_ascii()));
        }
    }
    println!("{proved} query strings are proved by their tokens");
    assert!(wrong.is_empty(), "{} proved wrongly:\n{}", wrong.len(), wrong.join("\n"));
    assert!(proved > 5_000, "{proved}");
}

#[test]
fn other_literals_change_no_verdict() {
    let mut dice = Dice::new(seed());
    let plain = SUITE.queries.iter().filter(|query| query.lexing == LEXING);
    let spared: usize = plain.filter_map(|query| Some(read_once(str::from_utf8(&query.text).ok()?, &mut dice))).sum();
    println!("{spared} texts were not read");
    assert!(spared > 10_000, "{spared}");
}

/// The other parser reads ONLY as the relation, and the relation as its alias.
fn is_misread(target: &Target) -> bool {
    (&target.schema, target.name.as_str()) == (&None, "only")
}

#[test]
fn the_verdict_includes_the_second_reader() {
    let (mut read, mut targets, mut values, mut missing) = (0, 0, 0, Vec::new());
    for query in SUITE.queries.iter().filter(|query| query.lexing.standard_conforming_strings) {
        let Ok(text) = str::from_utf8(&query.text) else { continue };
        let (Some(mut theirs), Ok(ours)) = (second_reader::targets(text), analyze_rows(&query.text, query.lexing))
        else {
            continue;
        };
        theirs.retain(|target| !is_misread(target));
        read += 1;
        targets += theirs.len();
        values += theirs.iter().map(|target| target.values.len()).sum::<usize>();
        if ours.statements.iter().all(|statement| statement.opaque.is_none()) {
            let untold = theirs.iter().filter(|target| !tells(&ours, target));
            missing.extend(untold.map(|target| format!("{target:?}\n    {text}")));
        }
    }
    println!("{read} query strings, {targets} writes, {values} values");
    assert!(missing.is_empty(), "{} missing:\n{}", missing.len(), missing.join("\n"));
    assert!(read > 35_000 && targets > 8_000 && values > 10_000, "{read} {targets} {values}");
}

/// Returns true if the verdict has the write, and each value in columns for which it lists all values.
fn tells(script: &Script, target: &Target) -> bool {
    let named = |write: &&Write| {
        (&write.relation.schema, &write.relation.name) == (&target.schema, &target.name)
            && write.operation == target.operation
    };
    let writes: Vec<_> = script.statements.iter().flat_map(|statement| &statement.writes).filter(named).collect();
    let is_known = |(column, value): &(Column, String)| {
        let (name, place) = match column {
            Column::Named(name) => (name.as_str(), None),
            Column::Placed(place) => ("", Some(*place)),
        };
        let is_it = |known: &ColumnValue| matches!(known, ColumnValue::Literal { text, .. } if text == value);
        writes.iter().any(|write| write.rows.values(name, place).is_none_or(|values| values.iter().any(is_it)))
    };
    !writes.is_empty() && target.values.iter().all(is_known)
}
