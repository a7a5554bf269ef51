//! Splits the text of commands into words.
//!
//! Owns quotes, comments and semicolons. Must never know a command.

use fencegate_wire::error::ErrorText;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandWord {
    /// A keyword, a number, or a name.
    Plain(String),
    /// A name, even if it is spelled like a keyword.
    Quoted(String),
    Semicolon,
}

impl CommandWord {
    pub(super) fn is(&self, keyword: &str) -> bool {
        matches!(self, CommandWord::Plain(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// The word as a keyword; empty if it is quoted.
    pub(super) fn keyword(&self) -> &str {
        if let CommandWord::Plain(word) = self { word } else { "" }
    }

    /// The text as written, without quotes.
    pub(super) fn text(&self) -> &str {
        match self {
            CommandWord::Plain(text) | CommandWord::Quoted(text) => text,
            CommandWord::Semicolon => ";",
        }
    }

    /// A name of an SQL object: folded to lower case unless it is quoted.
    pub(super) fn sql_name(&self) -> Option<String> {
        match self {
            CommandWord::Plain(name) => Some(name.to_lowercase()),
            CommandWord::Quoted(name) => Some(name.clone()),
            CommandWord::Semicolon => None,
        }
        .filter(|name| !name.is_empty())
    }

    /// A name that does not belong to an SQL object: never folded.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            CommandWord::Plain(name) | CommandWord::Quoted(name) => Some(name.clone()),
            CommandWord::Semicolon => None,
        }
    }
}

/// Splits a text at blanks and semicolons outside quotes. Comments count as blanks.
pub(super) fn words(text: &str) -> Result<Vec<CommandWord>, ErrorText> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let after = if let Some(comment) = rest.strip_prefix("--") {
            comment.split_once('\n').map_or("", |(_, after)| after)
        } else if let Some(comment) = rest.strip_prefix("/*") {
            end_of_comment(comment).ok_or_else(|| unfinished("a comment has no end"))?
        } else if first == ';' {
            words.push(CommandWord::Semicolon);
            &rest[1..]
        } else if first == '\'' || first == '"' {
            let (name, after) = quoted(&rest[1..], first).ok_or_else(|| unfinished("a quoted name has no end"))?;
            words.push(CommandWord::Quoted(name));
            after
        } else {
            let (word, after) = rest.split_at(length_of_word(rest));
            words.push(CommandWord::Plain(word.to_owned()));
            after
        };
        rest = after.trim_start();
    }
    Ok(words)
}

/// Length up to a blank, a quote, a semicolon or a comment.
fn length_of_word(text: &str) -> usize {
    let ends = |(at, c): &(usize, char)| {
        c.is_whitespace() || ";'\"".contains(*c) || ["--", "/*"].iter().any(|mark| text[*at..].starts_with(mark))
    };
    text.char_indices().find(ends).map_or(text.len(), |(at, _)| at)
}

/// The text after a comment. Comments may be nested.
fn end_of_comment(text: &str) -> Option<&str> {
    let (mut depth, mut rest) = (1, text);
    while depth > 0 {
        let (_, from_mark) = rest.split_at(rest.find(['*', '/'])?);
        rest = if let Some(after) = from_mark.strip_prefix("*/") {
            depth -= 1;
            after
        } else if let Some(after) = from_mark.strip_prefix("/*") {
            depth += 1;
            after
        } else {
            &from_mark[1..]
        };
    }
    Some(rest)
}

/// A name up to its closing quote, which is doubled within the name.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once(quote)?;
        name.push_str(part);
        match after.strip_prefix(quote) {
            Some(after) => {
                name.push(quote);
                rest = after;
            }
            None => return Some((name, after)),
        }
    }
}

fn unfinished(message: &str) -> ErrorText {
    ErrorText::new("42601", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_into_words() {
        let plain = |text: &str| CommandWord::Plain(text.to_owned());
        let quoted = |text: &str| CommandWord::Quoted(text.to_owned());
        for (text, expected) in [
            ("", vec![]),
            (" -- ping", vec![]),
            ("/* a /* b */ ; */ SHOW", vec![plain("SHOW")]),
            ("SHOW--x\nFENCES;", vec![plain("SHOW"), plain("FENCES"), CommandWord::Semicolon]),
            ("'it''s; -- x'TO 7", vec![quoted("it's; -- x"), plain("TO"), plain("7")]),
            ("shard/3/*c*/\"\"", vec![plain("shard/3"), quoted("")]),
        ] {
            assert_eq!(words(text), Ok(expected), "{text:?}");
        }
        for text in ["/*", "/* /* */", "'x", "\"x\"\"", "\u{e9}\""] {
            assert_eq!(words(text).unwrap_err().code, "42601", "{text:?}");
        }
    }

    #[test]
    fn only_unquoted_sql_names_are_folded() {
        let name = |text| words(text).unwrap().pop().unwrap();
        assert_eq!(name("App").sql_name().as_deref(), Some("app"));
        assert_eq!(name("\"App\"").sql_name().as_deref(), Some("App"));
        assert_eq!(name("App").name().as_deref(), Some("App"));
        assert_eq!(name("''").sql_name(), None);
    }
}
