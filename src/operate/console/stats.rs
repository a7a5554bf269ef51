//! `SHOW STATS`: the verdicts on writes since the proxy started, as in the metric `fencegate_writes_total`.

use super::client::Console;
use super::result_set::ColumnType::{Integer, Text};
use super::result_set::{Table, TableColumn};
use crate::metrics::VERDICTS;
use std::collections::BTreeMap;

/// Database, resource and mode.
type Labels = (String, String, String);

/// A count per verdict, in the order of [`VERDICTS`].
type Counts = [u64; VERDICTS.len()];

/// A row per database, resource and mode; `resource` is NULL if the statement does not reveal it.
pub(super) fn table() -> Table<(Labels, Counts)> {
    vec![
        TableColumn("database", Text, |(labels, _)| (&labels.0).into()),
        TableColumn("resource", Text, |(labels, _)| Some(&labels.1).filter(|name| !name.is_empty()).into()),
        TableColumn("mode", Text, |(labels, _)| (&labels.2).into()),
        TableColumn("admitted", Integer, |(_, counts)| counts[0].into()),
        TableColumn("stale", Integer, |(_, counts)| counts[1].into()),
        TableColumn("missing", Integer, |(_, counts)| counts[2].into()),
        TableColumn("invalid", Integer, |(_, counts)| counts[3].into()),
        TableColumn("unverifiable", Integer, |(_, counts)| counts[4].into()),
        TableColumn("unissued", Integer, |(_, counts)| counts[5].into()),
        TableColumn("unavailable", Integer, |(_, counts)| counts[6].into()),
        TableColumn("exempt", Integer, |(_, counts)| counts[7].into()),
    ]
}

/// The rows.
pub(super) fn counts(console: &Console) -> BTreeMap<Labels, Counts> {
    let mut counts: BTreeMap<Labels, Counts> = BTreeMap::new();
    for write in console.proxy.writes() {
        let of_resource = counts.entry((write.database, write.resource, write.mode)).or_default();
        if let Some(place) = VERDICTS.iter().position(|verdict| *verdict == write.verdict) {
            of_resource[place] += write.count;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_a_column() {
        let columns: Vec<_> = table()[3..].iter().map(|column| column.0).collect();
        assert_eq!(columns, VERDICTS);
    }
}
