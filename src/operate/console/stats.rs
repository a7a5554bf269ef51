//! `SHOW STATS`: what has become of writes since the proxy started, as in the metric `fencegate_writes_total`.

use super::Console;
use super::answer::{Answer, Column, Kind, Value};
use crate::metrics::VERDICTS;
use std::collections::BTreeMap;

pub(super) const COLUMNS: [Column; 11] = [
    Column("database", Kind::Text),
    Column("resource", Kind::Text),
    Column("mode", Kind::Text),
    Column("admitted", Kind::Integer),
    Column("stale", Kind::Integer),
    Column("missing", Kind::Integer),
    Column("invalid", Kind::Integer),
    Column("unverifiable", Kind::Integer),
    Column("unissued", Kind::Integer),
    Column("unavailable", Kind::Integer),
    Column("exempt", Kind::Integer),
];

/// A row per database, resource and mode; `resource` is NULL where the statement does not tell.
pub(super) fn show(console: &Console) -> Answer {
    let mut counts: BTreeMap<(String, String, String), [u64; VERDICTS.len()]> = BTreeMap::new();
    for write in console.proxy.writes() {
        let of_resource = counts.entry((write.database, write.resource, write.mode)).or_default();
        if let Some(place) = VERDICTS.iter().position(|verdict| *verdict == write.verdict) {
            of_resource[place] += write.count;
        }
    }
    let row = |((database, resource, mode), counts): ((String, String, String), [u64; VERDICTS.len()])| {
        let resource = Some(resource).filter(|name| !name.is_empty());
        let labels: [Value; 3] = [database.into(), resource.into(), mode.into()];
        labels.into_iter().chain(counts.map(Value::from)).collect()
    };
    Answer::show(&COLUMNS, counts.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_its_column() {
        let columns: Vec<_> = COLUMNS[3..].iter().map(|column| column.0).collect();
        assert_eq!(columns, VERDICTS);
    }
}
