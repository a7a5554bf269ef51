//! SQL in files, with named parameters in psql's syntax: `:name` stands for SQL, `:'name'` for a string literal.
//!
//! Owns the replacement of parameters. Must never replace anything within a value, a string, an identifier or a comment,
//! and never insert a [`Value::Text`] except as a literal.
//!
//! Comments are removed, and white space outside of quotes becomes one space: the server logs and stores the text. The files
//! have no block comments and no dollar quotes.

/// The text of a file, and the fragments that it may include.
#[derive(Clone, Copy, Debug)]
pub struct SqlFile {
    text: &'static str,
    fragments: &'static [Fragment],
}

/// A name, and its SQL unless the call gives another value. psql receives them as variables.
pub type Fragment = (&'static str, &'static str);

/// The value of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Any text. Inserted as a literal only.
    Text(&'a str),
    /// Trusted SQL, inserted as it is.
    Sql(&'a str),
    /// A number.
    Number(i64),
    /// A count.
    Count(usize),
    /// SQL with its own parameters, like a fragment.
    Part(&'static str),
}

impl SqlFile {
    /// The file with this text.
    pub const fn new(text: &'static str, fragments: &'static [Fragment]) -> Self {
        SqlFile { text, fragments }
    }

    /// The statements with these values. Debug builds panic if the file has other parameters. In release builds, the
    /// server reports a syntax error for a parameter without a value.
    pub fn with(&self, values: &[(&str, Value)]) -> String {
        let filled = fill(self.text, self.fragments, values);
        debug_assert!(filled.mismatches.is_empty(), "{:?}: {}", filled.mismatches, self.text);
        filled.text
    }
}

/// The outcome of [`fill`].
#[derive(Debug, Default)]
pub struct Filled {
    /// The statements, without a semicolon at the end.
    pub text: String,
    /// Parameters without a value, values without a parameter, and texts where SQL is expected.
    pub mismatches: Vec<String>,
}

/// Replaces the parameters of this text.
pub fn fill(text: &str, fragments: &[(&str, &str)], values: &[(&str, Value)]) -> Filled {
    let mut filling = Filling { fragments, values, used: vec![false; values.len()], filled: Filled::default() };
    filling.add(text, 0);
    let Filling { used, mut filled, .. } = filling;
    let unused = values.iter().zip(used).filter(|(_, used)| !used);
    filled.mismatches.extend(unused.map(|((name, _), _)| format!("no parameter {name}")));
    let end = filled.text.trim_end_matches([' ', ';']).len();
    filled.text.truncate(end);
    filled
}

/// More than the nesting depth of the fragments. Stops a fragment that includes itself.
const DEEPEST: usize = 8;

struct Filling<'a> {
    fragments: &'a [(&'a str, &'a str)],
    values: &'a [(&'a str, Value<'a>)],
    used: Vec<bool>,
    filled: Filled,
}

impl Filling<'_> {
    fn add(&mut self, mut rest: &str, depth: usize) {
        while let Some((token, length)) = Token::first(rest) {
            let (text, after) = rest.split_at(length);
            match token {
                Token::Space if self.filled.text.is_empty() || self.filled.text.ends_with([' ', '(']) => {}
                Token::Space => self.filled.text.push(' '),
                Token::Other => self.filled.text.push_str(text),
                Token::Parameter { name, is_literal } => self.add_value(name, is_literal, text, depth),
            }
            rest = after;
        }
    }

    fn add_value(&mut self, name: &str, is_literal: bool, parameter: &str, depth: usize) {
        let found = self.values.iter().position(|(it, _)| *it == name);
        let value = found.map(|index| {
            self.used[index] = true;
            self.values[index].1
        });
        let fragment = || self.fragments.iter().find(|(it, _)| *it == name).map(|(_, text)| *text);
        match (value, is_literal) {
            (Some(Value::Text(text)), true) => self.filled.text.push_str(&crate::sql::quote(text)),
            (Some(Value::Sql(sql)), false) => self.filled.text.push_str(sql),
            (Some(Value::Number(number)), false) => self.filled.text.push_str(&number.to_string()),
            (Some(Value::Count(number)), false) => self.filled.text.push_str(&number.to_string()),
            (Some(Value::Part(part)), false) if depth < DEEPEST => self.add(part, depth + 1),
            (None, false) if depth < DEEPEST && fragment().is_some() => {
                self.add(fragment().unwrap_or_default(), depth + 1);
            }
            _ => {
                self.filled.mismatches.push(format!("no value for {parameter}"));
                self.filled.text.push_str(parameter);
            }
        }
    }
}

enum Token<'a> {
    /// White space, or a comment.
    Space,
    Parameter {
        name: &'a str,
        is_literal: bool,
    },
    Other,
}

