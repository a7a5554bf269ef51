//! docs/reference/cli.md lists every command and argument.

use super::{Arguments, nearest_variable};
use crate::config::SETTINGS;
use clap::{Arg, Command, CommandFactory};
use std::collections::BTreeSet;
use std::fs;

/// A failure prints the expected text.
#[test]
fn the_cli_page_matches_the_program() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/cli.md")).unwrap();
    let (_, rest) = page.split_once("<!-- commands -->\n").unwrap();
    let (shown, _) = rest.split_once("<!-- end of commands -->").unwrap();
    let program = Arguments::command();
    let mut expected = table(&program);
    program.get_subcommands().for_each(|command| add(&mut expected, command, "fencegate"));
    assert!(shown == expected, "expected in docs/reference/cli.md:\n{expected}");
}

/// Adds the section of a command, and those of its subcommands.
fn add(text: &mut String, command: &Command, parent: &str) {
    if command.is_hide_set() {
        return;
    }
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    text.push_str(&format!("\n## `{name}`\n{about}.\n"));
    let table = table(command);
    if !table.is_empty() {
        text.push_str(&format!("\n{table}"));
    }
    command.get_subcommands().for_each(|command| add(text, command, &name));
}

fn table(command: &Command) -> String {
    let is_setting = |argument: &&Arg| {
        let is_flag_of = |key: &str| argument.get_long() == Some(key.replace('_', "-").as_str());
        command.get_name() == "proxy" && SETTINGS.iter().any(|setting| is_flag_of(setting.key))
    };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set() && !is_setting(argument));
    let rows: String = arguments.map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    format!("| argument | meaning | default | variable |\n|---|---|---|---|\n{rows}")
}

fn row(argument: &Arg) -> String {
    let value = match argument.get_action().takes_values() {
        true => argument.get_value_names().unwrap_or_default().join(" "),
        false => String::new(),
    };
    let flag = |long: &str| format!("`{}`", format!("--{long} {value}").trim_end());
    let name = match argument.get_long() {
        Some(long) => {
            let aliases = argument.get_visible_aliases().unwrap_or_default();
            [long].into_iter().chain(aliases).map(flag).collect::<Vec<_>>().join(", ")
        }
        None => format!("`{value}`"),
    };
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let code = |text: &str| format!("`{text}`");
    let possible = argument.get_possible_values();
    let values = possible.iter().filter(|it| !it.is_hide_set()).map(|it| code(it.get_name()));
    let values: Vec<String> = values.collect();
    let help = match argument.get_action().takes_values() && !values.is_empty() {
        true => format!("{help}: {}", values.join(", ")),
        false => help,
    };
    let default = match argument.get_action().takes_values() {
        true => {
            argument.get_default_values().iter().filter_map(|it| it.to_str()).map(code).collect::<Vec<_>>().join(", ")
        }
        false => String::new(),
    };
    let variable = argument.get_env().and_then(|it| it.to_str()).map(code).unwrap_or_default();
    format!("| {name} | {} | {default} | {variable} |\n", help.replace('|', "\\|"))
}

#[test]
fn the_nearest_name_is_found() {
    let known = BTreeSet::from(["FENCEGATE_TLS", "FENCEGATE_TTL"].map(str::to_owned));
    assert_eq!(nearest_variable("FENCEGATE_TLSS", &known).as_deref(), Some("FENCEGATE_TLS"));
    assert_eq!(nearest_variable("FENCEGATE_SOMETHING", &known), None);
}
