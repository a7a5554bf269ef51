//! Units: the messages that a client sends up to one ReadyForQuery.
//!
//! Owns their bytes.

use super::sql::{Sql, Table, shown};
use super::world::{Dice, World};
use bytes::{BufMut, BytesMut};
use fencegate_wire::frame::put_frame;
use fencegate_wire::message::{
    put_bind, put_close_portal, put_close_statement, put_execute, put_flush, put_parse, put_query, put_sync,
};
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
    /// A pipeline with a Sync at its end; `bound`: ids and keys are parameters; `flushes`: with a Flush behind each
    /// statement.
    Extended { bound: bool, flushes: bool },
    /// A pipeline with a Flush, a pause and a Sync.
    Flushed,
    /// A pipeline whose last statement runs by name. The name may be defined earlier or in the pipeline.
    Named { name: u8, closes: bool, parses: bool },
    /// A pipeline that binds all statements to portals before it runs the first one.
    Late,
    /// A pipeline without a Sync: the last statement is a simple query, which ends it. After an error, the server skips
    /// the query.
    Unsynced,
    /// The statement is bound to a portal, which stays until the transaction ends.
    Opens(u8),
    /// An earlier portal runs. It returns at most `rows` rows; 0: all.
    Runs { portal: u8, rows: u8 },
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
            Form::Late => {
                for (sql, portal) in self.statements.iter().zip(0..) {
                    put_opened(output, sql, &format!("l{portal}"));
                }
                (0..self.statements.len()).for_each(|portal| put_execute(output, &format!("l{portal}")));
            }
            Form::Unsynced => {
                let Some((last, before)) = self.statements.split_last() else { return };
                before.iter().for_each(|sql| put_extended(output, sql, false));
                put_query(output, &[last.to_string().as_bytes()]);
            }
            Form::Opens(portal) => {
                self.statements.iter().for_each(|sql| put_opened(output, sql, &format!("o{portal}")));
            }
            Form::Runs { portal, rows } => put_frame(output, frontend::EXECUTE, |out| {
                out.put_slice(format!("o{portal}\0").as_bytes());
                out.put_i32(rows.into());
            }),
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
            Form::Simple | Form::Flushed | Form::Unsynced | Form::Call => {}
            _ => put_sync(output),
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
    let Some((unbound, values)) = sql.unbound() else { return put_extended(output, sql, false) };
    if closes {
        put_close_statement(output, name);
    }
    if parses {
        put_parse(output, name, &unbound.to_string());
    }
    put_values(output, "", name, &values);
    put_execute(output, "");
}

/// Binds the values, as text.
fn put_values(output: &mut BytesMut, portal: &str, statement: &str, values: &[u64]) {
    put_frame(output, frontend::BIND, |out| {
        out.put_slice(format!("{portal}\0{statement}\0").as_bytes());
        out.put_u16(0);
        out.put_u16(values.len() as u16);
        for value in values.iter().map(u64::to_string) {
            out.put_i32(value.len() as i32);
            out.put_slice(value.as_bytes());
        }
        out.put_u16(0);
    });
}

/// Binds the statement to the portal, in place of an earlier one.
fn put_opened(output: &mut BytesMut, sql: &Sql, portal: &str) {
    put_close_portal(output, portal);
    put_bound(output, sql, portal, true);
}

fn put_extended(output: &mut BytesMut, sql: &Sql, bound: bool) {
    put_bound(output, sql, "", bound);
    put_execute(output, "");
}

fn put_bound(output: &mut BytesMut, sql: &Sql, portal: &str, bound: bool) {
    match sql.unbound() {
        Some((unbound, values)) if bound => {
            put_parse(output, "", &unbound.to_string());
            put_values(output, portal, "", &values);
        }
        _ => {
            put_parse(output, "", &sql.to_string());
            put_bind(output, portal, "");
        }
    }
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
