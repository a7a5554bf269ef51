//! Everything that the tokens of a text prove agrees with its parse tree.

use fencegate_statement::rows::Rows;
use fencegate_statement::{Encoding, Lexing, Script, ServerEncoding, Statement, analyze, analyze_rows, read_tokens};
use std::sync::Arc;

const ENCODINGS: [Encoding; 3] = [Encoding::Utf8, Encoding::AsciiSafe, Encoding::AsciiUnsafe];

pub fn check(text: &[u8]) -> bool {
    let mut proved = false;
    for encoding in ENCODINGS {
        for (standard_conforming_strings, release) in [(true, Lexing::NEWEST), (false, Lexing::NEWEST), (true, 15)] {
            let server = ServerEncoding::Utf8;
            proved |= agrees(text, Lexing { standard_conforming_strings, encoding, server, release });
        }
    }
    proved
}

/// Returns true if the tokens prove something and the parsers accept the text.
pub fn agrees(text: &[u8], lexing: Lexing) -> bool {
    let Some((proved, read)) = both(text, lexing) else { return false };
    assert_eq!(proved, read, "{}", text.escape_ascii());
    same_rows(text, lexing);
    true
}

/// The tree has every column value that the tokens show. Tokens show only plain constants, which depend on no operator
/// or type in the search path.
fn same_rows(text: &[u8], lexing: Lexing) {
    let (Some(proved), Ok(read)) = (read_tokens(text, lexing, true), analyze_rows(text, lexing)) else { return };
    let rows = |script: &Script| script.statements.first().and_then(|first| Some(first.writes.first()?.rows.clone()));
    if let Some(proved) = rows(&proved).filter(|rows| !rows.are_unread()) {
        assert!(proved.implies_no_more_than(&rows(&read).unwrap_or_default()), "{}", text.escape_ascii());
    }
}

/// Returns the statements as the tokens prove them and as the parsers read them, if both succeed.
pub fn both(text: &[u8], lexing: Lexing) -> Option<(Vec<Statement>, Vec<Statement>)> {
    Some((sorted(read_tokens(text, lexing, false)?), sorted(analyze(text, lexing).ok()?)))
}

/// Removes the parts that may differ: the order of functions, the range (a reader may include trailing comments), the
/// rows and the reads.
fn sorted(script: Script) -> Vec<Statement> {
    let mut statements: Vec<_> = script.statements.into_iter().map(Arc::unwrap_or_clone).collect();
    for statement in &mut statements {
        statement.functions.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
        statement.range = 0..0;
        (statement.reads, statement.reads_more, statement.keys_by_path) = (Vec::new(), false, false);
        statement.writes.iter_mut().for_each(|write| write.rows = Rows::default());
    }
    statements
}
