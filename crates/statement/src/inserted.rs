//! The rows of a long INSERT, from its tokens. Handles only constants, as bulk loads send them.
//!
//! Must never report a value that the tree would not: if a value is not a bare number or string, omits its column.

use super::Lexing;
use super::rows::{Column, ColumnValue, LONGEST_KEY, MOST_VALUES, Rows, ValueType};
use super::tokens::{Lexeme, Lexemes};

/// Parses `INSERT INTO t [(columns)] VALUES (…), (…)`. None for any other text, or if clauses after the rows may change
/// them.
pub(super) fn read(text: &[u8], lexing: Lexing) -> Option<Rows> {
    let mut tokens = Lexemes::new(text, lexing.standard_conforming_strings);
    // INSERT INTO and the relation.
    tokens.next()?;
    let mut last = tokens.find(|token| *token == Lexeme::Symbol(b'(') || token.is(b"values"))?;
    let mut columns = Vec::new();
    if last == Lexeme::Symbol(b'(') {
        columns = names(&mut tokens)?;
        last = tokens.next()?;
    }
    if !last.is(b"values") {
        return None;
    }
    let mut told: Vec<Option<Vec<ColumnValue>>> = Vec::new();
    for row in 0.. {
        if tokens.next()? != Lexeme::Symbol(b'(') {
            return None;
        }
        let width = self::row(text, &mut tokens, &mut told, row == 0)?;
        if width != told.len() {
            return None;
        }
        match tokens.next() {
            Some(Lexeme::Symbol(b',')) => {}
            None | Some(Lexeme::Symbol(b';')) => break,
            Some(word) if word.is(b"on") || word.is(b"returning") => break,
            Some(_) => return None,
        }
    }
    let column = |place: usize| match columns.get(place) {
        None if columns.is_empty() => Some(Column::Placed(place)),
        Some(Some(name)) => Some(Column::Named(name.clone())),
        _ => None,
    };
    let told = told.into_iter().enumerate().filter_map(|(place, values)| Some((column(place)?, values?)));
    Some(Rows::new(told))
}

/// The names of a list of columns up to its end; None for one that is more than a name.
fn names(tokens: &mut Lexemes) -> Option<Vec<Option<String>>> {
    let mut names = Vec::new();
    loop {
        let mut name = tokens.next()?.name();
        let mut depth = 0;
        loop {
            match tokens.next()? {
                Lexeme::Symbol(b')') if depth == 0 => {
                    names.push(name);
                    return Some(names);
                }
                Lexeme::Symbol(b',') if depth == 0 => break names.push(name),
                Lexeme::Symbol(b'(' | b'[') => depth += 1,
                Lexeme::Symbol(b')' | b']') => depth -= 1,
                _ => {}
            }
            name = None;
        }
    }
}

/// Adds the values of a row, up to its end; how many there are.
fn row(text: &[u8], tokens: &mut Lexemes, told: &mut Vec<Option<Vec<ColumnValue>>>, is_first: bool) -> Option<usize> {
    let (mut depth, mut width, mut start) = (0, 0, tokens.end());
    loop {
        let token = tokens.next()?;
        match token {
            // `(row).*` represents several values.
            Lexeme::Symbol(b'*') | Lexeme::Unsure => return None,
            Lexeme::Symbol(b'(' | b'[') => depth += 1,
            Lexeme::Symbol(b')' | b']') if depth > 0 => depth -= 1,
            Lexeme::Symbol(b',' | b')') if depth == 0 => {
                let value = value(text.get(start..tokens.end() - 1)?.trim_ascii());
                if is_first {
                    told.push(Some(Vec::new()));
                }
                add(told.get_mut(width)?, value);
                (width, start) = (width + 1, tokens.end());
                if token == Lexeme::Symbol(b')') {
                    return Some(width);
                }
            }
            _ => {}
        }
    }
}

/// Each once; none of a column with a value that is not known, or with too many.
fn add(values: &mut Option<Vec<ColumnValue>>, value: Option<ColumnValue>) {
    let Some(known) = values else { return };
    match value {
        Some(value) if known.contains(&value) => {}
        Some(value) if known.len() < MOST_VALUES => known.push(value),
        _ => *values = None,
    }
}

/// A plain number or string.
fn value(item: &[u8]) -> Option<ColumnValue> {
    let item = std::str::from_utf8(item).ok().filter(|item| item.is_ascii())?;
    if let Some(text) = item.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        let is_plain = text.len() <= LONGEST_KEY && !text.contains(['\'', '\\']);
        return is_plain.then(|| ColumnValue::Literal { text: text.to_owned(), kind: None });
    }
    let digits = item.strip_prefix('-').unwrap_or(item);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = item.parse::<i64>().ok().filter(|_| is_number)?;
    Some(ColumnValue::Literal { text: number.to_string(), kind: Some(ValueType::Integer) })
}
