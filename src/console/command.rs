//! The text of a command → what it means.
//!
//! Must never guess: what is not exactly a command is an error that says which there are.

use crate::fence::session::Token;
use crate::wire::error::ErrorText;

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Every fence, with who leads.
    ShowFences,
    /// Sets the token of a resource.
    FenceReset {
        resource: String,
        /// None: wherever it has an epoch.
        database: Option<String>,
        token: Token,
    },
}

/// Reads commands that are separated by semicolons.
///
/// # Errors
/// 22021 for what is not UTF-8, 42601 for everything else that is no command.
pub(super) fn parse(text: &[u8]) -> Result<Vec<Command>, ErrorText> {
    let text = std::str::from_utf8(text)
        .map_err(|_| ErrorText::new("22021", "invalid byte sequence for encoding \"UTF8\""))?;
    let words = words(text)?;
    words.split(|word| *word == Word::Semicolon).filter(|words| !words.is_empty()).map(command).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    /// A keyword, a number, or a name.
    Plain(String),
    /// A name, whatever it is spelt like.
    Quoted(String),
    Semicolon,
}

impl Word {
    fn is(&self, keyword: &str) -> bool {
        matches!(self, Word::Plain(word) if word.eq_ignore_ascii_case(keyword))
    }

    fn name(&self) -> Option<&str> {
        match self {
            Word::Plain(name) | Word::Quoted(name) => Some(name),
            Word::Semicolon => None,
        }
    }
}

fn command(words: &[Word]) -> Result<Command, ErrorText> {
    let starts = |keywords: &[&str]| words.len() >= keywords.len() && words.iter().zip(keywords).all(|(w, k)| w.is(k));
    if starts(&["SHOW", "FENCES"]) && words.len() == 2 {
        return Ok(Command::ShowFences);
    }
    if starts(&["FENCE", "RESET"]) {
        return fence_reset(&words[2..]).ok_or_else(|| unknown("FENCE RESET is not complete, or its token is none"));
    }
    let name = words.first().and_then(Word::name).unwrap_or_default();
    Err(unknown(&format!("unknown command at or near \"{name}\"")))
}

fn fence_reset(words: &[Word]) -> Option<Command> {
    let (resource, database, token) = match words {
        [resource, to, token] if to.is("TO") => (resource, None, token),
        [resource, in_, database_, database, to, token] if in_.is("IN") && database_.is("DATABASE") && to.is("TO") => {
            // To the server no name means the database that is called like the role.
            let database = database.name().filter(|name| !name.is_empty())?;
            (resource, Some(database.to_owned()), token)
        }
        _ => return None,
    };
    let Word::Plain(digits) = token else { return None };
    let token = digits.parse().ok().filter(|token| *token > 0 && digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some(Command::FenceReset { resource: resource.name()?.to_owned(), database, token })
}

/// Cuts a text at blanks and semicolons, other than those within quotes.
fn words(text: &str) -> Result<Vec<Word>, ErrorText> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, after) = match first {
            ';' => (Word::Semicolon, &rest[1..]),
            '\'' | '"' => quoted(&rest[1..], first).ok_or_else(|| unknown("a quoted name has no end"))?,
            _ => {
                let ends = |c: char| c.is_whitespace() || ";'\"".contains(c);
                let (word, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
                (Word::Plain(word.to_owned()), after)
            }
        };
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

/// A name up to its closing quote, which is doubled within the name.
fn quoted(text: &str, quote: char) -> Option<(Word, &str)> {
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
            None => return Some((Word::Quoted(name), after)),
        }
    }
}

fn unknown(message: &str) -> ErrorText {
    ErrorText::new("42601", message)
        .hint("The commands are: SHOW FENCES; FENCE RESET <resource> [IN DATABASE <name>] TO <token>.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(resource: &str, database: Option<&str>, token: Token) -> Command {
        Command::FenceReset { resource: resource.into(), database: database.map(str::to_owned), token }
    }

    #[test]
    fn commands_are_read() {
        for (text, commands) in [
            ("", vec![]),
            (" ;\n; ", vec![]),
            ("show Fences", vec![Command::ShowFences]),
            ("SHOW FENCES;SHOW\tFENCES ;", vec![Command::ShowFences, Command::ShowFences]),
            ("fence reset shard/3 to 9223372036854775807", vec![reset("shard/3", None, i64::MAX)]),
            ("FENCE RESET 'shard/3' IN DATABASE \"My \"\"App\" TO 7;", vec![reset("shard/3", Some("My \"App"), 7)]),
            ("FENCE RESET to TO 7", vec![reset("to", None, 7)]),
            ("FENCE RESET 'it''s; TO 8'TO 7", vec![reset("it's; TO 8", None, 7)]),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(commands), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_command_is_refused_whole() {
        for text in [
            "SELECT 1",
            "SHOW",
            "SHOW FENCES now",
            "'SHOW' FENCES",
            "SHOW FENCES; nonsense",
            "FENCE RESET r",
            "FENCE RESET r TO",
            "FENCE RESET r TO 0",
            "FENCE RESET r TO -1",
            "FENCE RESET r TO +1",
            "FENCE RESET r TO '7'",
            "FENCE RESET r TO 9223372036854775808",
            "FENCE RESET r IN DATABASE TO 7",
            "FENCE RESET r IN DATABASE '' TO 7",
            "FENCE RESET r IN app TO 7",
            "FENCE RESET 'r TO 7",
            "\u{e9}\"",
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().code, "42601", "{text:?}");
        }
        assert_eq!(parse(b"SHOW \xff").unwrap_err().code, "22021");
    }
}
