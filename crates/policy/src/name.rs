//! SQL names in policies: names of tables, and names or prefixes of functions.
//!
//! Owns PostgreSQL's rules for folding, quoting and truncating names. Must never complete an unqualified name: its
//! schema depends on the session. Must never miss a function: an unqualified call may mean a function in any schema,
//! and a function counts as soon as it exists.

use fencegate_statement::FunctionName;
use std::fmt;
use thiserror::Error;

/// PostgreSQL truncates names to this many bytes (NAMEDATALEN - 1).
const LONGEST_NAME: usize = 63;

/// Why a text is not a valid SQL name of the expected kind.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum NameError {
    #[error("`{0}` has no schema: write `schema.{0}`")]
    NoSchema(String),
    #[error("`{0}` has more than two parts: write `schema.name`, and the database under `databases`")]
    TooManyParts(String),
    #[error("`{0}` is one name, not several parts: put it in double quotes if the dot belongs to it")]
    Qualified(String),
    #[error("name a function without parentheses: the entry applies to all functions of that name")]
    Parentheses,
    #[error("`*` must follow the beginning of a name: by itself it would match every unqualified call")]
    NoBeginning,
    #[error("temporary tables and functions belong to one session and cannot be fenced")]
    Temporary,
    #[error("U&\"…\" is not supported here: write the characters themselves, in double quotes")]
    UnicodeEscapes,
    #[error("a double quote is not closed")]
    Unclosed,
    #[error("a name is empty")]
    Empty,
    #[error("a name cannot contain a zero byte")]
    ZeroByte,
    #[error("`{0}` is not allowed here in a name: put the name in double quotes")]
    Unexpected(char),
}

/// Reads `schema.name`.
pub(super) fn qualified(text: &str) -> Result<QualifiedName, NameError> {
    let mut parts = parts(text)?.into_iter();
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(schema), Some(name), None) => QualifiedName { schema, name },
        (_, None, _) => return Err(NameError::NoSchema(text.trim().to_owned())),
        _ => return Err(NameError::TooManyParts(text.trim().to_owned())),
    };
    // PostgreSQL names a process's temporary schema pg_temp_3, for example.
    if name.schema == "pg_temp" || name.schema.starts_with("pg_temp_") {
        return Err(NameError::Temporary);
    }
    Ok(name)
}

/// Reads `schema.name`, or `schema.beginning*`.
pub(super) fn function(text: &str) -> Result<FencedFunction, NameError> {
    let Some(beginning) = text.trim_end().strip_suffix('*') else {
        return Ok(FencedFunction { name: qualified(text)?, is_prefix: false });
    };
    if beginning.ends_with(char::is_whitespace) {
        return Err(NameError::Unexpected('*'));
    }
    if beginning.ends_with('.') {
        return Err(NameError::NoBeginning);
    }
    Ok(FencedFunction { name: qualified(beginning)?, is_prefix: true })
}

/// Reads the name of a role or a database.
pub(super) fn single(text: &str) -> Result<String, NameError> {
    match <[String; 1]>::try_from(parts(text)?) {
        Ok([name]) => Ok(name),
        Err(_) => Err(NameError::Qualified(text.trim().to_owned())),
    }
}

fn parts(text: &str) -> Result<Vec<String>, NameError> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    loop {
        let (part, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_part(quoted)?,
            None => plain_part(rest)?,
        };
        parts.push(part);
        rest = after.trim_start();
        match rest.chars().next() {
            None => return Ok(parts),
            Some('.') => rest = rest[1..].trim_start(),
            Some('(') => return Err(NameError::Parentheses),
            Some(other) => return Err(NameError::Unexpected(other)),
        }
    }
}

/// A name up to its closing quote, and the rest.
fn quoted_part(text: &str) -> Result<(String, &str), NameError> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"').ok_or(NameError::Unclosed)?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(doubled) => {
                name.push('"');
                rest = doubled;
            }
            None if name.is_empty() => return Err(NameError::Empty),
            None if name.contains('\0') => return Err(NameError::ZeroByte),
            None => return Ok((truncated(name), after)),
        }
    }
}

fn plain_part(text: &str) -> Result<(String, &str), NameError> {
    let end = text.find(|c: char| !is_name_character(c)).unwrap_or(text.len());
    let (name, after) = text.split_at(end);
    match text.chars().next() {
        None | Some('.') => Err(NameError::Empty),
        Some(first) if name.is_empty() || first.is_ascii_digit() || first == '$' => Err(NameError::Unexpected(first)),
        _ if name.eq_ignore_ascii_case("u") && after.starts_with("&\"") => Err(NameError::UnicodeEscapes),
        // Folds only ASCII letters, as PostgreSQL does in every multibyte encoding.
        _ => Ok((truncated(name.to_ascii_lowercase()), after)),
    }
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}

