//! The rows that a write affects, as far as its text shows: for each column, the possible values.
//!
//! Owns the known values, and their meaning in a column; `bound.rs` handles values bound to parameters. Must never omit
//! a value that a row has before or after the write: unless all values of a column are known, omits the column.

pub(super) use super::bound::Budget;
pub use super::bound::{Argument, ArrayParameter, Beside, Distinct, Purpose};
use serde::{Deserialize, Serialize};

/// Longest key, in bytes of UTF-8. In a name it is at most three times as long, which still fits in an index entry.
pub const LONGEST_KEY: usize = 256;

/// Maximum number of different values in a column.
pub const MOST_VALUES: usize = 10_000;

/// The supported types of keys, by their names in `pg_type`.
pub const KEY_TYPES: [&str; 6] = ["int2", "int4", "int8", "text", "varchar", "uuid"];

/// Other types whose arrays can stand beside an array of keys in `unnest`: their elements are separated by commas.
pub const COUNTED_TYPES: [&str; 17] = [
    "bool",
    "bpchar",
    "bytea",
    "date",
    "float4",
    "float8",
    "inet",
    "interval",
    "json",
    "jsonb",
    "name",
    "numeric",
    "oid",
    "time",
    "timestamp",
    "timestamptz",
    "timetz",
];

/// The function that makes rows of arrays.
pub const UNNEST: &str = "unnest";

/// For each column, the possible values of every affected row, before and after the write. A missing column is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rows {
    columns: Vec<(Column, Vec<ColumnValue>)>,
    extent: Extent,
}

/// Whether the text was read for its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Extent {
    #[default]
    Read,
    /// It is too long, or nested too deeply.
    TooComplex,
    /// Not requested: many texts may share the verdict.
    LeftOut,
}

/// A column of the relation that is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Column {
    /// By its name, folded and unquoted.
    Named(String),
    /// By its position among the relation's columns, from 0, for an INSERT without a column list.
    Placed(usize),
}

/// A value in a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ColumnValue {
    /// A literal, or a value that was bound as text.
    Literal {
        /// The server's output form for its type.
        text: String,
        /// None: the type of the column.
        kind: Option<ValueType>,
    },
    /// A value that was bound in binary, to a parameter of the column's type.
    Binary(Vec<u8>),
    /// `$number`, whose value is bound later.
    Parameter {
        /// From 1.
        number: usize,
        /// The type of a cast; `None` for the column's own type.
        cast: Option<ValueType>,
        /// True if every use of it in the statement requires this type. The server then infers the type, unless the
        /// client declares another.
        is_alone: bool,
    },
    /// The elements of an array that is bound later.
    Elements(Box<ArrayParameter>),
    /// An unquoted `NULL` in an array in text format: no value, or the text `NULL` with `array_nulls = off`.
    NullWord,
    /// More than [`MOST_VALUES`] values. It is then the only entry.
    TooMany,
}

/// The declared type of a prepared statement's parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Declared {
    /// None: the server infers it.
    #[default]
    Not,
    /// A supported type.
    As(ValueType),
    /// An array of this type.
    Array(ElementType),
    /// Any other type.
    Otherwise,
}

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ElementType {
    /// A supported type of keys.
    Key(ValueType),
    /// Another type, by its place in [`COUNTED_TYPES`].
    Counted(usize),
}

/// Types whose values can be compared by text: equal values have a single text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ValueType {
    /// `smallint`, `integer`, `bigint`.
    Integer,
    /// `text`, `varchar`.
    Text,
    /// `uuid`.
    Uuid,
}

impl Column {
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Column::Named(name) => Some(name),
            Column::Placed(_) => None,
        }
    }
}

impl Rows {
    /// Rows with these columns, each once.
    pub(super) fn new(columns: impl IntoIterator<Item = (Column, Vec<ColumnValue>)>) -> Self {
        let once =
            |(column, values): (Column, Vec<ColumnValue>)| (column, values.into_iter().collect::<Distinct>().list());
        Self { columns: columns.into_iter().map(once).collect(), extent: Extent::Read }
    }

    /// Rows of a text that is too long or too deeply nested to search.
    pub(super) fn unread() -> Self {
        Self { extent: Extent::TooComplex, ..Self::default() }
    }

    /// Rows of a text that was not read for them.
    pub(super) fn left_out() -> Self {
        Self { extent: Extent::LeftOut, ..Self::default() }
    }

    /// True if the text is too long or too deeply nested to show rows.
    pub fn are_unread(&self) -> bool {
        self.extent == Extent::TooComplex
    }

    /// True if the text was not read for its rows.
    pub fn are_left_out(&self) -> bool {
        self.extent == Extent::LeftOut
    }

