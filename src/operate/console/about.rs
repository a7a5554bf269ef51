//! `SHOW HELP`, `SHOW VERSION` and `SHOW CONFIG`: the commands, the program, and its settings. Must never show a
//! secret.

use super::client::Console;
use super::command::CommandHelp;
use super::result_set::ColumnType::{Text, Time};
use super::result_set::{Table, TableColumn};
use crate::config::{Fallback, Reload, Shown};

/// A row per command.
pub(super) fn commands<'a>() -> Table<&'a CommandHelp> {
    vec![
        TableColumn("command", Text, |it| format!("{} {}", it.command, it.arguments).trim_end().into()),
        TableColumn("description", Text, |it| it.help.into()),
    ]
}

/// One row.
pub(super) fn version<'a>() -> Table<&'a Console> {
    vec![
        TableColumn("fencegate", Text, |_| env!("CARGO_PKG_VERSION").into()),
        TableColumn("server", Text, |it| Some(&it.server_version).filter(|version| !version.is_empty()).into()),
        TableColumn("started", Time, |it| it.proxy.started().into()),
    ]
}

/// A row per setting, in the order of the table; `value` is NULL if it is not set, `default` if it has none.
pub(super) fn settings() -> Table<Shown> {
    vec![
        TableColumn("key", Text, |it| it.setting.key.into()),
        TableColumn("value", Text, |it| it.value.clone().into()),
        TableColumn("default", Text, |it| match it.setting.default {
            Fallback::Is(text) => Some(text).into(),
            Fallback::Required | Fallback::Nothing(_) => None::<&str>.into(),
        }),
        TableColumn("source", Text, |it| it.source.clone().into()),
        TableColumn("reload", Text, |it| match it.setting.reload {
            Reload::Applies | Reload::AppliesToEtcd | Reload::AppliesToOneServer => "applies".into(),
            Reload::Stays => "restart".into(),
        }),
    ]
}
