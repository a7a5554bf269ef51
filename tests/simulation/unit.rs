//! Units: the messages that a client sends up to one ReadyForQuery.
//!
//! Owns their bytes.

use super::sql::{Sql, Table, shown};
use super::world::{Dice, World};
use bytes::{BufMut, BytesMut};
use fencegate_wire::frame::put_frame;
use fencegate_wire::message::{put_bind, put_close_statement, put_execute, put_flush, put_parse, put_query, put_sync};
use fencegate_wire::tag::frontend;

/// The OIDs of `lo_creat` and of a user's function.
pub const LARGE_OBJECT_FUNCTION: u32 = 957;
const OTHER_FUNCTION: u32 = 20_000;
/// The tag of the reply to a fast-path call.
pub const FUNCTION_RESULT: u8 = b'V';

/// Messages that are sent up to one ReadyForQuery.
#[derive(Clone, Debug)]
pub struct Unit {
    pub statements: Vec<Sql>,
    pub form: Form,
    pub copy: Copy,
}

/// The rows of a unit's COPY.
#[derive(Clone, Debug, Default)]
pub struct Copy {
    /// Their ids.
    pub rows: Vec<u64>,
    pub end: End,
    /// They are sent before the server requests them.
    pub is_eager: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    #[default]
    Done,
    /// The client fails the COPY.
    Fails,
    /// The client sends an invalid row, and does not end the data.
    InvalidRow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One query string.
    Simple,
    /// A pipeline with a Sync at its end; `bound`: ids are parameters; `flushes`: with a Flush behind each statement.
    Extended { bound: bool, flushes: bool },
    /// A pipeline with a Flush, a pause and a Sync.
    Flushed,
    /// A pipeline whose last statement runs by name. The name may be defined earlier or in the pipeline.
    Named { name: u8, closes: bool, parses: bool },
    /// A fast-path call.
    Call,
}

impl Unit {
    pub fn simple(statements: Vec<Sql>) -> Unit {
        Unit { statements, form: Form::Simple, copy: Copy::default() }
    }

    /// A COPY with these rows.
    pub fn copies(table: Table, copy: Copy) -> Unit {
        Unit { copy, ..Unit::simple(vec![Sql::CopyIn(table)]) }
    }

    /// A fast-path call.
    pub fn call(is_harmless: bool) -> Unit {
        Unit { form: Form::Call, ..Unit::simple(vec![Sql::Function { is_harmless }]) }
    }

    pub fn put(&self, output: &mut BytesMut) {
        self.put_statements(output);
        self.put_end(output);
    }

    /// The messages up to the rows of a COPY.
    pub fn put_statements(&self, output: &mut BytesMut) {
        match self.form {
            Form::Call => put_call(output, &self.statements),
            Form::Simple => {
                let text: Vec<String> = self.statements.iter().map(Sql::to_string).collect();
                put_query(output, &[text.join("; ").as_bytes()]);
            }
            Form::Extended { bound, flushes } => {
                for sql in &self.statements {
                    put_extended(output, sql, bound);
                    if flushes {
                        put_flush(output);
                    }
                }
            }
            Form::Flushed => {
                for sql in &self.statements {
                    put_extended(output, sql, false);
                }
                put_flush(output);
            }
            Form::Named { name, closes, parses } => {
                let Some((last, before)) = self.statements.split_last() else { return };
                for sql in before {
                    put_extended(output, sql, false);
                }
                put_named(output, last, &format!("p{name}"), closes, parses);
            }
        }
    }

    /// The messages from there on.
    pub fn put_end(&self, output: &mut BytesMut) {
        if self.copy.is_eager {
            self.put_rows(output);
            self.put_end_of_rows(output);
        }
        match self.form {
            Form::Extended { .. } | Form::Named { .. } => put_sync(output),
            Form::Simple | Form::Flushed | Form::Call => {}
        }
    }

    pub fn put_rows(&self, output: &mut BytesMut) {
        let mut text: String = self.copy.rows.iter().map(|id| format!("{}\n", shown(*id))).collect();
        if self.copy.end == End::InvalidRow {
            text.push_str("no number\n");
        }
        put_frame(output, frontend::COPY_DATA, |out| out.put_slice(text.as_bytes()));
    }

    pub fn put_end_of_rows(&self, output: &mut BytesMut) {
        match self.copy.end {
            End::InvalidRow => {}
            End::Fails => put_frame(output, frontend::COPY_FAIL, |out| out.put_slice(b"no more\0")),
            End::Done => put_frame(output, frontend::COPY_DONE, |_| {}),
        }
    }
}

/// A fast-path call without arguments.
fn put_call(output: &mut BytesMut, statements: &[Sql]) {
    let is_harmless = matches!(statements, [Sql::Function { is_harmless: true }]);
    put_frame(output, frontend::FUNCTION_CALL, |out| {
        out.put_u32(if is_harmless { LARGE_OBJECT_FUNCTION } else { OTHER_FUNCTION });
        out.put_slice(&[0, 0, 0, 0, 0, 0]);
    });
}

fn put_named(output: &mut BytesMut, sql: &Sql, name: &str, closes: bool, parses: bool) {
    let Some((unbound, id)) = sql.unbound() else { return put_extended(output, sql, false) };
    if closes {
        put_close_statement(output, name);
    }
    if parses {
        put_parse(output, name, &unbound.to_string());
    }
    put_id(output, name, id);
    put_execute(output, "");
}

/// Binds the id.
fn put_id(output: &mut BytesMut, statement: &str, id: u64) {
    put_frame(output, frontend::BIND, |out| {
        let value = shown(id).to_string();
        out.put_u8(0);
        out.put_slice(statement.as_bytes());
        out.put_slice(&[0, 0, 0, 0, 1]);
        out.put_i32(value.len() as i32);
        out.put_slice(value.as_bytes());
        out.put_slice(&[0, 0]);
    });
}

fn put_extended(output: &mut BytesMut, sql: &Sql, bound: bool) {
    match sql.unbound() {
        Some((unbound, id)) if bound => {
            put_parse(output, "", &unbound.to_string());
            put_id(output, "", id);
        }
        _ => {
            put_parse(output, "", &sql.to_string());
            put_bind(output, "", "");
        }
    }
    put_execute(output, "");
}

/// The ids of all writes of these statements of the unit.
pub fn ids<'a>(statements: &'a [Sql], unit: &'a Unit) -> impl Iterator<Item = u64> + 'a {
    let copies = statements.iter().any(|sql| matches!(sql, Sql::CopyIn(_)));
    let written = statements.iter().filter_map(Sql::id);
    written.chain(unit.copy.rows.iter().copied().filter(move |_| copies))
}

/// A write to one of the tables.
pub fn write(world: &World, dice: &mut Dice, table: Table, id: u64) -> Sql {
    let (id, row) = (Some(id), world.some_row(dice, table));
    match dice.chance(70) {
        true if table.is_keyed() => Sql::Insert { table, row, id },
        true => Sql::Insert { table, row: 0, id },
        false => Sql::Update { table, row, id },
    }
}
