//! The way from a text to its script: limits, encoding, the fast reader or the tree, ranges; beyond the limits, tokens.

use super::encoding::Sql;
use super::rows::Rows;
use super::tokens::{LONGEST_SURE_NAME, Lexeme, Lexemes};
use super::{
    Lexing, PreparedEffect, Script, ServerEncoding, Statement, StatementKind, Unreadable, classify, cost, lexical,
    plain, stack,
};
use pg_query::ParserOptions;
use std::ops::Range;
use std::sync::Arc;

/// Longest text for the parsers, in bytes: a longer one would need more memory than a session may take.
const LONGEST: usize = 4 << 20;

/// As [`LONGEST`] for a text that needs the tree, which takes up to a thousand times its text in memory.
pub(crate) const LONGEST_TREE: usize = 512 << 10;

/// A text of several statements that is longer is read one by one.
const LONG: usize = 8 << 10;

/// The most that a script may hold, in bytes: the judge looks at all of it.
const HEAVIEST: usize = 4 << 20;

/// About a hundredth of a second.
const DEAREST: usize = 16 << 20;

/// Determines the effects of a text, statement by statement. `text` excludes the terminating NUL of the protocol.
///
/// An untrusted text may take unlimited time and memory, and end the process: use [`super::Cache`] for those.
pub fn analyze(text: &[u8], lexing: Lexing) -> Result<Script, Unreadable> {
    read_text(text, lexing, false)
}

/// As [`analyze`], and says of every write which rows it touches, as far as the text tells. It takes longer.
pub fn analyze_rows(text: &[u8], lexing: Lexing) -> Result<Script, Unreadable> {
    read_text(text, lexing, true)
}