    /// The values in a column; None if they are not all known.
    pub fn values(&self, name: &str, place: Option<usize>) -> Option<&[ColumnValue]> {
        let is_wanted = |column: &Column| match column {
            Column::Named(other) => other == name,
            Column::Placed(other) => Some(*other) == place,
        };
        self.columns.iter().find(|(column, _)| is_wanted(column)).map(|(_, values)| values.as_slice())
    }

    /// Returns true if `other` knows at least as much: for each column, this one has the same values or none.
    pub fn implies_no_more_than(&self, other: &Rows) -> bool {
        self.columns.iter().all(|known| other.columns.contains(known))
    }

    #[cfg(test)]
    pub(super) fn columns(&self) -> &[(Column, Vec<ColumnValue>)] {
        &self.columns
    }

    /// All values, of all columns.
    pub(super) fn all_values(&mut self) -> impl Iterator<Item = &mut ColumnValue> {
        self.columns.iter_mut().flat_map(|(_, values)| values)
    }

    /// True if the parameter with that number, from 1, may be the value of such a column.
    pub(super) fn use_parameter(&self, wanted: usize, is_meant: &impl Fn(&str) -> bool) -> bool {
        let is_wanted = |value: &ColumnValue| value.parameters().any(|number| number == wanted);
        self.columns.iter().any(|(column, values)| column.name().is_none_or(is_meant) && values.iter().any(is_wanted))
    }

    pub(super) fn has_parameters(&self) -> bool {
        self.columns.iter().any(|(_, values)| values.iter().any(|value| value.parameters().next().is_some()))
    }

    /// Replaces each value by those that `replace` adds. If it returns None, omits the column.
    pub(super) fn replaced(&self, mut replace: impl FnMut(&ColumnValue, &mut Distinct) -> Option<()>) -> Rows {
        let mut replaced = |(column, values): &(Column, Vec<ColumnValue>)| {
            let mut distinct = Distinct::default();
            values.iter().try_for_each(|value| replace(value, &mut distinct))?;
            Some((column.clone(), distinct.list()))
        };
        Rows { columns: self.columns.iter().filter_map(&mut replaced).collect(), extent: self.extent }
    }

    /// Omits the columns with a name or text for which `is_unsure` returns true.
    pub(super) fn forget(&mut self, is_unsure: impl Fn(&str) -> bool) {
        self.columns.retain(|(column, values)| {
            !column.name().into_iter().chain(values.iter().filter_map(ColumnValue::text)).any(&is_unsure)
        });
    }

    /// Approximate memory of the rows, in bytes.
    pub(super) fn weight(&self) -> usize {
        let column = |(column, values): &(Column, Vec<ColumnValue>)| {
            size_of::<(Column, Vec<ColumnValue>)>()
                + column.name().map_or(0, str::len)
                + values.iter().map(ColumnValue::weight).sum::<usize>()
        };
        self.columns.iter().map(column).sum()
    }
}

impl ColumnValue {
    /// A value bound as text, in UTF-8. None if it is too long for a key or invalid.
    pub fn from_text(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8(Self::short(bytes)?).ok()?;
        Some(ColumnValue::Literal { text, kind: None })
    }

    /// A value bound in binary format. None if it is too long for a key.
    pub fn from_binary(bytes: &[u8]) -> Option<Self> {
        Some(ColumnValue::Binary(Self::short(bytes)?))
    }

    fn short(bytes: &[u8]) -> Option<Vec<u8>> {
        (bytes.len() <= LONGEST_KEY).then(|| bytes.to_vec())
    }

