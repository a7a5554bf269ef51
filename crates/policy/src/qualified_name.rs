//! Names of tables and functions in SQL.

use std::fmt;

/// A schema-qualified SQL name, folded and unquoted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QualifiedName {
    /// The schema.
    pub schema: String,
    /// The name in it.
    pub name: String,
}

impl fmt::Display for QualifiedName {
    /// Formats the name as SQL, always quoted.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

/// Formats a single name as SQL, always quoted.
pub fn quoted(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}