impl<'a> Token<'a> {
    /// The first token of the text, with its length in bytes.
    fn first(text: &'a str) -> Option<(Self, usize)> {
        let first = text.chars().next()?;
        let until = |end: &[char]| text[1..].find(end).map_or(text.len(), |at| at + 1);
        Some(match first {
            _ if text.starts_with("--") => (Token::Space, until(&['\n'])),
            _ if first.is_ascii_whitespace() => (Token::Space, 1),
            // A doubled quote ends one token and starts another.
            '\'' | '"' => (Token::Other, (until(&[first]) + 1).min(text.len())),
            _ if text.starts_with("::") => (Token::Other, 2),
            ':' => Token::parameter(text).unwrap_or((Token::Other, 1)),
            '-' => (Token::Other, 1),
            _ => {
                let is_special = |it: char| it.is_ascii_whitespace() || matches!(it, '\'' | '"' | ':' | '-');
                (Token::Other, text.find(is_special).unwrap_or(text.len()))
            }
        })
    }

    fn parameter(text: &'a str) -> Option<(Self, usize)> {
        let is_literal = text.starts_with(":'");
        let start = if is_literal { 2 } else { 1 };
        let name = &text[start..];
        let is_part = |it: char| it.is_ascii_lowercase() || it == '_';
        let name = &name[..name.find(|it| !is_part(it)).unwrap_or(name.len())];
        let end = start + name.len();
        let is_closed = !is_literal || text[end..].starts_with('\'');
        (!name.is_empty() && is_closed)
            .then_some((Token::Parameter { name, is_literal }, end + usize::from(is_literal)))
    }
}

#[cfg(test)]
mod tests {
    use super::Value::{Number, Part, Sql, Text};
    use super::*;

    const FRAGMENTS: &[(&str, &str)] =
        &[("living", "-- Alive.\n(:process.pid = :pid)\n"), ("circle", ":circle"), ("name", "'of the fragment'")];

    fn filled(text: &str, values: &[(&str, Value)]) -> String {
        let filled = fill(text, FRAGMENTS, values);
        assert_eq!(filled.mismatches, [""; 0], "{text}");
        filled.text
    }

    #[test]
    fn parameters_are_replaced_by_literals_and_by_sql() {
        let text = "SELECT :'name', :number::int, :sql.x FROM t WHERE a[1:] = '{}';\n";
        let values = [("name", Text("it's")), ("number", Number(-7)), ("sql", Sql("s"))];
        assert_eq!(filled(text, &values), "SELECT 'it''s', -7::int, s.x FROM t WHERE a[1:] = '{}'");
    }

    #[test]
    fn values_strings_identifiers_and_comments_keep_their_text() {
        let text = "-- Rows: it's :'name'.\nSELECT ':name  it''s :name', \":name\", :'name' -- :name\n  , 1 - 2;";
        let expected = "SELECT ':name  it''s :name', \":name\", ':name -- '' :''name''', 1 - 2";
        assert_eq!(filled(text, &[("name", Text(":name -- ' :'name'"))]).replace(" ,", ","), expected);
        assert_eq!(filled("SELECT :a", &[("a", Sql(":b"))]), "SELECT :b");
    }

    #[test]
    fn fragments_are_filled_with_the_same_values() {
        let values = [("process", Sql("a")), ("pid", Sql("$1"))];
        assert_eq!(filled("SELECT NOT :living;", &values), "SELECT NOT (a.pid = $1)");
        assert_eq!(
            filled("SELECT :it", &[("it", Part("NOT :living")), values[0], values[1]]),
            "SELECT NOT (a.pid = $1)"
        );
        assert_eq!(filled("SELECT :name", &[]), "SELECT 'of the fragment'");
        assert_eq!(filled("SELECT :name", &[("name", Sql("x"))]), "SELECT x");
    }

    #[test]
    fn mismatches_are_reported() {
        let mismatches = |text, values: &[(&str, Value)]| fill(text, FRAGMENTS, values).mismatches;
        assert_eq!(mismatches("SELECT :a", &[]), ["no value for :a"]);
        assert_eq!(mismatches("SELECT :'a'", &[("a", Sql("x"))]), ["no value for :'a'"]);
        assert_eq!(mismatches("SELECT 1 -- :a", &[("a", Number(1))]), ["no parameter a"]);
        assert_eq!(mismatches("SELECT :circle", &[]), ["no value for :circle"]);
    }

    #[test]
    fn a_text_is_inserted_as_a_literal_only() {
        let filled = fill("SELECT :a", FRAGMENTS, &[("a", Text("1; DROP TABLE t"))]);
        assert_eq!((filled.text.as_str(), filled.mismatches.len()), ("SELECT :a", 1));
    }

    #[test]
    fn incomplete_texts_are_kept() {
        for text in ["'", "\"", ":", ":'", ":'a", "::", "-", "é:", "'é"] {
            assert_eq!(fill(text, &[], &[]).text, text);
        }
    }
}
