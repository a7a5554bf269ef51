//! What a command answers: columns with their types, rows, and what is to be said beside them.
//!
//! Owns how a value is written, as text and in binary. Must never say a type that the value is not of.

use crate::wire::error::{ErrorText, Severity};
use futures_util::stream;
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::{DataRowEncoder, FieldFormat, FieldInfo, QueryResponse};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use std::sync::Arc;
use std::time::SystemTime;

/// A column: its name, and what its values are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column(pub(super) &'static str, pub(super) Kind);

/// What a value is.
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

/// A value in a row; None is NULL.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(Option<String>),
    Integer(Option<i64>),
    Boolean(Option<bool>),
    Time(Option<SystemTime>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(Some(text.to_owned()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(Some(text))
    }
}

impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Self {
        Value::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Integer(Some(number))
    }
}

impl From<Option<i64>> for Value {
    fn from(number: Option<i64>) -> Self {
        Value::Integer(number)
    }
}

impl From<u64> for Value {
    /// A count beyond what an int8 holds is not one that anything here reaches.
    fn from(count: u64) -> Self {
        i64::try_from(count).unwrap_or(i64::MAX).into()
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Self {
        Value::Boolean(Some(yes))
    }
}

impl From<Option<bool>> for Value {
    fn from(yes: Option<bool>) -> Self {
        Value::Boolean(yes)
    }
}

impl From<SystemTime> for Value {
    fn from(time: SystemTime) -> Self {
        Value::Time(Some(time))
    }
}

impl From<Option<SystemTime>> for Value {
    fn from(time: Option<SystemTime>) -> Self {
        Value::Time(time)
    }
}

/// What a command says.
#[derive(Debug)]
pub(super) struct Answer {
    /// What could not be said in rows, and what else is to be known of them.
    pub(super) notices: Vec<(Severity, ErrorText)>,
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Vec<Value>>,
    /// In CommandComplete, before the number of rows.
    pub(super) tag: &'static str,
}

impl Answer {
    /// The rows of a SHOW.
    pub(super) fn show(columns: &'static [Column], rows: Vec<Vec<Value>>) -> Self {
        Answer { notices: Vec::new(), columns, rows, tag: "SHOW" }
    }

    /// The same with something said beside it.
    pub(super) fn with_notices(mut self, notices: Vec<(Severity, ErrorText)>) -> Self {
        self.notices = notices;
        self
    }

    /// The rows in the formats that the client wants.
    ///
    /// # Errors
    /// The formats are not as many as the columns.
    pub(super) fn into_response(self, format: &Format) -> PgWireResult<QueryResponse> {
        let fields = Arc::new(fields(self.columns, format)?);
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
            Value::Text(text) => encoder.encode_field(text)?,
            Value::Integer(number) => encoder.encode_field(number)?,
            Value::Boolean(yes) => encoder.encode_field(yes)?,
            Value::Time(time) => encoder.encode_field(time)?,
        }
    }
    Ok(encoder.take_row())
}

/// What the columns are called, and how their values are written.
///
/// # Errors
/// The formats are not as many as the columns.
pub(super) fn fields(columns: &[Column], format: &Format) -> PgWireResult<Vec<FieldInfo>> {
    if let Format::Individual(formats) = format
        && formats.len() != columns.len()
    {
        let (formats, columns) = (formats.len(), columns.len());
        let message = format!("bind message has {formats} result formats but the answer has {columns} columns");
        return Err(error(ErrorText::new("08P01", message)));
    }
    let field = |(index, Column(name, kind)): (usize, &Column)| {
        let (datatype, size) = kind.of_postgres();
        let format: FieldFormat = format.format_for(index);
        FieldInfo::new((*name).to_owned(), None, None, datatype, format).with_type_size(size)
    };
    Ok(columns.iter().enumerate().map(field).collect())
}

/// An ERROR in pgwire's form.
pub(super) fn error(text: ErrorText) -> PgWireError {
    PgWireError::UserError(Box::new(info(text, Severity::Error)))
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
