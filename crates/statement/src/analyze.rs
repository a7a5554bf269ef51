//! From a text to its script: limits, encoding, the fast reader or the tree, ranges; beyond the limits, tokens.
//!
//! The fast reader handles single SELECT, INSERT, UPDATE and DELETE statements from the parser's summary. The summary
//! costs a fifth of the tree and allows deeper expressions, but omits some clauses. The fast reader must never accept a
//! text that may contain one of them: it returns None, and the tree is read instead.

use super::encoding::Sql;
use super::rows::Rows;
use super::tokens::{LONGEST_SURE_NAME, Lexeme, Lexemes};
use super::{
    FunctionName, Lexing, Operation, PreparedEffect, RelationName, Script, ServerEncoding, Statement, StatementKind,
    Unreadable, classify, cost, lexical,
};
use pg_query::ParserOptions;
use pg_query::protobuf::summary_result::Context;
use std::cell::LazyCell;
use std::ops::Range;
use std::sync::Arc;

/// Maximum length of a text for the parsers, in bytes. A longer one would need more memory than a session may take.
const LONGEST: usize = 4 << 20;

/// Like [`LONGEST`], for a text that needs the tree, which may take a thousand times the memory of its text.
pub(crate) const LONGEST_TREE: usize = 512 << 10;

/// From this length on, in bytes, the statements of a text are parsed one by one.
const LONG: usize = 8 << 10;

/// Maximum memory of a script, in bytes: the judge looks at all of it.
const MAX_WEIGHT: usize = 4 << 20;

/// Maximum number of bytes that the lexer reads again: about a hundredth of a second.
const MAX_RELEXED: usize = 16 << 20;

/// Determines the effects of a text, statement by statement. `text` excludes the terminating NUL of the protocol.
///
/// Parsing an untrusted text may take unlimited time and memory, and end the process: use [`super::Cache`] for those.
pub fn analyze(text: &[u8], lexing: Lexing) -> Result<Script, Unreadable> {
    read_text(text, lexing, false)
}

/// Like [`analyze`], but also reports the rows of every write, as far as the text shows them. Takes longer.
pub fn analyze_rows(text: &[u8], lexing: Lexing) -> Result<Script, Unreadable> {
    read_text(text, lexing, true)
}

/// The facts that the tokens of a text prove, without a limit on its size. Tokens show only inserted rows of constants.
pub fn read_tokens(text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Script> {
    let proved = lexical::read(text, lexing).map(|statement| Script { statements: vec![Arc::new(statement)] })?;
    Some(if with_rows { proved } else { proved.with_all_rows(&Rows::left_out()) })
}

/// Runs [`analyze`] or [`analyze_rows`].
pub(crate) fn read_text(text: &[u8], lexing: Lexing, with_rows: bool) -> Result<Script, Unreadable> {
    match parse(text, lexing, with_rows) {
        Err(Unreadable::TooComplex) => read_tokens(text, lexing, with_rows).ok_or(Unreadable::TooComplex),
        answer => answer,
    }
}

fn parse(text: &[u8], lexing: Lexing, with_rows: bool) -> Result<Script, Unreadable> {
    let may_be_costly = text.len().saturating_pow(2) > MAX_RELEXED;
    if text.len() > LONGEST || may_be_costly && cost::relexed(text) > MAX_RELEXED {
        return Err(Unreadable::TooComplex);
    }
    let sql = Sql::read(text, lexing)?;
    let options = options(lexing);
    let plain = read_plain(sql.text(), options).map(|statement| Script { statements: vec![Arc::new(statement)] });
    let mut script = match plain {
        // Only the tree shows the rows.
        Some(plain) if with_rows && plain.statements.iter().any(|statement| !statement.writes.is_empty()) => {
            // The fast reader accepts longer texts than the tree.
            read_tree(sql.text(), options).unwrap_or_else(|_| plain.with_all_rows(&Rows::unread()))
        }
        Some(plain) => plain.with_all_rows(&Rows::left_out()),
        None => read_tree(sql.text(), options)?,
    };
    if script.statements.iter().map(|statement| statement.weight()).sum::<usize>() > MAX_WEIGHT {
        return Err(Unreadable::TooComplex);
    }
    // The server truncates a name of 63 bytes by the session's encoding, the parser as UTF-8.
    // `U&"a!0041" UESCAPE '!'` has no backslash.
    let is_unicode_escape = |it: &[u8]| matches!(it, [b'u' | b'U', b'&', b'"' | b'\'']);
    let has_escapes = LazyCell::new(|| {
        text.contains(&b'\\') || lexing.server != ServerEncoding::Utf8 && text.windows(3).any(is_unicode_escape)
    });
    let is_plain = LazyCell::new(|| text.is_ascii() && !*has_escapes);
    let is_long = |name: &str| name.len() > LONGEST_SURE_NAME && !*is_plain;
    let single_bytes = lexing.server == ServerEncoding::SingleByte;
    let is_unsure = |name: &str| match sql.is_foreign() {
        true => !name.is_ascii() || is_long(name),
        // A name that the parser truncates may be whole at the server, or truncated within a character. Truncation may
        // have left only ASCII.
        false => single_bytes && is_long(name),
    };
    let prepared = |statement: &Statement| match &statement.prepared {
        PreparedEffect::Prepare { statement, .. } => statement.names().any(is_unsure),
        _ => false,
    };
    let is_unread = |statement: &Arc<Statement>| statement.names().any(is_unsure) || prepared(statement);
    // In a pure query, the names of relations and columns do not matter: reads are never fenced.
    let is_query = |statement: &Arc<Statement>| statement.kind == StatementKind::Select && statement.writes.is_empty();
    let names_more = |statement: &Arc<Statement>| statement.names().any(|name| !name.is_ascii());
    let is_folded = |statement: &Arc<Statement>| !is_query(statement) || names_more(statement);
    if script.statements.iter().any(is_unread) || sql.folds_more() && script.statements.iter().any(is_folded) {
        return Err(Unreadable::Encoding);
    }
    // The server reads other such names and key values in this way, but turns escapes into bytes of its own encoding.
    let is_unsure = |word: &str| is_unsure(word) || !word.is_ascii() && *has_escapes;
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
    let read = cost::with_room(sql.as_bytes(), are_conforming(options), || read_tree_here(sql, options));
    read.unwrap_or(Err(Unreadable::TooComplex))
}

/// Like [`read_tree`], on a stack that has room for the tree.
pub(super) fn read_tree_here(sql: &str, options: ParserOptions) -> Result<Script, Unreadable> {
    // Several small trees take less memory than a single one. If each piece is valid SQL, so is the whole.
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
        // A statement contains semicolons.
        Err(Unreadable::Syntax) | Ok(_) => Ok(Script { statements: read_piece(sql, 0..sql.len(), options)? }),
        Err(why) => Err(why),
    }
}

