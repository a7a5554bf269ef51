//! `SHOW HELP`, `SHOW VERSION` and `SHOW CONFIG`: the commands, the program, and its settings. Must never show a secret.

use super::Console;
use super::answer::Kind::{Text, Time};
use super::answer::{Column, Table};
use super::command::CommandHelp;
use crate::config::{Fallback, Reload, Shown};

/// A row per command.
pub(super) fn commands<'a>() -> Table<&'a CommandHelp> {
    vec![
        Column("command", Text, |it| format!("{} {}", it.command, it.arguments).trim_end().into()),
        Column("description", Text, |it| it.help.into()),
    ]
}

/// One row.
pub(super) fn version<'a>() -> Table<&'a Console> {
    vec![
        Column("fencegate", Text, |_| env!("CARGO_PKG_VERSION").into()),
        Column("server", Text, |it| Some(&it.server_version).filter(|version| !version.is_empty()).into()),
        Column("started", Time, |it| it.proxy.started().into()),
    ]
}

/// A row per setting in the order of their table; `value` is NULL where it is not set, `default` where it has none.
pub(super) fn settings() -> Table<Shown> {
    vec![
        Column("key", Text, |it| it.setting.key.into()),
        Column("value", Text, |it| it.value.clone().into()),
        Column("default", Text, |it| match it.setting.default {
            Fallback::Is(text) => Some(text).into(),
            Fallback::Required | Fallback::Nothing(_) => None::<&str>.into(),
        }),
        Column("source", Text, |it| it.source.clone().into()),
        Column("reload", Text, |it| match it.setting.reload {
            Reload::Applies => "applies".into(),
            Reload::ReadsFiles => "reads files".into(),
            Reload::Stays => "restart".into(),
        }),
    ]
}