/// The facts that the tokens of a text prove, without a limit to its size. They show only rows of constants that are inserted.
pub fn read_tokens(text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Script> {
    let proved = lexical::read(text, lexing).map(|statement| Script { statements: vec![Arc::new(statement)] })?;
    Some(if with_rows { proved } else { proved.with_all_rows(&Rows::left_out()) })
}

/// [`analyze`], or [`analyze_rows`].
pub(crate) fn read_text(text: &[u8], lexing: Lexing, with_rows: bool) -> Result<Script, Unreadable> {
    match parse(text, lexing, with_rows) {
        Err(Unreadable::TooComplex) => read_tokens(text, lexing, with_rows).ok_or(Unreadable::TooComplex),
        answer => answer,
    }
}

fn parse(text: &[u8], lexing: Lexing, with_rows: bool) -> Result<Script, Unreadable> {
    let may_be_dear = text.len().saturating_pow(2) > DEAREST;
    if text.len() > LONGEST || may_be_dear && cost::relexed(text) > DEAREST {
        return Err(Unreadable::TooComplex);
    }
    let sql = Sql::read(text, lexing)?;
    let options = options(lexing);
    let plain = plain::read(sql.text(), options).map(|statement| Script { statements: vec![Arc::new(statement)] });
    let mut script = match plain {
        // The tree says more, where there is one.
        Some(plain) if with_rows && plain.statements.iter().any(|statement| !statement.writes.is_empty()) => {
            // The fast reader takes longer texts than the tree does.
            read_tree(sql.text(), options).unwrap_or_else(|_| plain.with_all_rows(&Rows::unread()))
        }
        Some(plain) => plain.with_all_rows(&Rows::left_out()),
        None => read_tree(sql.text(), options)?,
    };
    if script.statements.iter().map(|statement| statement.weight()).sum::<usize>() > HEAVIEST {
        return Err(Unreadable::TooComplex);
    }
    // The server cuts a name of 63 bytes by the session's encoding, the parser as UTF-8.
    let is_long = |name: &str| name.len() > LONGEST_SURE_NAME && !text.is_ascii();
    let single_bytes = lexing.server == ServerEncoding::SingleByte;
    let is_unsure = |name: &str| match sql.is_foreign() {
        true => !name.is_ascii() || is_long(name),
        // A name that the parser truncates may be whole at the server, or truncated within a character.
        false => single_bytes && !name.is_ascii() && is_long(name),
    };
    let prepared = |statement: &Statement| match &statement.prepared {
        PreparedEffect::Prepare { statement, .. } => statement.names().any(is_unsure),
        _ => false,
    };
    let is_unread = |statement: &Arc<Statement>| statement.names().any(is_unsure) || prepared(statement);
    // The names of relations and columns do not matter in a mere query: reads are never fenced.
    let is_query = |statement: &Arc<Statement>| statement.kind == StatementKind::Select && statement.writes.is_empty();
    let names_more = |statement: &Arc<Statement>| statement.names().any(|name| !name.is_ascii());
    let is_folded = |statement: &Arc<Statement>| !is_query(statement) || names_more(statement);
    if script.statements.iter().any(is_unread) || sql.folds_more() && script.statements.iter().any(is_folded) {
        return Err(Unreadable::Encoding);
    }
    // The server reads such a name or value of a key in this way, and turns escapes into bytes of its own encoding.
    let is_unsure = |word: &str| is_unsure(word) || !word.is_ascii() && text.contains(&b'\\');
    for statement in script.statements.iter_mut().filter_map(Arc::get_mut) {
        statement.forget_rows(&is_unsure);
        statement.reads_more |= statement.reads.iter().any(|relation| relation.names().any(is_unsure));
    }
    sql.restore(script.statements.iter_mut().filter_map(Arc::get_mut).map(|statement| &mut statement.range));
    Ok(script)
}

pub(super) fn options(lexing: Lexing) -> ParserOptions {
    if lexing.standard_conforming_strings {
        ParserOptions::DEFAULT
    } else {
        ParserOptions::DISABLE_STANDARD_CONFORMING_STRINGS
    }
}

/// Reads any text, statement by statement, from the parser's tree.
pub(super) fn read_tree(sql: &str, options: ParserOptions) -> Result<Script, Unreadable> {
    if sql.len() > LONGEST_TREE {
        return Err(Unreadable::TooComplex);
    }
    let read = stack::with_room(sql.as_bytes(), are_conforming(options), || read_tree_here(sql, options));
    read.unwrap_or(Err(Unreadable::TooComplex))
}

/// As [`read_tree`], on a stack that has room for the tree.
pub(super) fn read_tree_here(sql: &str, options: ParserOptions) -> Result<Script, Unreadable> {
    // One tree after the other takes less memory than all at once. Each of them being right, they are so together.
    let pieces = if sql.len() > LONG { pieces(sql, options) } else { Vec::new() };
    let in_pieces = || {
        let mut script = Script::default();
        for piece in &pieces {
            script.statements.extend(read_piece(sql, piece.clone(), options)?);
        }
        Ok(script)
    };
    match in_pieces() {
        Ok(script) if pieces.len() > 1 => Ok(script),
        // There are semicolons within a statement.
        Err(Unreadable::Syntax) | Ok(_) => Ok(Script { statements: read_piece(sql, 0..sql.len(), options)? }),
        Err(why) => Err(why),
    }
}

fn are_conforming(options: ParserOptions) -> bool {
    options.bits() & ParserOptions::DISABLE_STANDARD_CONFORMING_STRINGS.bits() == 0
}

/// Cuts a text at its semicolons; not at all where it cannot be told where they are.
fn pieces(sql: &str, options: ParserOptions) -> Vec<Range<usize>> {
    let mut tokens = Lexemes::new(sql.as_bytes(), are_conforming(options));
    let (mut pieces, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    while let Some(token) = tokens.next() {
        match token {
            Lexeme::Unsure => return Vec::new(),
            Lexeme::Symbol(b'(') => depth += 1,
            Lexeme::Symbol(b')') => depth = depth.saturating_sub(1),
            Lexeme::Symbol(b';') if depth == 0 => {
                pieces.push(start..tokens.end() - 1);
                start = tokens.end();
            }
            _ => {}
        }
    }
    pieces.push(start..sql.len());
    pieces
}

fn read_piece(sql: &str, piece: Range<usize>, options: ParserOptions) -> Result<Vec<Arc<Statement>>, Unreadable> {
    let text = sql.get(piece.clone()).ok_or(Unreadable::Syntax)?;
    let tree = pg_query::parse(text, options).map_err(unreadable)?.protobuf;
    let statements = tree.stmts.iter().map(|raw| {
        let mut statement = match raw.stmt.as_deref().and_then(|node| node.node.as_ref()) {
            Some(node) => classify::classify(node),
            None => return Err(Unreadable::Syntax),
        };
        let range = range(text, raw.stmt_location, raw.stmt_len);
        statement.range = piece.start + range.start..piece.start + range.end;
        Ok(Arc::new(statement))
    });
    statements.collect()
}

/// A length of 0 means up to the end of the text.
fn range(sql: &str, location: i32, length: i32) -> Range<usize> {
    let start = usize::try_from(location).unwrap_or(0);
    let end = match usize::try_from(length) {
        Ok(length) if length > 0 => start + length,
        _ => sql.len(),
    };
    plain::trim(sql, start..end)
}

fn unreadable(error: pg_query::Error) -> Unreadable {
    match error {
        pg_query::Error::Parse(message) if !is_about_size(&message) => Unreadable::Syntax,
        _ => Unreadable::TooComplex,
    }
}

/// The parser's messages when it gives up on a text that may be valid SQL.
fn is_about_size(message: &str) -> bool {
    ["stack depth", "memory", "serialize"].iter().any(|hint| message.contains(hint))
}
