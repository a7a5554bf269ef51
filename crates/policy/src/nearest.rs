//! Suggests the known word that an unknown one was probably meant to be.
//!
//! Owns the maximum difference between the two. Its cost must never grow with the length of the word, which users and
//! clients choose.

use std::fmt::Display;
use strsim::osa_distance;

/// The number of edits between the two words: insertions, deletions, substitutions, swaps of neighbors. None if the
/// number exceeds a third of the word: then the words are unrelated.
pub fn edits(word: &str, candidate: &str) -> Option<usize> {
    let length = word.chars().count();
    let limit = length.max(3) / 3;
    // This check comes first, because it bounds the cost by the length of the candidate.
    let is_as_long = length.abs_diff(candidate.chars().count()) <= limit;
    is_as_long.then(|| osa_distance(word, candidate)).filter(|edits| *edits <= limit)
}

/// The candidate with the fewest edits; if there are several, the first.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let measured = candidates.into_iter().filter_map(|candidate| Some((edits(word, candidate)?, candidate)));
    measured.min_by_key(|(edits, _)| *edits).map(|(_, candidate)| candidate)
}

/// The end of a message about a name that does not exist: `; did you mean app?`. Empty if no name is near.
pub fn advice(nearest: Option<impl Display>) -> String {
    nearest.map(|it| format!("; did you mean {it}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_candidate_with_the_fewest_edits_is_nearest() {
        let commands = ["proxy", "policy", "lead", "leases", "init", "man"];
        for (word, meant) in [
            ("polcy", Some("policy")),
            ("prxoy", Some("proxy")),
            ("laed", Some("lead")),
            ("lease", Some("leases")),
            ("mam", Some("man")),
            ("x", None),
            ("", None),
            ("timeline", None),
            ("POLICY", None),
        ] {
            assert_eq!(nearest(word, commands), meant, "{word}");
        }
        assert_eq!(nearest(&"p".repeat(1 << 20), commands), None);
    }
}
