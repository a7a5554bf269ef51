//! The example `distributed_cron` shows what its README says, and ends with 0 only then.

use crate::support::example::example;
use crate::support::guardian::Folder;
use crate::support::programs::forget_settings;
use std::process::{Command, Stdio};

const README: &str = include_str!("../../examples/distributed_cron/README.md");

#[test]
fn the_naive_cron_is_corrupted_and_the_fenced_one_is_not() {
    let folder = Folder::new("show");
    let mut command = Command::new(example("distributed_cron"));
    forget_settings(&mut command);
    let output = command.env("TMPDIR", folder.path()).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let in_order =
        ["1. Straight", "WRONG", "2. The same", "rejected: LF001", "RIGHT", "3. A shell", "RIGHT", "All claims hold"];
    let mut rest = text.as_str();
    for line in in_order {
        assert!(README.contains(line), "the README shows {line:?}");
        rest = rest.split_once(line).unwrap_or_else(|| panic!("no {line:?} in {rest}\nof\n{text}")).1;
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}
