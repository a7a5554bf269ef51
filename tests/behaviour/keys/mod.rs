//! Compares the keys that the proxy reads from a statement with the keys that PostgreSQL writes. Triggers record the
//! keys of every affected row, and each must be among the reported keys. `FENCEGATE_SEED=n` and
//! `FENCEGATE_STATEMENTS=n` select other and more statements. A failure prints its statement.

mod generator;

use crate::support::message::{execute, parse, query, sync, tagged};
use crate::support::wire::{error_in, rows_in};
use crate::support::{Options, Postgres, Release, Wire, length, seed};
use fencegate_statement::rows::{Argument, Declared, ValueType};
use fencegate_statement::{Encoding, Lexing, Operation, PreparedEffect, ServerEncoding, Statement, analyze_rows};
use fencegate_testing::dice::Dice;
use fencegate_wire::message::{Bound, bound_values, parameter_types};
use generator::{Case, ColumnType, TYPES, statement};
use std::collections::HashSet;
use std::sync::Arc;

const LEXING: Lexing = Lexing {
    standard_conforming_strings: true,
    encoding: Encoding::Utf8,
    server: ServerEncoding::Utf8,
    release: Lexing::NEWEST,
};
/// The position of the key among the table's columns.
const PLACE: usize = 1;

#[test]
fn reported_keys_are_those_that_postgres_writes() {
    check_release(Release::Installed);
}

/// PostgreSQL 18 has `WHEN NOT MATCHED BY SOURCE`.
#[test]
#[ignore = "needs what comes from the network: make soak"]
fn reported_keys_are_those_that_postgres_18_writes() {
    check_release(Release::Eighteen);
}

/// Cases that random statements rarely contain: the written key differs from the key that appears in the text.
#[test]
fn traps() {
    let postgres = Postgres::start(Options::default());
    let column = TYPES.iter().find(|column| column.name == "text").unwrap();
    postgres.sql(&column.schema());
    let mut wire = Wire::login(&postgres.address(), "postgres", "postgres");
    wire.query("SET search_path = s_text, pg_catalog");
    let cases = [
        // The first use makes the parameter an integer.
        Case::new("INSERT INTO t (id, k) VALUES ($1::int, $1::text)", &["0099"]),
        Case::new("INSERT INTO t (id, k) VALUES ('101', '0099'), (102, 7) ORDER BY 1", &[]),
        Case::new("SELECT z.v FROM t AS z (id, v, k) WHERE k = 'v1' FOR UPDATE", &[]),
        Case::new("INSERT INTO t (id, k, v) VALUES ((t_row()).*)", &[]),
    ];
    wire.query("CREATE FUNCTION t_row() RETURNS t LANGUAGE sql AS $$ SELECT 101, 'a', 'x' $$");
    let mut tally = Tally::default();
    cases.iter().for_each(|case| check(&mut wire, column, case, &mut tally));
    assert_eq!((tally.ran, tally.told), (cases.len(), 0), "{tally:?}");
}

