//! The list of opaque statements in docs/reference/compatibility.md matches the code.

use super::*;
use std::collections::BTreeSet;
use std::path::Path;

const HEADING: &str = "## Opaque statements";

/// Reasons for later versions of the grammar, which currently apply to no text; and NoRoom, a temporary state (LF006).
const UNLISTED: [OpaqueReason; 5] = [
    OpaqueReason::NoRoom,
    OpaqueReason::UnknownStatement,
    OpaqueReason::UnknownTransaction,
    OpaqueReason::UnknownExpression,
    OpaqueReason::NamelessFunction,
];

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// The cells of each row of the page's table.
fn listed() -> Vec<[String; 2]> {
    let page = read("docs/reference/compatibility.md");
    let section = page.split_once(HEADING).unwrap().1.split("\n## ").next().unwrap().to_owned();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = rows.map(|row| {
        let (example, reason) = row.trim_matches('|').rsplit_once('|').unwrap();
        [example.trim().to_owned(), reason.trim().to_owned()]
    });
    cells.collect()
}

#[test]
fn the_page_lists_exactly_the_reasons_of_the_code() {
    let listed: BTreeSet<String> = listed().into_iter().map(|[_, reason]| reason).collect();
    let expected = OpaqueReason::ALL.iter().filter(|reason| !UNLISTED.contains(reason));
    assert_eq!(listed, expected.map(OpaqueReason::to_string).collect());
}

/// Examples without code are opaque only because of the session's earlier statements.
#[test]
fn the_examples_of_the_page_are_opaque_for_the_stated_reason() {
    let mut examples = 0;
    for [example, reason] in listed() {
        for text in example.split("`, `") {
            let Some(text) = text.strip_prefix('`').or_else(|| (example.starts_with('`')).then_some(text)) else {
                continue;
            };
            let Some(text) = text.split('`').next() else { continue };
            let read = analyze(text.as_bytes(), Lexing::USUAL);
            let found = match &read {
                Ok(script) => script.statements.iter().find_map(|statement| statement.opaque),
                Err(unreadable) => Some(unreadable.into()),
            };
            assert_eq!(found.map(OpaqueReason::text), Some(reason.as_str()), "{text}");
            examples += 1;
        }
    }
    assert!(examples > 20, "{examples}");
}
