//! What the tokens of a text prove is what its tree says.

use fencegate::statement::{Encoding, Lexing, Script, Statement, analyse, read_tokens};
use std::sync::Arc;

const ENCODINGS: [Encoding; 3] = [Encoding::Utf8, Encoding::AsciiSafe, Encoding::AsciiUnsafe];

pub fn check(text: &[u8]) -> bool {
    let mut proved = false;
    for encoding in ENCODINGS {
        for standard_conforming_strings in [true, false] {
            proved |= agrees(text, Lexing { standard_conforming_strings, encoding });
        }
    }
    proved
}

/// True when the tokens prove something that the server may take.
pub fn agrees(text: &[u8], lexing: Lexing) -> bool {
    let (Some(proved), Ok(read)) = (read_tokens(text, lexing), analyse(text, lexing)) else { return false };
    assert_eq!(sorted(proved), sorted(read), "{}", text.escape_ascii());
    true
}

/// The readers find functions in different orders, and keep or drop the comments at the end.
fn sorted(script: Script) -> Vec<Statement> {
    let mut statements: Vec<_> = script.statements.into_iter().map(Arc::unwrap_or_clone).collect();
    for statement in &mut statements {
        statement.functions.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
        statement.range = 0..0;
    }
    statements
}