/// Arrays in the formats of `array_out` and `array_send`.
#[test]
fn arrays_that_postgres_writes_are_read() {
    const NUMBERS: &[&str] = &["0", "-7", "32767"];
    const WORDS: &[&str] =
        &["", " ", "a,b", "\"", "\\", "{", "}", "NULL", "null", "é", "x y", "\t", "\\\"", "''", "[0:1]={", "a"];
    const UUIDS: &[&str] = &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000001"];
    let postgres = Postgres::start(Options::default());
    let mut wire = Wire::login(&postgres.address(), "postgres", "postgres");
    let mut dice = Dice::new(seed());
    let delete = analyze_rows(b"DELETE FROM t WHERE k = ANY ($1)", LEXING).unwrap().statements.remove(0);
    for (name, oid, kind, words) in [
        ("int2", 1005, ValueType::Integer, NUMBERS),
        ("int4", 1007, ValueType::Integer, NUMBERS),
        ("int8", 1016, ValueType::Integer, NUMBERS),
        ("uuid", 2951, ValueType::Uuid, UUIDS),
        ("text", 1009, ValueType::Text, WORDS),
        ("varchar", 1015, ValueType::Text, WORDS),
    ] {
        for _ in 0..length(40, 1000) {
            let elements: Vec<Option<&str>> =
                (0..dice.below(6)).map(|_| (dice.below(6) > 0).then(|| *dice.pick(words))).collect();
            let literal = |element: &Option<&str>| {
                element.map_or("NULL".to_owned(), |it| format!("'{}'", it.replace('\'', "''")))
            };
            let items = elements.iter().map(literal).collect::<Vec<_>>().join(", ");
            let written =
                format!("SELECT a::text, encode(array_send(a), 'hex') FROM (SELECT ARRAY[{items}]::{name}[]) x(a)");
            let row = wire.rows(&written).unwrap().remove(0);
            let [text, hex] = [row[0].clone().unwrap(), row[1].clone().unwrap()];
            let binary: Vec<u8> =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
            let declared = vec![Declared::from_oid(if dice.below(2) == 0 { 0 } else { oid })];
            let statement = Statement { declared, ..Statement::clone(&delete) };
            let keys = |argument| told(&statement.bound(&[argument]), Operation::Delete, kind);
            let expected: HashSet<String> = elements.iter().flatten().map(|it| (*it).to_owned()).collect();
            assert_eq!(keys(Argument::Binary(&binary)), Some(expected.clone()), "{name} {text}");
            // With array_nulls = off, an array in text has no NULL.
            let is_sure = kind != ValueType::Text || elements.iter().all(Option::is_some);
            assert_eq!(keys(Argument::Text(text.as_bytes())), is_sure.then_some(expected), "{name} {text}");
            assert_eq!(keys(Argument::Binary(&binary[..binary.len() - 1])), None, "{name} {text}");
            assert_eq!(keys(Argument::Text(&text.as_bytes()[..text.len() - 1])), None, "{name} {text}");
        }
    }
}

fn check_release(release: Release) {
    let postgres = Postgres::start(Options::default().release(release));
    let (seed, count) = (seed(), length(600, 6000));
    let mut tally = Tally::default();
    for (index, column) in TYPES.iter().enumerate() {
        postgres.sql(&column.schema());
        let mut wire = Wire::login(&postgres.address(), "postgres", "postgres");
        wire.query(&format!("SET search_path = s_{}, pg_catalog", column.name));
        let mut dice = Dice::new(seed * 1000 + index as u64);
        for _ in 0..count / TYPES.len() as u64 {
            check(&mut wire, column, &statement(&mut dice, column), &mut tally);
        }
    }
    println!("seed {seed}: {tally:?}");
    // A reader that reports no keys would never be wrong.
    assert!(tally.ran > tally.all / 4, "few statements ran: {tally:?}");
    assert!(tally.told > tally.ran / 4, "few statements reported their keys: {tally:?}");
    assert!(tally.rows > tally.told / 4, "few of them touched a row: {tally:?}");
}

#[derive(Debug, Default)]
struct Tally {
    all: usize,
    /// Number of statements that the server has executed.
    ran: usize,
    /// Number of statements with a write whose keys were reported.
    told: usize,
    /// Affected rows that the reported keys cover.
    rows: usize,
}

/// An affected row, with its keys before and after.
struct AffectedResources {
    operation: Operation,
    keys: Vec<String>,
}

