//! The check of the cron table in `examples/distributed_cron` finds violations of each claim.

use std::collections::BTreeMap;

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Seconds since 1970.
    pub tick: i64,
    pub node: String,
    pub token: i64,
}

/// The observations of one run: the rows in write order, and the nodes' output.
#[derive(Debug, Default)]
pub struct Observed {
    pub rows: Vec<Row>,
    pub skipped: i64,
    pub late_writes: usize,
}

impl Observed {
    pub fn new(rows: Vec<Row>, said: &[String]) -> Self {
        let skipped = said.iter().filter_map(|line| line.split_once(" skipped ")?.1.parse::<i64>().ok()).sum();
        let late_writes = said.iter().filter(|line| line.ends_with("rejected: LF001")).count();
        Observed { rows, skipped, late_writes }
    }

    /// Number of ticks with more than one row.
    pub fn doubled(&self) -> usize {
        let mut rows: BTreeMap<i64, usize> = BTreeMap::new();
        self.rows.iter().for_each(|row| *rows.entry(row.tick).or_default() += 1);
        rows.values().filter(|count| **count > 1).count()
    }

    /// Number of rows written after one with a higher token.
    pub fn stale(&self) -> usize {
        let mut highest = 0;
        let is_stale = |row: &&Row| {
            highest = highest.max(row.token);
            row.token < highest
        };
        self.rows.iter().filter(is_stale).count()
    }

    /// Number of ticks between the first and the last that have no row, and that no node reported as skipped.
    pub fn forgotten(&self, period: i64) -> i64 {
        let ticks: std::collections::BTreeSet<i64> = self.rows.iter().map(|row| row.tick).collect();
        let (Some(first), Some(last)) = (ticks.first(), ticks.last()) else { return 0 };
        (last - first) / period + 1 - i64::try_from(ticks.len()).unwrap_or(i64::MAX) - self.skipped
    }

    /// Contradictions to the claim that a fence held. Empty if it did.
    pub fn contradictions(&self, period: i64) -> Vec<String> {
        let mut found = Vec::new();
        let mut claim = |holds: bool, otherwise: String| {
            if !holds {
                found.push(otherwise);
            }
        };
        claim(!self.rows.is_empty(), "the table is empty".into());
        claim(self.doubled() == 0, format!("{} ticks were run twice", self.doubled()));
        claim(self.stale() == 0, format!("{} rows stand after one with a higher token", self.stale()));
        claim(self.forgotten(period) == 0, format!("{} ticks are missing, and nobody said so", self.forgotten(period)));
        claim(self.rows.iter().all(|row| row.tick % period == 0), "ticks are not aligned to the clock".into());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(rows: &[(i64, i64)], said: &[&str]) -> Observed {
        let row = |&(tick, token): &(i64, i64)| Row { tick, node: "a".into(), token };
        let said: Vec<String> = said.iter().map(|&line| line.into()).collect();
        Observed::new(rows.iter().map(row).collect(), &said)
    }

    #[test]
    fn one_row_per_tick_in_token_order_satisfies_all_claims() {
        let kept = observed(&[(10, 1), (12, 1), (18, 2)], &["12:00:00 b skipped 2"]);
        assert_eq!(kept.contradictions(2), Vec::<String>::new());
    }

    #[test]
    fn each_claim_can_fail() {
        let said = |rows: &[(i64, i64)]| observed(rows, &[]).contradictions(2).join("; ");
        assert!(said(&[]).contains("empty"));
        assert!(said(&[(10, 1), (10, 2)]).contains("twice"));
        assert!(said(&[(10, 2), (12, 1)]).contains("higher token"));
        assert!(said(&[(10, 1), (14, 1)]).contains("missing"));
        assert!(said(&[(11, 1)]).contains("aligned"));
    }

    #[test]
    fn late_writes_are_counted() {
        assert_eq!(observed(&[], &["x a late write for 12:00:00 rejected: LF001", "x b tick 12:00:00"]).late_writes, 1);
    }
}
