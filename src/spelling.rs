//! How far a word is from the one that was meant.
//!
//! Must never be given words of any length: it takes the time of both lengths multiplied.

/// How many letters have to be added, removed or changed (Levenshtein's distance).
pub fn edits(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (line, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, b) in other.chars().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (one, other, expected) in
            [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("abcd", "acbd", 2), ("ab", "xaby", 2)]
        {
            assert_eq!((edits(one, other), edits(other, one)), (expected, expected), "{one} {other}");
        }
    }
}
