//! `fencegate lead` on a terminal: the command can read the terminal, and the shell regains it.

use crate::lead::stage::{ENDLESS, Stage};
use crate::support::guardian::Program;
use crate::support::{DEADLINE, wait_until};
use std::{fmt, fs};

impl Stage {
    /// Runs a shell script on its own terminal; `{lead}` starts a leader with the command that follows.
    fn on_a_terminal(&self, script: &str, typed: &[&str]) -> Program {
        for (index, typed) in typed.iter().enumerate() {
            fs::write(self.folder.join(&format!("typed-{}", index + 1)), typed).unwrap();
        }
        let lead = self.command(ENDLESS, &[], "");
        let dashes = lead.iter().position(|argument| argument == "--").unwrap();
        let script = script.replace("{lead}", &lead[..=dashes].join(" "));
        let folder = self.folder.path().display().to_string();
        let python = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/behaviour/lead/terminal.py");
        self.run(&["python3", python, &folder, "sh", "-c", &script, "sh", &folder].map(str::to_owned))
    }

    fn screen(&self) -> String {
        self.read("screen").unwrap_or_default()
    }
}

/// The message of a wait that timed out.
struct Screen<'a>(&'a Stage);

impl fmt::Display for Screen<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "it is told so on the screen:\n{}\nin the log:\n{}", self.0.screen(), self.0.log())
    }
}

#[test]
fn a_command_reads_the_terminal_and_returns_it_to_its_shell() {
    let stage = Stage::new();
    let ask = |number: u32| format!(r#">"$1/wanted-{number}"; read -r line; echo "$1: {number} got $line""#);
    let (first, second) = (ask(1).replace("$1:", "command:"), ask(2).replace("$1:", "shell:"));
    let script = format!(r#"{{lead}} sh -c '{first}' sh "$1"; {second}"#);
    let mut session = stage.on_a_terminal(&script, &["hello\n", "again\n"]);
    assert_eq!(session.wait(), 0, "{}\n{}", stage.screen(), stage.log());
    let screen = stage.screen();
    assert!(screen.contains("command: 1 got hello") && screen.contains("shell: 2 got again"), "{screen}");
}

#[test]
fn control_c_ends_the_command_whether_it_has_the_terminal_or_not() {
    for first in ["", "read -r line;"] {
        let stage = Stage::new();
        let script = format!(
            r#"trap : INT; {{lead}} sh -c '{first} trap "exit 9" INT; >"$1/wanted-2"; while :; do sleep 0.02; done' sh "$1"; exit $?"#
        );
        fs::write(stage.folder.join("wanted-1"), "").unwrap();
        let mut session = stage.on_a_terminal(&script, &["line\n", "\x03"]);
        assert_eq!(session.wait(), 9, "{}\n{}", stage.screen(), stage.log());
    }
}

#[test]
fn control_z_does_not_suspend_it() {
    for first in ["", "read -r line;"] {
        let stage = Stage::new();
        let script =
            format!(r#"{{lead}} sh -c '{first} >"$1/wanted-2"; while [ ! -e "$1/end" ]; do sleep 0.02; done' sh "$1""#);
        fs::write(stage.folder.join("wanted-1"), "").unwrap();
        let mut session = stage.on_a_terminal(&script, &["line\n", "\x1a"]);
        wait_until(Screen(&stage), DEADLINE, || has_continued(&stage));
        fs::write(stage.folder.join("end"), "").unwrap();
        assert_eq!(session.wait(), 0, "{}\n{}", stage.screen(), stage.log());
    }
}

/// A shell that uses vfork(2) cannot continue while the program that it starts is stopped.
#[test]
fn control_z_between_fork_and_exec_does_not_suspend_it() {
    let stage = Stage::new();
    let hold = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/behaviour/lead/hold.py");
    let mut holder = stage.run(&["python3", hold, &stage.folder.path().display().to_string()].map(str::to_owned));
    wait_until("the program is held back", DEADLINE, || stage.folder.join("held").exists());
    fs::write(stage.folder.join("wanted-1"), "").unwrap();
    let script = r#"{lead} sh -c 'read -r line; "$1/program"; exit $?' sh "$1"; exit $?"#;
    let mut session = stage.on_a_terminal(script, &["line\n", "\x1a"]);
    wait_until(Screen(&stage), DEADLINE, || has_continued(&stage));
    fs::write(stage.folder.join("end"), "").unwrap();
    assert_eq!((session.wait(), holder.wait()), (5, 0), "{}\n{}", stage.screen(), stage.log());
}

#[test]
fn a_pager_in_the_pipeline_keeps_the_terminal() {
    let stage = Stage::new();
    let script = r#"{lead} sh -c 'echo output; >"$1/wanted-1"' sh "$1" | (read -r line; read -r key </dev/tty; echo "$line, $key")"#;
    let mut session = stage.on_a_terminal(script, &["key\n"]);
    assert_eq!(session.wait(), 0, "{}\n{}", stage.screen(), stage.log());
    assert!(stage.screen().contains("output, key"), "{}", stage.screen());
}

/// True if the supervisor has refused to be suspended, or has continued its command.
fn has_continued(stage: &Stage) -> bool {
    let screen = stage.screen();
    ["suspension_refused", "command_continued"].iter().any(|event| screen.contains(event))
}
