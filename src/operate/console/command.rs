//! Parses commands: the words of a text, and the command that they are.
//!
//! Owns quotes, comments and semicolons. Must never guess: a text that is not exactly a command is an error that suggests one.

use super::driver_statement::DriverStatement;
use fencegate_fence::session::Token;
use fencegate_policy::nearest::edits;
use fencegate_wire::error::ErrorText;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Show(Show),
    Reload,
    FenceReset(FenceReset),
    /// A command on sessions. It has no rows.
    Control(Control),
    /// A statement that drivers send to every server.
    DriverStatement(DriverStatement),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    Fences,
    Sessions,
    Admissions,
    Leases,
    Policies,
    Rejections,
    Stats,
    Databases,
    Clients,
    Servers,
    Config,
    Version,
    Help,
}

/// An operator's command on sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Ends the session with this number.
    Kill(u64),
    /// Holds the sessions of this database.
    Pause(String),
    /// Resumes the sessions of this database.
    Resume(String),
}

/// Sets the token of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FenceReset {
    pub(super) resource: String,
    /// None: every database in which the resource has an epoch.
    pub(super) database: Option<String>,
    pub(super) token: Token,
    /// True: reset even while sessions with higher tokens are open.
    pub(super) force: bool,
}

/// A command in `SHOW HELP`: its keywords, arguments and description.
pub(super) struct CommandHelp {
    pub(super) command: &'static str,
    pub(super) arguments: &'static str,
    pub(super) help: &'static str,
    /// The view, if the command is a SHOW.
    shows: Option<Show>,
}

pub(super) const COMMANDS: [CommandHelp; 18] = [
    show("SHOW FENCES", Show::Fences, "fences: the highest token and the leader of each resource in each database"),
    show("SHOW SESSIONS", Show::Sessions, "sessions of this proxy, with their tokens"),
    show("SHOW ADMISSIONS", Show::Admissions, "server processes that may write now, through any proxy"),
    show("SHOW LEASES", Show::Leases, "leases in the fenced databases, with their holders and expiry times"),
    show("SHOW POLICIES", Show::Policies, "tables of each resource, and whether their fence is enforced"),
    show("SHOW REJECTIONS", Show::Rejections, "latest writes that this proxy rejected"),
    show("SHOW STATS", Show::Stats, "number of writes that this proxy admitted and rejected"),
    show("SHOW DATABASES", Show::Databases, "databases with recent sessions, and whether they are paused"),
    show("SHOW CLIENTS", Show::Clients, "sessions, as client connections"),
    show("SHOW SERVERS", Show::Servers, "servers behind the proxy, and their roles"),
    show("SHOW CONFIG", Show::Config, "settings of this proxy, with the source of each"),
    show("SHOW VERSION", Show::Version, "versions of the proxy and the server, and the start time of the proxy"),
    show("SHOW HELP", Show::Help, "this list"),
    act("RELOAD", "", "reloads settings, policies and certificates, and lists the changes"),
    act("KILL", "<session>", "ends a session; its open transaction is rolled back"),
    act("PAUSE", "<database>", "holds the sessions of a database, and waits until none is in a transaction"),
    act("RESUME", "<database>", "lets the sessions of a paused database continue"),
    act(
        "FENCE RESET",
        RESET_ARGUMENTS,
        "sets the highest token of a resource, even to a lower one, and ends the sessions admitted before",
    ),
];

const RESET_ARGUMENTS: &str = "<resource> [IN DATABASE <name>] TO <token> [FORCE]";

const fn show(command: &'static str, shows: Show, help: &'static str) -> CommandHelp {
    CommandHelp { command, arguments: "", help, shows: Some(shows) }
}

const fn act(command: &'static str, arguments: &'static str, help: &'static str) -> CommandHelp {
    CommandHelp { command, arguments, help, shows: None }
}

/// Maximum number of commands in one query: all answers are kept until the last one is ready.
const MOST_COMMANDS: usize = 100;

/// Parses commands separated by semicolons. 42601 for an unknown command, 54000 for too many.
pub(super) fn parse(text: &str) -> Result<Vec<Command>, ErrorText> {
    let words = words(text)?;
    let commands = words.split(|word| *word == CommandWord::Semicolon).filter(|words| !words.is_empty());
    if commands.clone().count() > MOST_COMMANDS {
        return Err(ErrorText::new("54000", format!("more than {MOST_COMMANDS} commands at once")));
    }
    commands.map(command).collect()
}

fn command(words: &[CommandWord]) -> Result<Command, ErrorText> {
    let shown = match words {
        [show, what] if show.is("SHOW") => shown(what),
        [help] if help.is("HELP") => Some(Show::Help),
        [reload] if reload.is("RELOAD") => return Ok(Command::Reload),
        [fence, reset, rest @ ..] if fence.is("FENCE") && reset.is("RESET") => {
            return fence_reset(rest).map(Command::FenceReset);
        }
        [kill, session] if kill.is("KILL") => return Ok(Command::Control(Control::Kill(number(session)?))),
        [pause, database] if pause.is("PAUSE") => {
            return Ok(Command::Control(Control::Pause(database_name(database)?)));
        }
        [resume, database] if resume.is("RESUME") => {
            return Ok(Command::Control(Control::Resume(database_name(database)?)));
        }
        _ => None,
    };
    match shown {
        Some(what) => Ok(Command::Show(what)),
        None => DriverStatement::read(words)?.map(Command::DriverStatement).ok_or_else(|| unknown(words)),
    }
}

