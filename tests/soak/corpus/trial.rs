//! The oracle: runs a query string in a transaction, queries the server for the actual writes, rolls back, and
//! compares.

use crate::corpus::session::{Session, controls_transactions};
use crate::corpus::stream::Message;
use crate::support::message::query;
use fencegate_statement::{Operation, Script, Statement, StatementKind, Unreadable, Write};
use std::collections::HashMap;
use std::io;

/// How the trial of a query string ended.
pub enum Finding {
    /// The query was not tried, or its trial has no result, for this reason.
    LeftOut(&'static str),
    /// The verdict explains all writes. The text names the least direct explanation.
    Explained(&'static str),
    /// A write that the verdict does not have.
    Missed(String),
    /// The server can parse the text, but our grammar cannot.
    Unknown,
}

impl Finding {
    pub fn name(&self) -> &'static str {
        match self {
            Self::LeftOut(why) => why,
            Self::Explained(how) => how,
            Self::Missed(_) => "missed",
            Self::Unknown => "unknown to our grammar",
        }
    }
}

/// Statements that a rollback does not undo, or that do nothing useful before one.
const OF_THE_SESSION: [StatementKind; 11] = [
    StatementKind::Set,
    StatementKind::Reset,
    StatementKind::Show,
    StatementKind::Prepare,
    StatementKind::Deallocate,
    StatementKind::Fetch,
    StatementKind::Move,
    StatementKind::Close,
    StatementKind::Discard,
    StatementKind::DiscardTemp,
    StatementKind::DiscardAll,
];

/// Statements whose locks count as writes, even if they write no rows.
const QUERIES: [StatementKind; 11] = [
    StatementKind::Select,
    StatementKind::Insert,
    StatementKind::Update,
    StatementKind::Delete,
    StatementKind::Merge,
    StatementKind::CopyFrom,
    StatementKind::CopyTo,
    StatementKind::ExplainAnalyze,
    StatementKind::Execute,
    StatementKind::Truncate,
    StatementKind::LockTable,
];

/// Reports the counts of earlier transactions before a new one begins.
const FLUSH: &str = "SELECT pg_catalog.pg_stat_force_next_flush()";

/// Tables with a write lock, and the number of rows that this transaction has written to them.
const WRITTEN: &str = "SELECT c.oid, n.nspname, c.relname, \
        pg_catalog.pg_stat_get_xact_tuples_inserted(c.oid), \
        pg_catalog.pg_stat_get_xact_tuples_updated(c.oid), \
        pg_catalog.pg_stat_get_xact_tuples_deleted(c.oid), \
        pg_catalog.count(*) \
    FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.database <> 0 \
        AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'SIReadLock') AND c.relkind IN ('r', 'p', 'v', 'm', 'f') \
        AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') GROUP BY 1, 2, 3";

struct Written {
    oid: String,
    schema: String,
    name: String,
    /// Rows inserted, updated and deleted, and the number of locks.
    counts: [i64; 4],
}

/// Tries the client's message, and restores the session, except for effects that a rollback does not undo.
pub fn run(session: &mut Session, message: &Message, read: &Result<Script, Unreadable>) -> io::Result<Finding> {
    let within = session.is_in_transaction();
    if !within && session.ask(FLUSH)?.is_err() {
        return Ok(Finding::LeftOut("the server refuses our question"));
    }
    let statements = match read {
        Ok(script) => script.statements.iter().map(|statement| session.resolve(statement)).collect::<Vec<_>>(),
        Err(Unreadable::Syntax) if takes(session, message)? => return Ok(Finding::Unknown),
        Err(Unreadable::Syntax) => return Ok(Finding::LeftOut("it is not SQL")),
        Err(_) => return Ok(Finding::LeftOut("it cannot be read")),
    };
    if let Some(why) = unfit(session, &statements) {
        return Ok(Finding::LeftOut(why));
    }
    let (begin, end) = around(session);
    let mut before = HashMap::new();
    if within {
        let Ok(written) = written(session)? else {
            return Ok(Finding::LeftOut("the server refuses our question"));
        };
        before.extend(written.into_iter().map(|written| (written.oid, written.counts)));
    }
    session.server.send(&[query(begin), message.0.clone()].concat())?;
    let _ = session.answer()?;
    let finding = match session.tried()? {
        Some(code) if code == "25001" => Finding::LeftOut("no transaction may hold it"),
        Some(_) => Finding::LeftOut("the server refuses it"),
        None if !session.is_in_transaction() => return Ok(Finding::Missed("it ended the transaction".into())),
        None => compare(session, &statements, &before)?,
    };
    session.ask(end)?.unwrap();
    Ok(finding)
}

/// Returns true if the server can parse the text: in a failed transaction, it then reports 25P02 and not a syntax
/// error.
fn takes(session: &mut Session, message: &Message) -> io::Result<bool> {
    let (begin, end) = around(session);
    let _ = session.ask(begin)?;
    let _ = session.ask("SELECT 1/0")?;
    session.server.send(&message.0)?;
    let taken = session.tried()?.is_some_and(|code| code == "25P02");
    let _ = session.ask(end)?;
    Ok(taken)
}

/// The statements that begin and end a trial.
fn around(session: &Session) -> (&'static str, &'static str) {
    match session.is_in_transaction() {
        false => ("BEGIN", "ROLLBACK"),
        true => ("SAVEPOINT trial", "ROLLBACK TO trial; RELEASE trial"),
    }
}

fn unfit(session: &Session, statements: &[Statement]) -> Option<&'static str> {
    let any = |is: fn(&Statement) -> bool| statements.iter().any(is);
    if session.status == b'E' {
        Some("the transaction has failed before")
    } else if statements.is_empty() {
        Some("it is empty")
    } else if any(controls_transactions) {
        Some("it controls transactions")
    } else if any(|statement| OF_THE_SESSION.contains(&statement.kind)) {
        Some("it concerns the session only")
    } else if any(|statement| statement.opaque.is_some()) {
        Some("it is opaque")
    } else {
        None
    }
}

