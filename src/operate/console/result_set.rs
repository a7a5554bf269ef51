//! The answer to a command: columns with their types, rows, and notices.
//!
//! Owns the text and binary formats of values. Must never declare a column with a type that its values do not have.

use fencegate_fence::Database;
use fencegate_fence::store::StoreError;
use fencegate_policy::PolicySet;
use fencegate_wire::error::{ErrorText, Severity};
use futures_util::stream;
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::{DataRowEncoder, FieldFormat, FieldInfo, QueryResponse};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use std::sync::Arc;
use std::time::SystemTime;

/// A column of a table: its name, the type of its values, and its value for a row.
pub(super) struct TableColumn<R>(pub(super) &'static str, pub(super) ColumnType, pub(super) fn(&R) -> Cell);

pub(super) type Table<R> = Vec<TableColumn<R>>;

/// Name and type of a column. Clients may request them before there are rows.
pub(super) type Heading = (&'static str, ColumnType);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Text,
    Integer,
    Boolean,
    Time,
}

impl ColumnType {
    /// The type, and the size of a value in bytes or -1 if it varies, as in `pg_type`.
    fn of_postgres(self) -> (Type, i16) {
        match self {
            ColumnType::Text => (Type::TEXT, -1),
            ColumnType::Integer => (Type::INT8, 8),
            ColumnType::Boolean => (Type::BOOL, 1),
            ColumnType::Time => (Type::TIMESTAMPTZ, 8),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Null,
    Text(String),
    Integer(i64),
    Boolean(bool),
    Time(SystemTime),
}

macro_rules! convert {
    ($($from:ty: $value:ident => $into:expr;)*) => {$(
        impl From<$from> for Cell {
            fn from($value: $from) -> Self {
                $into
            }
        }
    )*};
}

convert! {
    &str: text => Cell::Text(text.to_owned());
    &String: text => Cell::Text(text.clone());
    String: text => Cell::Text(text);
    i32: number => Cell::Integer(number.into());
    i64: number => Cell::Integer(number);
    // No count here exceeds an int8.
    u64: count => Cell::Integer(i64::try_from(count).unwrap_or(i64::MAX));
    bool: yes => Cell::Boolean(yes);
    SystemTime: time => Cell::Time(time);
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Null, T::into)
    }
}

#[derive(Debug)]
pub(super) struct ResultSet {
    /// Hints and warnings about the rows.
    pub(super) notices: Vec<Notice>,
    headings: Vec<Heading>,
    rows: Vec<Vec<Cell>>,
    /// The tag in CommandComplete, before the number of rows.
    tag: &'static str,
}

/// A NOTICE or WARNING sent with an answer.
pub(super) type Notice = (Severity, ErrorText);

pub(super) fn headings<R>(table: &[TableColumn<R>]) -> Vec<Heading> {
    table.iter().map(|TableColumn(name, kind, _)| (*name, *kind)).collect()
}

impl ResultSet {
    /// The rows of a SHOW.
    pub(super) fn show<R>(table: &[TableColumn<R>], rows: impl IntoIterator<Item = R>) -> Self {
        ResultSet::tagged("SHOW", table, rows)
    }

    pub(super) fn tagged<R>(tag: &'static str, table: &[TableColumn<R>], rows: impl IntoIterator<Item = R>) -> Self {
        let values = |row: R| table.iter().map(|TableColumn(.., value)| value(&row)).collect();
        let rows = rows.into_iter().map(values).collect();
        ResultSet { notices: Vec::new(), headings: headings(table), rows, tag }
    }

    pub(super) fn with_notices(self, notices: Vec<Notice>) -> Self {
        ResultSet { notices, ..self }
    }

    /// The rows in the formats that the client requested.
    pub(super) fn into_response(self, format: &Format) -> PgWireResult<QueryResponse> {
        let fields = Arc::new(fields(&self.headings, format)?);
        let mut encoder = DataRowEncoder::new(fields.clone());
        let rows: Vec<_> = self.rows.iter().map(|row| encode(&mut encoder, row)).collect();
        let mut response = QueryResponse::new(fields, stream::iter(rows));
        response.set_command_tag(self.tag);
        Ok(response)
    }
}

fn encode(encoder: &mut DataRowEncoder, row: &[Cell]) -> PgWireResult<pgwire::messages::data::DataRow> {
    for value in row {
        match value {
            Cell::Null => encoder.encode_field(&None::<String>)?,
            Cell::Text(text) => encoder.encode_field(text)?,
            Cell::Integer(number) => encoder.encode_field(number)?,
            Cell::Boolean(yes) => encoder.encode_field(yes)?,
            Cell::Time(time) => encoder.encode_field(time)?,
        }
    }
    Ok(encoder.take_row())
}

/// The columns' names and formats; an error unless there is a format for each.
pub(super) fn fields(columns: &[Heading], format: &Format) -> PgWireResult<Vec<FieldInfo>> {
    if let Format::Individual(formats) = format
        && formats.len() != columns.len()
    {
        let (formats, columns) = (formats.len(), columns.len());
        let message = format!("bind message has {formats} result formats but the answer has {columns} columns");
        return Err(error(ErrorText::new("08P01", message)));
    }
    let field = |(index, (name, kind)): (usize, &Heading)| {
        let (datatype, size) = kind.of_postgres();
        let format: FieldFormat = format.format_for(index);
        FieldInfo::new((*name).to_owned(), None, None, datatype, format).with_type_size(size)
    };
    Ok(columns.iter().enumerate().map(field).collect())
}

/// An ERROR in pgwire's form.
pub(super) fn error(text: ErrorText) -> PgWireError {
    refusal(text, Severity::Error)
}

/// An error in pgwire's form.
pub fn refusal(text: ErrorText, severity: Severity) -> PgWireError {
    PgWireError::UserError(Box::new(info(text, severity)))
}

/// A text in pgwire's form.
pub(super) fn info(text: ErrorText, severity: Severity) -> ErrorInfo {
    let mut info = ErrorInfo::new(severity.name().to_owned(), text.code.to_owned(), field(text.message));
    info.severity_nonlocalized = Some(severity.name().to_owned());
    info.detail = Some(field(text.detail)).filter(|detail| !detail.is_empty());
    info.hint = Some(field(text.hint)).filter(|hint| !hint.is_empty());
    info
}

/// Removes NUL bytes, which would end the field: the rest would be read as other fields.
fn field(text: String) -> String {
    text.replace('\0', "")
}

/// The first entries of a list, and the number of the others.
pub(super) fn shortened(mut list: Vec<String>, most: usize, separator: &str) -> String {
    if list.len() > most {
        let more = format!("and {} more", list.len() - most);
        list.truncate(most);
        list.push(more);
    }
    list.join(separator)
}

/// Returns true if the database exists and may have a fenced table.
pub(super) fn is_concerned(policies: &PolicySet, database: &Database) -> bool {
    !database.is_missing() && (policies.databases.is_some() || !database.fences_nothing())
}

/// Warning with a result that covers the other databases. None if the failure shows that the database has no fences.
pub(super) fn unreadable(policies: &PolicySet, database: &Database, error: &StoreError) -> Option<Notice> {
    let text = format!("database \"{}\" cannot be queried: {error}", database.name());
    is_concerned(policies, database).then(|| (Severity::Warning, ErrorText::new("01000", text)))
}

/// Notice with a result without databases.
pub(super) fn no_databases() -> Notice {
    let message = "no database with fenced tables has had a session in the last ten minutes";
    let hint = "Databases are shown while they have sessions through this proxy, and for ten minutes afterwards. In the others, query fencegate_state.epoch.";
    notice(message, hint)
}

pub(super) fn notice(message: impl Into<String>, hint: &str) -> Notice {
    (Severity::Notice, ErrorText::new("00000", message).hint(hint))
}
