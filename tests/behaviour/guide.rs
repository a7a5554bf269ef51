//! The guide is true: its commands run in their order, in one shell, and print what it shows.
//!
//! The commands run as they stand, save that the ports are those of a throwaway server.

use crate::support::guardian::{Folder, Port, Program};
use crate::support::page::{blocks, path};
use crate::support::{DEADLINE, Options, Postgres, wait_until};
use std::fs;

const GUIDE: &str = include_str!("../../docs/guide.md");
/// Stands before the output of each block, and after it with the exit status.
const MARK: &str = "=====";

/// A block of commands, and the output that the page shows.
fn steps() -> Vec<(String, Option<String>)> {
    let after = GUIDE.split("```sh\n").skip(1).map(|rest| rest.split_once("\n```\n").unwrap().1);
    let shown =
        after.map(|rest| rest.strip_prefix("```text\n").map(|rest| rest.split("\n```").next().unwrap().to_owned()));
    blocks(GUIDE, "sh").into_iter().zip(shown).collect()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn every_command_runs_and_prints_what_is_shown() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE ROLE app LOGIN");
    postgres.sql("CREATE DATABASE app");
    let (folder, port, http) = (Folder::new("guide"), Port::claim(), Port::claim());
    let here = |text: &str| {
        let (upstream, proxy, http) =
            (postgres.port().to_string(), port.number().to_string(), http.number().to_string());
        text.replace("5432", &upstream).replace("6432", &proxy).replace("9432", &http)
    };
    let steps = steps();
    assert!(steps.len() >= 12, "{steps:?}");
    let mut script = format!("set -um; cd '{}'; PATH='{}'; exec 2>&1\n", folder.path().display(), path());
    for (commands, _) in &steps {
        script += &format!("echo {MARK}\n{}\necho \"{MARK} $?\"\n", here(commands));
    }
    let log = folder.join("log");
    let mut guide = Program::start(&["bash", "-c", &script], &log, "KILL");
    let printed = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("the guide has come to its end", DEADLINE, || guide.exit_status().is_some());
    let printed = printed();
    let outputs: Vec<&str> = printed.split(&format!("{MARK}\n")).skip(1).collect();
    assert_eq!(outputs.len(), steps.len(), "{printed}");
    for ((commands, shown), output) in steps.iter().zip(outputs) {
        let (output, status) = output.rsplit_once(MARK).unwrap_or_else(|| panic!("{commands}\n{output}"));
        let shown = here(shown.as_deref().unwrap_or_default());
        let fails = shown.starts_with("ERROR") || shown.contains("\nERROR");
        assert_eq!(status.trim() == "1", fails, "{commands}\n{output}{status}");
        let mut lines = output.lines();
        for line in shown.lines() {
            assert!(lines.any(|it| words(it) == words(line)), "no {line:?} in\n{output}\nof\n{commands}");
        }
    }
    let picture = fs::read_to_string(folder.join("timeline.svg")).unwrap();
    for text in [">C</text>", "LF001: UPDATE, ticks, token 1: the highest is 2", "LF002: UPDATE, ticks, no token"] {
        assert!(picture.contains(text), "{text} in {picture}");
    }
}