fn compare(session: &mut Session, statements: &[Statement], before: &HashMap<String, [i64; 4]>) -> io::Result<Finding> {
    let Ok(written) = written(session)? else { return Ok(Finding::LeftOut("the server refuses our question")) };
    let locks_count = statements.iter().all(|statement| QUERIES.contains(&statement.kind));
    let writes: Vec<&Write> = statements.iter().flat_map(|statement| &statement.writes).collect();
    let mut unnamed = Vec::new();
    let (mut wrote, mut rows_written) = (false, false);
    for mut written in written {
        if let Some(before) = before.get(&written.oid) {
            written.counts.iter_mut().zip(before).for_each(|(count, before)| *count -= before);
        }
        let [inserted, updated, deleted, locks] = written.counts.map(|count| count > 0);
        if !(inserted || updated || deleted || locks && locks_count) {
            continue;
        }
        wrote = true;
        rows_written |= inserted || updated || deleted;
        let done = [(inserted, Operation::Insert), (updated, Operation::Update), (deleted, Operation::Delete)];
        let named = |operation: Option<Operation>| {
            writes
                .iter()
                .any(|write| written.is(write) && operation.is_none_or(|operation| write.operation == operation))
        };
        let is_named = named(None) && done.iter().all(|(done, operation)| !done || named(Some(*operation)));
        if !is_named {
            unnamed.push(written);
        }
    }
    if unnamed.is_empty() {
        return Ok(Finding::Explained(if wrote { "written as the verdict names it" } else { "nothing was written" }));
    }
    if statements.iter().all(|statement| statement.kind == StatementKind::Merge && statement.writes.is_empty())
        && !rows_written
    {
        return Ok(Finding::Explained("locked by a MERGE whose actions do nothing"));
    }
    if statements.iter().any(|statement| statement.changes_catalog) {
        return Ok(Finding::Explained("written by what changes the catalog"));
    }
    farther(session, statements, &writes, &unnamed)
}

/// Explains the writes by partitions, views, rules, cascades, triggers or functions in the catalog.
fn farther(
    session: &mut Session,
    statements: &[Statement],
    writes: &[&Write],
    unnamed: &[Written],
) -> io::Result<Finding> {
    let names = list(writes.iter().map(|write| write.relation.name.as_str()));
    let functions =
        list(statements.iter().flat_map(|statement| &statement.functions).map(|function| function.name.as_str()));
    let oids = list(unnamed.iter().map(|written| written.oid.as_str()));
    let rows = session.ask(&format!(
        "WITH RECURSIVE reached(relation) AS ( \
            SELECT oid FROM pg_catalog.pg_class WHERE relname IN ({names}) \
            UNION SELECT next.relation FROM reached, LATERAL ( \
                SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = reached.relation \
                UNION ALL SELECT conrelid FROM pg_catalog.pg_constraint WHERE confrelid = reached.relation AND contype = 'f' \
                UNION ALL SELECT d.refobjid FROM pg_catalog.pg_rewrite w JOIN pg_catalog.pg_depend d ON d.objid = w.oid \
                    WHERE w.ev_class = reached.relation AND d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass \
                    AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass) next(relation)) \
        SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid IN ({oids}) AND oid NOT IN (SELECT relation FROM reached)), \
            EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid IN (SELECT relation FROM reached) AND NOT tgisinternal), \
            EXISTS (SELECT FROM pg_catalog.pg_proc WHERE proname IN ({functions}) AND oid >= 16384)"
    ))?;
    let shown = || {
        let shown = unnamed.iter().map(|written| format!("{}.{} {:?}", written.schema, written.name, written.counts));
        shown.collect::<Vec<_>>().join(", ")
    };
    let is = |column: usize| rows.as_ref().is_ok_and(|rows| rows[0][column].as_deref() == Some("t"));
    Ok(match (is(0), is(1), is(2)) {
        (true, ..) => Finding::Explained("written by partitions, views, rules or cascades"),
        (_, true, _) => Finding::Explained("written by a trigger"),
        (_, _, true) => Finding::Explained("written by a function"),
        _ => Finding::Missed(format!("{} {:?}", shown(), rows.err())),
    })
}

fn written(session: &mut Session) -> io::Result<Result<Vec<Written>, String>> {
    let text = |column: &Option<String>| column.clone().unwrap_or_default();
    let count = |column: &Option<String>| text(column).parse().unwrap();
    let written = |row: &Vec<Option<String>>| Written {
        oid: text(&row[0]),
        schema: text(&row[1]),
        name: text(&row[2]),
        counts: [count(&row[3]), count(&row[4]), count(&row[5]), count(&row[6])],
    };
    Ok(session.ask(WRITTEN)?.map(|rows| rows.iter().map(written).collect()))
}

impl Written {
    fn is(&self, write: &Write) -> bool {
        let in_schema =
            write.relation.schema.as_ref().is_none_or(|schema| {
                *schema == self.schema || schema == "pg_temp" && self.schema.starts_with("pg_temp_")
            });
        self.name == write.relation.name && in_schema
    }
}

/// Literals for IN. The list is never empty.
fn list<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    let literals = texts.map(|text| format!("'{}'", text.replace('\'', "''")));
    literals.chain(["NULL".to_owned()]).collect::<Vec<_>>().join(", ")
}
