//! `SHOW HELP`: the commands.

use super::answer::{Answer, Column, Kind};
use super::command::COMMANDS;

pub(super) const COLUMNS: [Column; 2] = [Column("command", Kind::Text), Column("description", Kind::Text)];

/// A row per command.
pub(super) fn show() -> Answer {
    let row = |it: &super::command::Described| {
        vec![format!("{} {}", it.command, it.arguments).trim_end().into(), it.help.into()]
    };
    Answer::show(&COLUMNS, COMMANDS.iter().map(row).collect())
}