fn truncated(mut name: String) -> String {
    let mut end = name.len().min(LONGEST_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

/// A schema-qualified SQL name, folded and unquoted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QualifiedName {
    /// The schema.
    pub schema: String,
    /// The name in the schema.
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

/// A function whose calls count as writes, or all functions with a common prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencedFunction {
    /// The name, or with `is_prefix` the prefix of the names. Never empty.
    pub name: QualifiedName,
    /// True if the policy has a `*` after the name.
    pub is_prefix: bool,
}

impl FencedFunction {
    /// Returns true if the call may mean this function.
    pub fn is_meant_by(&self, called: &FunctionName) -> bool {
        let is_named = match self.is_prefix {
            true => called.name.starts_with(&self.name.name),
            false => called.name == self.name.name,
        };
        is_named && called.schema.as_ref().is_none_or(|schema| *schema == self.name.schema)
    }

    /// The function that the call may mean, if it is one of these.
    pub fn called(&self, called: &FunctionName) -> Option<QualifiedName> {
        let name = || QualifiedName { schema: self.name.schema.clone(), name: called.name.clone() };
        self.is_meant_by(called).then(name)
    }
}

impl fmt::Display for FencedFunction {
    /// As in a policy.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_prefix { "*" } else { "" };
        write!(formatter, "{}.{}{star}", quoted(&self.name.schema), quoted(&self.name.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> (String, String) {
        let name = qualified(text).unwrap();
        (name.schema, name.name)
    }

    fn pair(schema: &str, name: &str) -> (String, String) {
        (schema.to_owned(), name.to_owned())
    }

    #[test]
    fn plain_names_are_folded_in_ascii_only() {
        assert_eq!(name("Public.TICKS"), pair("public", "ticks"));
        assert_eq!(name("public.Été_$1"), pair("public", "Été_$1"));
        assert_eq!(name(" public . ticks "), pair("public", "ticks"));
    }

    #[test]
    fn quoted_names_are_kept() {
        assert_eq!(name(r#"public."Odd Name""#), pair("public", "Odd Name"));
        assert_eq!(name(r#""A.b"."say ""hi""""#), pair("A.b", "say \"hi\""));
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(name(&format!("s.{}", "A".repeat(70))).1, "a".repeat(63));
        assert_eq!(name(&format!("s.\"{}\"", "é".repeat(40))).1, "é".repeat(31));
    }

    #[test]
    fn a_schema_and_a_name_are_required() {
        assert_eq!(qualified("Ticks").unwrap_err().to_string(), "`Ticks` has no schema: write `schema.Ticks`");
        assert_eq!(qualified("a.b.c").unwrap_err(), NameError::TooManyParts("a.b.c".to_owned()));
        assert_eq!(qualified("pg_temp.x").unwrap_err(), NameError::Temporary);
        assert_eq!(qualified("pg_temp_12.x").unwrap_err(), NameError::Temporary);
    }

    #[test]
    fn invalid_names_are_refused() {
        for (text, error) in [
            ("", NameError::Empty),
            ("public.", NameError::Empty),
            (".ticks", NameError::Empty),
            ("public.\"\"", NameError::Empty),
            ("public.\"ticks", NameError::Unclosed),
            ("public.\"a\0\"", NameError::ZeroByte),
            ("public.run_tick()", NameError::Parentheses),
            ("public.*", NameError::Unexpected('*')),
            ("public.1st", NameError::Unexpected('1')),
            ("public.$1", NameError::Unexpected('$')),
            ("public.my-table", NameError::Unexpected('-')),
            ("public.a b", NameError::Unexpected('b')),
            ("public.U&\"d\\0061t\"", NameError::UnicodeEscapes),
        ] {
            assert_eq!(qualified(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn a_star_may_end_a_function_name() {
        let shown = |text| function(text).map(|it| (it.to_string(), it.is_prefix));
        assert_eq!(shown("Public.Run_*"), Ok(("public.run_*".to_owned(), true)));
        assert_eq!(shown(r#"public."Run_"* "#), Ok((r#"public."Run_"*"#.to_owned(), true)));
        assert_eq!(shown(r#"public."run*""#), Ok((r#"public."run*""#.to_owned(), false)));
        assert_eq!(shown("public.run"), Ok(("public.run".to_owned(), false)));
        for (text, error) in [
            ("public.*", NameError::NoBeginning),
            ("*", NameError::Empty),
            ("public.*_run", NameError::Unexpected('*')),
            ("public.a*b*", NameError::Unexpected('*')),
            ("public.a**", NameError::Unexpected('*')),
            ("public.a *", NameError::Unexpected('*')),
            ("pub*.a*", NameError::Unexpected('*')),
            ("a*", NameError::NoSchema("a".to_owned())),
        ] {
            assert_eq!(shown(text), Err(error), "{text}");
        }
    }

    #[test]
    fn roles_and_databases_have_one_part() {
        assert_eq!(single("Migrator").unwrap(), "migrator");
        assert_eq!(single("\"My-App\"").unwrap(), "My-App");
        assert_eq!(single("a.b").unwrap_err(), NameError::Qualified("a.b".to_owned()));
    }

    #[test]
    fn a_prefix_matches_every_function_that_starts_with_it() {
        let name = QualifiedName { schema: "public".into(), name: "fetch_v".into() };
        let means = |is_prefix, schema: Option<&str>, called: &str| {
            let called = FunctionName { schema: schema.map(str::to_owned), name: called.into() };
            FencedFunction { name: name.clone(), is_prefix }.is_meant_by(&called)
        };
        for (schema, called, by_prefix, by_name) in [
            (None, "fetch_v", true, true),
            (None, "fetch_v2", true, false),
            (Some("public"), "fetch_v2", true, false),
            (Some("other"), "fetch_v2", false, false),
            (None, "fetch_", false, false),
            (None, "my_fetch_v", false, false),
        ] {
            assert_eq!((means(true, schema, called), means(false, schema, called)), (by_prefix, by_name), "{called}");
        }
    }
}
