//! Which rows a write touches, as far as its text tells: by column, the values that all of them have there.
//!
//! Owns what is known of the values, and what a value means in a column. Must never leave out a value that a row has
//! before or after the write: a column of which not everything is known is left out as a whole.

/// More different values in a column are not told.
pub const MOST_VALUES: usize = 64;

/// By column, values of which every row that the write touches has one, before it and after it. What is known of a
/// column that is not there is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rows {
    columns: Vec<(Column, Vec<Value>)>,
}

/// A column of the relation that is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// By its name, folded and unquoted.
    Named(String),
    /// By its place among the relation's columns, from 0: of an INSERT that names none.
    Placed(usize),
}

/// A value as a statement says it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// It stands in the text, or was bound.
    Literal {
        /// As text, in the server's own form of its kind.
        text: String,
        /// None: of the type that the column gives it.
        kind: Option<Kind>,
    },
    /// `$number`, from 1, of what is bound later.
    Parameter {
        /// From 1.
        number: usize,
        /// What it is cast to, or declared as; None: of the type that the column gives it.
        kind: Option<Kind>,
    },
}

/// The types in which a value can be told: those of which equal values have one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `smallint`, `integer`, `bigint`.
    Integer,
    /// `text`, `varchar`.
    Text,
    /// `uuid`.
    Uuid,
}

impl Rows {
    /// The values in a column; None if they are not all known.
    pub fn values(&self, name: &str, place: Option<usize>) -> Option<&[Value]> {
        let is_wanted = |column: &Column| match column {
            Column::Named(other) => other == name,
            Column::Placed(other) => Some(*other) == place,
        };
        self.columns.iter().find(|(column, _)| is_wanted(column)).map(|(_, values)| values.as_slice())
    }
}

impl Value {
    /// The one text that the value has in a column of that kind; None when it has none there, or that is not known.
    pub fn in_column(&self, column: Kind) -> Option<String> {
        let Value::Literal { text, kind } = self else { return None };
        match (column, kind) {
            (Kind::Integer, None | Some(Kind::Integer)) => integer(text),
            (Kind::Uuid, None | Some(Kind::Uuid)) => uuid(text),
            (Kind::Text, Some(Kind::Integer)) => integer(text),
            (Kind::Text, Some(Kind::Uuid)) => uuid(text),
            (Kind::Text, None | Some(Kind::Text)) => Some(text.clone()),
            _ => None,
        }
    }
}

fn integer(text: &str) -> Option<String> {
    let number: i64 = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}').parse().ok()?;
    Some(number.to_string())
}

/// As the server writes it. It reads more forms; whoever writes those is told that the key is not known.
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

    fn text_of(text: &str, kind: Option<Kind>, column: Kind) -> Option<String> {
        Value::Literal { text: text.into(), kind }.in_column(column)
    }

    #[test]
    fn equal_values_have_one_text() {
        assert_eq!(text_of(" 007\n", None, Kind::Integer).as_deref(), Some("7"));
        assert_eq!(text_of("-0", None, Kind::Integer).as_deref(), Some("0"));
        assert_eq!(text_of("7", Some(Kind::Integer), Kind::Text).as_deref(), Some("7"));
        assert_eq!(text_of(" 7", None, Kind::Text).as_deref(), Some(" 7"));
        let uuid = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11";
        assert_eq!(text_of(uuid, None, Kind::Uuid), Some(uuid.to_lowercase()));
        assert_eq!(text_of(&uuid.replace('-', ""), Some(Kind::Uuid), Kind::Text), Some(uuid.to_lowercase()));
    }

    #[test]
    fn what_has_no_text_in_a_column() {
        for (text, kind, column) in [
            ("7", Some(Kind::Text), Kind::Integer),
            ("7.0", None, Kind::Integer),
            ("9223372036854775808", None, Kind::Integer),
            ("x", None, Kind::Uuid),
            ("7", Some(Kind::Integer), Kind::Uuid),
        ] {
            assert_eq!(text_of(text, kind, column), None, "{text}");
        }
        assert_eq!(Value::Parameter { number: 1, kind: None }.in_column(Kind::Text), None);
    }
}