    /// The only text of the value in a column of that type; `None` if there is none or it is unknown.
    pub fn in_column(&self, column: ValueType) -> Option<String> {
        let (text, kind) = match self {
            ColumnValue::Literal { text, kind } => (text, kind),
            ColumnValue::Binary(bytes) => return received(bytes, column),
            ColumnValue::Parameter { .. } | ColumnValue::Elements(_) | ColumnValue::NullWord | ColumnValue::TooMany => {
                return None;
            }
        };
        match (column, kind) {
            (ValueType::Integer, None | Some(ValueType::Integer)) => integer(text),
            (ValueType::Uuid, None | Some(ValueType::Uuid)) => uuid(text),
            (ValueType::Text, Some(ValueType::Integer)) => integer(text),
            (ValueType::Text, Some(ValueType::Uuid)) => uuid(text),
            (ValueType::Text, None | Some(ValueType::Text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// True if no row has this value in a column of that type.
    pub fn is_nothing_in(&self, column: ValueType) -> bool {
        *self == ColumnValue::NullWord && column != ValueType::Text
    }

    /// The parameters on which the value depends.
    fn parameters(&self) -> impl Iterator<Item = usize> {
        let (number, beside) = match self {
            ColumnValue::Parameter { number, .. } => (Some(*number), &[][..]),
            ColumnValue::Elements(array) => (Some(array.number), array.beside()),
            _ => (None, &[][..]),
        };
        number.into_iter().chain(beside.iter().filter_map(Beside::parameter))
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            ColumnValue::Literal { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(super) fn weight(&self) -> usize {
        let more = match self {
            ColumnValue::Literal { text, .. } => text.len(),
            ColumnValue::Binary(bytes) => bytes.len(),
            ColumnValue::Elements(array) => size_of_val(array.beside()),
            ColumnValue::Parameter { .. } | ColumnValue::NullWord | ColumnValue::TooMany => 0,
        };
        size_of::<ColumnValue>() + more
    }
}

impl Declared {
    /// The declared type for a `pg_type` OID. The OIDs of the supported types are the same in every server.
    pub fn from_oid(oid: u32) -> Self {
        match oid {
            // None, or `unknown`.
            0 | 705 => Declared::Not,
            20 | 21 | 23 => Declared::As(ValueType::Integer),
            25 | 1043 => Declared::As(ValueType::Text),
            2950 => Declared::As(ValueType::Uuid),
            1005 | 1007 | 1016 => Declared::Array(ElementType::Key(ValueType::Integer)),
            1009 | 1015 => Declared::Array(ElementType::Key(ValueType::Text)),
            2951 => Declared::Array(ElementType::Key(ValueType::Uuid)),
            _ => match COUNTED_ARRAYS.iter().position(|array| *array == oid) {
                Some(place) => Declared::Array(ElementType::Counted(place)),
                None => Declared::Otherwise,
            },
        }
    }
}

/// The OIDs of the array types of [`COUNTED_TYPES`], in the same order.
const COUNTED_ARRAYS: [u32; COUNTED_TYPES.len()] =
    [1000, 1014, 1001, 1182, 1021, 1022, 1041, 1187, 199, 3807, 1003, 1231, 1028, 1183, 1115, 1185, 1270];

/// The text of a value in the binary form of its type.
pub(super) fn received(bytes: &[u8], kind: ValueType) -> Option<String> {
    match kind {
        ValueType::Integer => {
            let number = match bytes.len() {
                2 => i16::from_be_bytes(bytes.try_into().ok()?).into(),
                4 => i32::from_be_bytes(bytes.try_into().ok()?).into(),
                8 => i64::from_be_bytes(bytes.try_into().ok()?),
                _ => return None,
            };
            Some(number.to_string())
        }
        ValueType::Text => String::from_utf8(bytes.to_vec()).ok(),
        ValueType::Uuid => {
            let number = u128::from_be_bytes(bytes.try_into().ok()?);
            uuid(&format!("{number:032x}"))
        }
    }
}

fn integer(text: &str) -> Option<String> {
    let number: i64 = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}').parse().ok()?;
    Some(number.to_string())
}

/// In the server's output form. The server reads more forms; keys in those are unknown.
fn uuid(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    Some([0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &digits[range]).join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(text: &str, kind: Option<ValueType>, column: ValueType) -> Option<String> {
        ColumnValue::Literal { text: text.into(), kind }.in_column(column)
    }

    #[test]
    fn equal_values_have_one_text() {
        assert_eq!(text_of(" 007\n", None, ValueType::Integer).as_deref(), Some("7"));
        assert_eq!(text_of("-0", None, ValueType::Integer).as_deref(), Some("0"));
        assert_eq!(text_of("7", Some(ValueType::Integer), ValueType::Text).as_deref(), Some("7"));
        assert_eq!(text_of(" 7", None, ValueType::Text).as_deref(), Some(" 7"));
        let uuid = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11";
        assert_eq!(text_of(uuid, None, ValueType::Uuid), Some(uuid.to_lowercase()));
        assert_eq!(text_of(&uuid.replace('-', ""), Some(ValueType::Uuid), ValueType::Text), Some(uuid.to_lowercase()));
    }

    #[test]
    fn values_that_a_column_cannot_hold_have_no_text() {
        for (text, kind, column) in [
            ("7", Some(ValueType::Text), ValueType::Integer),
            ("7.0", None, ValueType::Integer),
            ("9223372036854775808", None, ValueType::Integer),
            ("x", None, ValueType::Uuid),
            ("7", Some(ValueType::Integer), ValueType::Uuid),
        ] {
            assert_eq!(text_of(text, kind, column), None, "{text}");
        }
        assert_eq!(ColumnValue::Parameter { number: 1, cast: None, is_alone: true }.in_column(ValueType::Text), None);
    }
}
