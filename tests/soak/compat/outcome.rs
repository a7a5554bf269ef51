//! The output of a suite's run, and the differences between two runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Verdict and output of each test.
pub struct Outcome {
    said: String,
    verdicts: Vec<String>,
    results: BTreeMap<String, Vec<u8>>,
}

impl Outcome {
    /// From the output of the driver, and the folder with the output of the tests.
    pub fn new(said: String, results: &Path) -> Self {
        const ENDINGS: [&str; 3] = [" ok", " FAILED", " failed (ignored)"];
        let is_verdict = |line: &String| ENDINGS.iter().any(|ending| line.contains(ending));
        let verdicts = said.lines().map(without_times).filter(is_verdict).collect();
        let files = fs::read_dir(results).unwrap_or_else(|error| panic!("no results, {error}:\n{said}"));
        let files =
            files.map(|file| file.unwrap()).filter(|file| file.file_name().as_encoded_bytes().ends_with(b".out"));
        let results = files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()));
        Self { verdicts, results: results.collect(), said }
    }

    /// Number of tests that ran.
    pub fn count(&self) -> usize {
        self.verdicts.len()
    }

    pub fn passed(&self) -> usize {
        self.verdicts.iter().filter(|line| line.ends_with(" ok")).count()
    }

    pub fn said(&self) -> &str {
        &self.said
    }

    /// A text for each test with a different result.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let verdicts = self.verdicts.iter().zip(&other.verdicts).filter(|(ours, theirs)| ours != theirs);
        let mut differences: Vec<_> = verdicts.map(|(ours, theirs)| format!("- {ours}\n+ {theirs}")).collect();
        if self.count() != other.count() {
            differences.push(format!("{} tests ran, then {}:\n{}", self.count(), other.count(), other.said));
        }
        let names: BTreeSet<_> = self.results.keys().chain(other.results.keys()).collect();
        for name in names {
            let (ours, theirs) = (self.results.get(name), other.results.get(name));
            if ours != theirs {
                differences.push(format!("{name}:\n{}", first_difference(ours, theirs)));
            }
        }
        differences
    }
}

/// Removes the time from a line such as `     boolean    ... ok          166 ms`.
fn without_times(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    match words.as_slice() {
        [said @ .., number, "ms"] if number.parse::<u32>().is_ok() => said.join(" "),
        words => words.join(" "),
    }
}

/// The lines around the first difference.
fn first_difference(ours: Option<&Vec<u8>>, theirs: Option<&Vec<u8>>) -> String {
    const SHOWN: usize = 12;
    let lines = |text: Option<&Vec<u8>>| -> Vec<String> {
        text.map_or_else(Vec::new, |text| String::from_utf8_lossy(text).lines().map(str::to_owned).collect())
    };
    let (ours, theirs) = (lines(ours), lines(theirs));
    let same = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
    let start = same.saturating_sub(SHOWN / 2);
    let shown = |sign: char, lines: &[String]| -> String {
        lines.iter().skip(start).take(SHOWN).map(|line| format!("  {sign} {line}\n")).collect()
    };
    format!("  line {}\n{}{}", same + 1, shown('-', &ours), shown('+', &theirs))
}