fn are_conforming(options: ParserOptions) -> bool {
    options.bits() & ParserOptions::DISABLE_STANDARD_CONFORMING_STRINGS.bits() == 0
}

/// Splits a text at its semicolons. Returns no pieces if their positions are uncertain.
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
    trim(sql, start..end)
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

/// Words that may indicate clauses which the summary does not show: `ON CONFLICT DO UPDATE`, locking clauses, operators
/// of another schema, writes in WITH, and the arguments of `set_config`. The tree usually shows that they do not.
const WORDS_FOR_THE_TREE: [&[u8]; 5] = [b"config", b"conflict", b"for", b"operator", b"with"];
/// The summary does not show the function calls of RETURNING.
const RETURNING: &[u8] = b"returning";

/// Reads the text if it is one plain statement. None proves nothing.
pub(super) fn read_plain(sql: &str, options: ParserOptions) -> Option<Statement> {
    let range = trim(sql, 0..sql.trim_ascii_end().trim_end_matches(';').len());
    let text = sql.get(range.clone())?;
    if text.contains(';') || needs_the_tree(text) {
        return None;
    }
    let (_, kind, type_name, operation) = start_of(text)?;
    let summary = pg_query::summary(sql, options, -1).ok()?.protobuf;
    if !summary.statement_types.iter().all(|found| found == type_name || found == "SelectStmt") {
        return None;
    }
    let mut statement = Statement { range, kind, ..Statement::default() };
    for table in &summary.tables {
        if table.context == Context::Select as i32 {
            statement.reads.push(relation(&table.schema_name, &table.table_name));
            continue;
        }
        // This reader does not handle a second table, or a table in a SELECT.
        if !statement.writes.is_empty() || table.context != Context::Dml as i32 {
            return None;
        }
        statement.add_write(relation(&table.schema_name, &table.table_name), operation?);
    }
    if operation.is_some() == statement.writes.is_empty() {
        return None;
    }
    for function in summary.functions {
        let schema = Some(function.schema_name).filter(|schema| !schema.is_empty());
        statement.add_call(FunctionName { schema, name: function.function_name });
    }
    statement.settle();
    Some(statement)
}

fn relation(schema: &str, name: &str) -> RelationName {
    RelationName { schema: Some(schema.to_owned()).filter(|schema| !schema.is_empty()), name: name.to_owned() }
}

type Start = (&'static [u8], StatementKind, &'static str, Option<Operation>);

fn start_of(text: &str) -> Option<Start> {
    const STARTS: [Start; 4] = [
        (b"select", StatementKind::Select, "SelectStmt", None),
        (b"insert", StatementKind::Insert, "InsertStmt", Some(Operation::Insert)),
        (b"update", StatementKind::Update, "UpdateStmt", Some(Operation::Update)),
        (b"delete", StatementKind::Delete, "DeleteStmt", Some(Operation::Delete)),
    ];
    let word = words(text.as_bytes()).next()?;
    STARTS.into_iter().find(|(start, ..)| text.as_bytes().starts_with(word) && word.eq_ignore_ascii_case(start))
}

fn needs_the_tree(text: &str) -> bool {
    // If only names follow RETURNING, up to the end, it calls nothing.
    let names = |c: char| c.is_ascii_alphanumeric() || c.is_ascii_whitespace() || "_,.*\"".contains(c);
    let before_names = text.trim_end_matches(names);
    let is_one = |word: &[u8], wanted: &[u8]| word.eq_ignore_ascii_case(wanted);
    words(before_names.as_bytes()).any(|word| is_one(word, RETURNING))
        || words(text.as_bytes())
            .filter(|word| (3..=9).contains(&word.len()))
            .any(|word| WORDS_FOR_THE_TREE.iter().any(|wanted| is_one(word, wanted)))
}

/// All words that may be key words, including those in literals and comments.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| !byte.is_ascii_alphabetic()).filter(|word| !word.is_empty())
}

/// Removes the white space around a range, but not comments.
pub(super) fn trim(sql: &str, range: Range<usize>) -> Range<usize> {
    let Some(text) = sql.get(range.clone()) else { return range };
    let start = range.start + (text.len() - text.trim_ascii_start().len());
    start..(start + text.trim_ascii().len())
}
