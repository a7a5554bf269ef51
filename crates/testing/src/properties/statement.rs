//! Texts of statements: the statements are in order, lie within the text, and hide no later one.

use fencegate_statement::{Encoding, Lexing, Operation, Script, ServerEncoding, Unreadable, analyze, analyze_rows};
use std::collections::HashSet;

const ENCODINGS: [Encoding; 3] = [Encoding::Utf8, Encoding::AsciiSafe, Encoding::AsciiUnsafe];
const SETTINGS: [(bool, u8); 3] = [(true, Lexing::NEWEST), (false, Lexing::NEWEST), (true, 15)];

pub fn check(text: &[u8]) -> bool {
    let mut readable = false;
    for encoding in ENCODINGS {
        for (standard_conforming_strings, release) in SETTINGS {
            let lexing = Lexing { standard_conforming_strings, encoding, server: ServerEncoding::Utf8, release };
            let Ok(script) = analyze(text, lexing) else { continue };
            assert!(!text.contains(&0));
            assert!(text.is_ascii() || encoding != Encoding::AsciiUnsafe);
            in_order(text, &script);
            after_white_space(text, lexing, &script);
            followed_by_a_write(text, lexing);
            with_rows(text, lexing, &script);
            readable = true;
        }
    }
    readable
}

fn in_order(text: &[u8], script: &Script) {
    let mut end = 0;
    for statement in &script.statements {
        assert!(end <= statement.range.start && statement.range.start <= statement.range.end);
        end = statement.range.end;
    }
    assert!(end <= text.len());
}

/// Leading white space shifts the ranges and changes nothing else.
fn after_white_space(text: &[u8], lexing: Lexing, script: &Script) {
    let moved = analyze(&[b" \n ", text].concat(), lexing).unwrap();
    assert_eq!(moved.statements.len(), script.statements.len());
    for (moved, statement) in moved.statements.iter().zip(&script.statements) {
        assert_eq!(moved.range, statement.range.start + 3..statement.range.end + 3);
        assert_eq!((&moved.writes, &moved.functions), (&statement.writes, &statement.functions));
    }
}

/// A readable text ends outside of literals and comments: text appended to it is a separate statement.
fn followed_by_a_write(text: &[u8], lexing: Lexing) {
    match analyze(&[text, b"\n; DELETE FROM fenced"].concat(), lexing) {
        Ok(script) => {
            let writes = &script.statements.last().unwrap().writes;
            let fenced = |write: &&fencegate_statement::Write| write.relation.name == "fenced";
            assert_eq!(writes.iter().find(fenced).map(|write| write.operation), Some(Operation::Delete));
        }
        // One more statement may exceed the limits of the parsers.
        Err(why) => assert_eq!(why, Unreadable::TooComplex),
    }
}

/// An analysis with rows finds the same writes.
fn with_rows(text: &[u8], lexing: Lexing, script: &Script) {
    let found = analyze_rows(text, lexing).unwrap();
    let writes = |script: &Script| -> Vec<HashSet<_>> {
        let of = |write: &fencegate_statement::Write| (write.relation.clone(), write.operation);
        script.statements.iter().map(|statement| statement.writes.iter().map(of).collect()).collect()
    };
    assert_eq!(writes(&found), writes(script));
}
