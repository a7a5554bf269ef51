//! `SHOW CONFIG`: the settings in force, in the order of their table. Must never show a secret.

use super::Console;
use super::answer::{Answer, Column, Kind};
use crate::config::{Fallback, Reload};

pub(super) const COLUMNS: [Column; 5] = [
    Column("key", Kind::Text),
    Column("value", Kind::Text),
    Column("default", Kind::Text),
    Column("source", Kind::Text),
    Column("reload", Kind::Text),
];

/// A row per setting; `value` is NULL where it is not set, `default` where it has none.
pub(super) fn show(console: &Console) -> Answer {
    let settings = console.proxy.settings();
    let row = |shown: &crate::config::Shown| {
        let default = match shown.setting.default {
            Fallback::Is(text) => Some(text.to_owned()),
            Fallback::Required | Fallback::Nothing(_) => None,
        };
        let reload = match shown.setting.reload {
            Reload::Applies => "applies",
            Reload::ReadsFiles => "reads files",
            Reload::Stays => "restart",
        };
        vec![
            shown.setting.key.into(),
            shown.value.clone().into(),
            default.into(),
            shown.source.clone().into(),
            reload.into(),
        ]
    };
    Answer::show(&COLUMNS, settings.shown.iter().map(row).collect())
}