fn check(wire: &mut Wire, column: &ColumnType, case: &Case, tally: &mut Tally) {
    tally.all += 1;
    let bind = case.bind();
    let frames = match case.prepares() {
        Some([prepare, run]) => {
            wire.query("BEGIN");
            wire.query(prepare);
            wire.query(run)
        }
        None if case.parameters.is_empty() => {
            wire.query("BEGIN");
            wire.query(&case.text)
        }
        None => {
            let types: Vec<u32> = case.parameters.iter().map(|parameter| parameter.oid).collect();
            let messages = [parse("", &case.text, &types), tagged(b'B', &bind), execute("", 0), sync()];
            wire.exchange(&[query("BEGIN"), messages.concat()].concat());
            wire.read_until_ready()
        }
    };
    let failed = error_in(&frames).is_some();
    let mut touched = Vec::new();
    if !failed {
        touched.extend(locked(case, &rows_in(&frames)));
        touched.extend(wire.rows("SELECT op, before, after FROM touched").unwrap().iter().map(|row| recorded(row)));
    }
    wire.query("ROLLBACK; DEALLOCATE ALL");
    if failed {
        return;
    }
    tally.ran += 1;
    let statement = analyzed(case, &bind);
    let mut any_told = false;
    for operation in [Operation::Insert, Operation::Update, Operation::Delete, Operation::Lock] {
        let Some(told) = told(&statement, operation, column.kind) else { continue };
        any_told |= !told.is_empty();
        for row in touched.iter().filter(|row| row.operation == operation) {
            tally.rows += 1;
            for key in &row.keys {
                assert!(told.contains(key), "{operation:?} of {key:?}, reported: {told:?}: {case:#?}\n{statement:#?}");
            }
        }
    }
    tally.told += usize::from(any_told);
}

fn locked(case: &Case, rows: &[Vec<Option<String>>]) -> Vec<AffectedResources> {
    let key = |row: &Vec<Option<String>>| row.first().cloned().flatten().expect("a key");
    let rows = rows.iter().filter(|_| case.locks);
    rows.map(|row| AffectedResources { operation: Operation::Lock, keys: vec![key(row)] }).collect()
}

fn recorded(row: &[Option<String>]) -> AffectedResources {
    let operation = match row[0].as_deref() {
        Some("INSERT") => Operation::Insert,
        Some("UPDATE") => Operation::Update,
        _ => Operation::Delete,
    };
    let mut keys: Vec<String> = row[1..].iter().flatten().cloned().collect();
    if operation == Operation::Insert && keys.is_empty() {
        keys.push("NULL in place of a key".to_owned());
    }
    AffectedResources { operation, keys }
}

/// The statement as the proxy analyzes it.
fn analyzed(case: &Case, bind: &[u8]) -> Statement {
    let read = |text: &str| -> Arc<Statement> { analyze_rows(text.as_bytes(), LEXING).unwrap().statements.remove(0) };
    if let Some([prepare, run]) = case.prepares() {
        let prepared = read(prepare);
        let PreparedEffect::Prepare { statement, .. } = &prepared.prepared else { panic!("{prepare}") };
        return read(run).executing(Some(statement));
    }
    let oids: Vec<u8> = case.parameters.iter().flat_map(|parameter| parameter.oid.to_be_bytes()).collect();
    let count = u16::try_from(case.parameters.len()).unwrap().to_be_bytes();
    let types = parameter_types(&[&count[..], &oids].concat()).unwrap();
    let declared = types.into_iter().map(Declared::from_oid).collect();
    let values = bound_values(&bind[2..]).unwrap().into_iter().map(|value| match value {
        Bound::Null => Argument::Null,
        Bound::Text(bytes) => Argument::Text(bytes),
        Bound::Binary(bytes) => Argument::Binary(bytes),
    });
    let statement = Statement { declared, ..Arc::unwrap_or_clone(read(&case.text)) };
    statement.bound(&values.collect::<Vec<_>>())
}

/// The keys that an operation of the statement may affect. None if they are unknown.
fn told(statement: &Statement, operation: Operation, kind: ValueType) -> Option<HashSet<String>> {
    let mut keys = HashSet::new();
    for write in statement.writes.iter().filter(|write| write.operation == operation && write.relation.name == "t") {
        for value in write.rows.values("k", Some(PLACE))? {
            if !value.is_nothing_in(kind) {
                keys.insert(value.in_column(kind)?);
            }
        }
    }
    Some(keys)
}
