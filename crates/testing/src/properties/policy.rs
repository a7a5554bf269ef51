//! A policy file: every fault has a position inside the file.

use fencegate_policy::join;
use std::path::Path;

pub fn check(input: &[u8]) -> bool {
    let path = Path::new("policies.yaml");
    let Err(errors) = join([(path.to_owned(), Ok(input.to_vec()))]) else { return true };
    assert!(!errors.is_empty());
    // A lone CR also ends a line in YAML.
    let text = String::from_utf8_lossy(input).replace("\r\n", "\n").replace('\r', "\n");
    let lines: Vec<_> = text.split('\n').collect();
    for error in errors {
        assert_eq!(error.file, path);
        assert!(!error.message.is_empty() && !error.message.contains('\n'), "{error}");
        // The position may be the end of the line or of the file.
        let line = usize::try_from(error.line - 1).ok().and_then(|line| lines.get(line));
        let is_inside = line.is_some_and(|line| (1..=line.chars().count() as u64 + 1).contains(&error.column));
        assert!(is_inside, "{error}");
    }
    false
}
