//! SQL as text: literals, and the rows that a simple Query returns.
//!
//! Must never guess: a column that cannot be decoded counts as missing.

use crate::tls;
use crate::tls::{ConfiguredIn, Diagnosis};
use fencegate_policy::QualifiedName;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

/// Result of one statement of a Query.
#[derive(Debug, Default)]
pub struct StatementResult {
    /// The rows that it returned.
    pub rows: Vec<SimpleQueryRow>,
    /// Number of rows in its command tag.
    pub affected: u64,
}

/// Runs a simple Query, and returns the rows of all its statements. Not cancel-safe: a Query that was sent continues.
pub async fn query_rows(client: &Client, query: &str) -> Result<Vec<SimpleQueryRow>, tokio_postgres::Error> {
    let answers = answers(client.simple_query(query).await?);
    Ok(answers.into_iter().flat_map(|answer| answer.rows).collect())
}

/// The text of a column, if it exists and is not null.
pub fn column<'a>(row: &'a SimpleQueryRow, name: &str) -> Option<&'a str> {
    row.try_get(name).ok().flatten()
}

/// The column's text as a number.
pub fn number<T: std::str::FromStr>(row: &SimpleQueryRow, name: &str) -> Option<T> {
    column(row, name)?.parse().ok()
}

/// True if the column is the boolean true; false if it is false, null or missing.
pub fn is_true(row: &SimpleQueryRow, name: &str) -> bool {
    column(row, name) == Some("t")
}

/// Groups the messages of a Query into one result per statement.
pub fn answers(messages: Vec<SimpleQueryMessage>) -> Vec<StatementResult> {
    let mut answers = Vec::new();
    let mut answer = StatementResult::default();
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => answer.rows.push(row),
            SimpleQueryMessage::CommandComplete(affected) => {
                answers.push(StatementResult { affected, ..std::mem::take(&mut answer) });
            }
            _ => {}
        }
    }
    answers
}

/// The rows of all statements.
pub fn rows(answers: &[StatementResult]) -> impl Iterator<Item = &SimpleQueryRow> {
    answers.iter().flat_map(|answer| &answer.rows)
}

/// The column's text as an owned String.
pub fn text(row: &SimpleQueryRow, name: &str) -> Option<String> {
    column(row, name).map(str::to_owned)
}

/// A string literal. The text must not contain NUL; standard_conforming_strings must be on.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The schemas and the names as two arrays, so that the server can look up many names at once.
pub fn arrays<'a>(names: impl IntoIterator<Item = &'a QualifiedName>) -> [String; 2] {
    let (schemas, names): (Vec<&str>, Vec<&str>) =
        names.into_iter().map(|name| (name.schema.as_str(), name.name.as_str())).unzip();
    [array("name", schemas), array("name", names)]
}

/// An array of that type. None is NULL. As in [`quote`], the texts must not contain NUL.
pub fn array<'a, T: Into<Option<&'a str>>>(of: &str, elements: impl IntoIterator<Item = T>) -> String {
    let mut array = "'{".to_owned();
    for (place, element) in elements.into_iter().enumerate() {
        if place > 0 {
            array.push(',');
        }
        match element.into() {
            Some(text) => put_element(&mut array, text),
            None => array.push_str("NULL"),
        }
    }
    array + "}'::" + of + "[]"
}

/// Appends an element to an array literal inside a string literal.
fn put_element(array: &mut String, text: &str) {
    array.push('"');
    if text.contains(['\\', '"', '\'']) {
        array.push_str(&text.replace('\\', "\\\\").replace('"', "\\\"").replace('\'', "''"));
    } else {
        array.push_str(text);
    }
    array.push('"');
}

/// Replaces the message "password missing".
const NO_PASSWORD: &str = "the server requires a password, and none is set: set it in the URL, in PGPASSWORD, or in the file that PGPASSFILE names (default: ~/.pgpass)";

/// The server's message. tokio-postgres displays only "db error"; the message is in the source.
pub fn message(error: &tokio_postgres::Error) -> String {
    if let Some(Diagnosis { message, hint }) = tls::diagnose(error, ConfiguredIn::Url) {
        return format!("{message}. {hint}");
    }
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(refusal), _) => refusal.message().to_owned(),
        (None, Some(source)) if source.to_string() == "password missing" => NO_PASSWORD.to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_end_no_literal() {
        assert_eq!(quote("plain"), "'plain'");
        assert_eq!(quote("it's"), "'it''s'");
        assert_eq!(quote("'; DROP TABLE x; --"), "'''; DROP TABLE x; --'");
        assert_eq!(quote("back\\slash' "), "'back\\slash'' '");
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn names_end_no_element() {
        let name = QualifiedName { schema: "a\"b".into(), name: "it's\\".into() };
        let [schemas, names] = arrays([&name]);
        assert_eq!(schemas, r#"'{"a\"b"}'::name[]"#);
        assert_eq!(names, r#"'{"it''s\\"}'::name[]"#);
        let texts = ["", "a,b", "NULL", "\\\"''", "é{}"].map(Some).into_iter().chain([None]);
        assert_eq!(array("text", texts), r#"'{"","a,b","NULL","\\\"''''","é{}",NULL}'::text[]"#);
        assert_eq!(array::<&str>("text", []), "'{}'::text[]");
    }
}