fn shown(word: &CommandWord) -> Option<Show> {
    COMMANDS.iter().find(|it| it.command.strip_prefix("SHOW ").is_some_and(|what| word.is(what)))?.shows
}

fn number(word: &CommandWord) -> Result<u64, ErrorText> {
    let is_number = word.keyword().bytes().all(|byte| byte.is_ascii_digit());
    word.keyword().parse().ok().filter(|_| is_number).ok_or_else(|| {
        ErrorText::new("42601", format!("\"{}\" is not a session", word.text()))
            .hint("Give the number of a session from SHOW SESSIONS.")
    })
}

fn database_name(word: &CommandWord) -> Result<String, ErrorText> {
    word.sql_name().ok_or_else(|| ErrorText::new("42601", "the name of the database is empty"))
}

fn fence_reset(words: &[CommandWord]) -> Result<FenceReset, ErrorText> {
    let form = format!("Usage: FENCE RESET {RESET_ARGUMENTS}");
    let incomplete = || ErrorText::new("42601", "FENCE RESET is incomplete").hint(form.clone());
    let (words, force) = match words {
        // A resource may be named FORCE.
        [words @ .., force] if force.is("FORCE") && words.len() > 2 => (words, true),
        words => (words, false),
    };
    let (resource, database, token) = match words {
        [resource, to, token] if to.is("TO") => (resource, None, token),
        [resource, in_, database_, database, to, token] if in_.is("IN") && database_.is("DATABASE") && to.is("TO") => {
            // For the server, an empty name means the database with the role's name.
            (resource, Some(database.sql_name().ok_or_else(incomplete)?), token)
        }
        _ => return Err(incomplete()),
    };
    let digits = if let CommandWord::Plain(digits) = token { digits.as_str() } else { "" };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let token = digits.parse().ok().filter(|token| is_number && *token > 0).ok_or_else(|| {
        ErrorText::new("42601", format!("\"{}\" is not a token", token.text()))
            .hint("A token is a number from 1 to 9223372036854775807, without quotes.")
    })?;
    Ok(FenceReset { resource: resource.name().ok_or_else(incomplete)?, database, token, force })
}

/// First words of SQL statements and of psql's own queries.
const SQL: [&str; 14] = [
    "SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "CREATE", "ALTER", "DROP", "COPY", "EXPLAIN", "TABLE", "VALUES",
    "CALL", "DO",
];

fn unknown(words: &[CommandWord]) -> ErrorText {
    let first = words.first().map_or("", CommandWord::text);
    if SQL.iter().any(|keyword| first.eq_ignore_ascii_case(keyword)) {
        return ErrorText::new("42601", format!("the console of fencegate does not run SQL: {first}"))
            .hint("SHOW HELP lists its commands. To run SQL, connect to a database of the server.");
    }
    if let Some(CommandHelp { command, arguments, .. }) = begun(words) {
        let message = match *arguments {
            "" => format!("{command} takes no arguments"),
            _ => format!("{command} has missing or extra arguments"),
        };
        return ErrorText::new("42601", message)
            .hint(format!("Usage: {}", format!("{command} {arguments}").trim_end()));
    }
    let hint = match nearest(words) {
        Some(command) => format!("Did you mean {command}? SHOW HELP lists the commands."),
        None => "SHOW HELP lists the commands.".to_owned(),
    };
    let shown: Vec<_> = words.iter().take(2).map(CommandWord::text).collect();
    let shown: String = shown.join(" ").chars().take(LONGEST_SHOWN).collect();
    ErrorText::new("42601", format!("unknown command \"{shown}\"")).hint(hint)
}

/// Maximum length of a text in an error, in characters.
const LONGEST_SHOWN: usize = 60;

/// The command whose first words these are.
fn begun(words: &[CommandWord]) -> Option<&'static CommandHelp> {
    let begins = |command: &str| {
        let mut said = words.iter();
        command.split(' ').all(|keyword| said.next().is_some_and(|word| word.is(keyword)))
    };
    COMMANDS.iter().find(|it| begins(it.command))
}

/// The command that is most similar to the words.
fn nearest(words: &[CommandWord]) -> Option<&'static str> {
    let distance = |command: &str| {
        let keywords = command.split(' ').count();
        let said: Vec<_> = words.iter().take(keywords).map(|word| word.text().to_ascii_uppercase()).collect();
        let said: String = said.join(" ").chars().take(LONGEST_SHOWN).collect();
        edits(&said, command)
    };
    let near = COMMANDS.iter().filter_map(|it| Some((distance(it.command)?, it.command)));
    near.min().map(|(_, command)| command)
}

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
mod tests;
