//! The answer to a command: columns with their types, rows, and notices.
//!
//! Owns how a value is written, as text and in binary. Must never give a column another type than its values have.

use crate::wire::error::{ErrorText, Severity};
use futures_util::stream;
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::{DataRowEncoder, FieldFormat, FieldInfo, QueryResponse};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use std::sync::Arc;
use std::time::SystemTime;

/// A column of a table: its name, the type of its values, and its value for a row.
pub(super) struct Column<R>(pub(super) &'static str, pub(super) Kind, pub(super) fn(&R) -> Value);

pub(super) type Table<R> = Vec<Column<R>>;

/// The name and the type of a column, which clients may ask for before there are rows.
pub(super) type Heading = (&'static str, Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Boolean,
    Time,
}

impl Kind {
    /// With the bytes of a value, or -1 where these vary: as in `pg_type`.
    fn of_postgres(self) -> (Type, i16) {
        match self {
            Kind::Text => (Type::TEXT, -1),
            Kind::Integer => (Type::INT8, 8),
            Kind::Boolean => (Type::BOOL, 1),
            Kind::Time => (Type::TIMESTAMPTZ, 8),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Text(String),
    Integer(i64),
    Boolean(bool),
    Time(SystemTime),
}

macro_rules! convert {
    ($($from:ty: $value:ident => $into:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $into
            }
        }
    )*};
}

convert! {
    &str: text => Value::Text(text.to_owned());
    &String: text => Value::Text(text.clone());
    String: text => Value::Text(text);
    i32: number => Value::Integer(number.into());
    i64: number => Value::Integer(number);
    // No count here exceeds an int8.
    u64: count => Value::Integer(i64::try_from(count).unwrap_or(i64::MAX));
    bool: yes => Value::Boolean(yes);
    SystemTime: time => Value::Time(time);
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, T::into)
    }
}

#[derive(Debug)]
pub(super) struct Answer {
    /// Hints and warnings about the rows.
    pub(super) notices: Vec<Notice>,
    headings: Vec<Heading>,
    rows: Vec<Vec<Value>>,
    /// In CommandComplete, before the number of rows.
    tag: &'static str,
}

/// A NOTICE or WARNING beside an answer.
pub(super) type Notice = (Severity, ErrorText);

pub(super) fn headings<R>(table: &[Column<R>]) -> Vec<Heading> {
    table.iter().map(|Column(name, kind, _)| (*name, *kind)).collect()
}

impl Answer {
    /// The rows of a SHOW.
    pub(super) fn show<R>(table: &[Column<R>], rows: impl IntoIterator<Item = R>) -> Self {
        Answer::tagged("SHOW", table, rows)
    }

    pub(super) fn tagged<R>(tag: &'static str, table: &[Column<R>], rows: impl IntoIterator<Item = R>) -> Self {
        let values = |row: R| table.iter().map(|Column(.., value)| value(&row)).collect();
        let rows = rows.into_iter().map(values).collect();
        Answer { notices: Vec::new(), headings: headings(table), rows, tag }
    }

    pub(super) fn with_notices(self, notices: Vec<Notice>) -> Self {
        Answer { notices, ..self }
    }

    /// The rows in the formats that the client wants.
    pub(super) fn into_response(self, format: &Format) -> PgWireResult<QueryResponse> {
        let fields = Arc::new(fields(&self.headings, format)?);
        let mut encoder = DataRowEncoder::new(fields.clone());
        let rows: Vec<_> = self.rows.iter().map(|row| encode(&mut encoder, row)).collect();
        let mut response = QueryResponse::new(fields, stream::iter(rows));
        response.set_command_tag(self.tag);
        Ok(response)
    }
}

fn encode(encoder: &mut DataRowEncoder, row: &[Value]) -> PgWireResult<pgwire::messages::data::DataRow> {
    for value in row {
        match value {
            Value::Null => encoder.encode_field(&None::<String>)?,
            Value::Text(text) => encoder.encode_field(text)?,
            Value::Integer(number) => encoder.encode_field(number)?,
            Value::Boolean(yes) => encoder.encode_field(yes)?,
            Value::Time(time) => encoder.encode_field(time)?,
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

/// Without a NUL, which would end it, and what follows would pass for other fields.
fn field(text: String) -> String {
    text.replace('\0', "")
}
