//! The frequent statements of the fence. A connection prepares them when it opens and plans each once, because planning one
//! takes up to fifty times as long as executing it.
//!
//! Owns their declaration. Must never put external input into a statement's text:
//! such input is an argument.

use fencegate_postgres::sql::quote;

/// A statement with parameters.
#[derive(Debug)]
pub struct Prepared {
    pub(super) name: &'static str,
    /// The PREPARE statement.
    pub(super) text: fn() -> String,
}

impl Prepared {
    pub(super) const fn new(name: &'static str, text: fn() -> String) -> Self {
        Prepared { name, text }
    }

    /// The EXECUTE statement. The arguments are SQL, one for each parameter.
    pub(super) fn execute(&self, arguments: &[&str]) -> String {
        let arguments = arguments.join(", ");
        // SQL permits no empty list.
        if arguments.is_empty() {
            format!("EXECUTE {}", self.name)
        } else {
            format!("EXECUTE {}({arguments})", self.name)
        }
    }
}

/// The Query that prepares these statements.
pub fn prepare(statements: &[&Prepared]) -> String {
    statements.iter().map(|it| (it.text)()).collect::<Vec<_>>().join("; ")
}

/// An SQL array of texts, or of another type whose values are written as text.
pub(super) fn texts<'a>(of: &str, elements: impl IntoIterator<Item = &'a str>) -> String {
    let elements: Vec<String> = elements.into_iter().map(quote).collect();
    format!("ARRAY[{}]::{of}[]", elements.join(", "))
}

/// An SQL array of numbers.
pub(super) fn numbers<T: ToString>(of: &str, elements: impl IntoIterator<Item = T>) -> String {
    let elements: Vec<String> = elements.into_iter().map(|it| it.to_string()).collect();
    format!("ARRAY[{}]::{of}[]", elements.join(", "))
}

/// An argument that may be null.
pub(super) fn or_null(text: Option<String>) -> String {
    text.unwrap_or_else(|| "NULL".to_owned())
}
