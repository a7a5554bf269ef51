//! `SHOW VERSION`: what runs here, in front of what, and since when.

use super::Console;
use super::answer::{Answer, Column, Kind};

pub(super) const COLUMNS: [Column; 3] =
    [Column("fencegate", Kind::Text), Column("server", Kind::Text), Column("started", Kind::Time)];

/// One row.
pub(super) fn show(console: &Console) -> Answer {
    let server = Some(console.server_version.clone()).filter(|version| !version.is_empty());
    let row = vec![env!("CARGO_PKG_VERSION").into(), server.into(), console.proxy.started().into()];
    Answer::show(&COLUMNS, vec![row])
}
