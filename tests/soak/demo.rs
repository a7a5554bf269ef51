//! `fencegate demo` shows the promised result, reports it, and leaves nothing behind. `src/demo/check.rs` tests that
//! the demo fails when the fence does not hold.

use crate::support::guardian::Folder;
use crate::support::proxy::fencegate;
use crate::support::{DEADLINE, wait_until};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_zombie_lands_without_the_proxy_and_not_with_it() {
    let folder = Folder::new("t");
    let output = demo(folder.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let in_order = [
        "1. Without fencegate",
        "12:00: run_by = A, token = 41",
        "WRONG",
        "2. With fencegate",
        "ERROR LF001: fencing token 41 for resource \"scheduler\" is stale: the highest is 42",
        "12:01: run_by = B, token = 42",
        "RIGHT",
        "3. With fencegate",
        "FATAL LF001",
        "outcome=unknown",
        "12:02: run_by = B, token = 44",
        "RIGHT",
        "4. With fencegate",
        "FATAL LF001",
        "outcome=rolled_back",
        "12:03: run_by = B, token = 46",
        "RIGHT",
        "5. With fencegate and etcd",
        "ERROR LF001: fencing token 2 for resource \"beats\" is stale: the highest is 3",
        "exit code 75",
        "RIGHT",
        "4 of 4",
        "Takeover",
        "Failover",
    ];
    let mut rest = text.as_str();
    for line in in_order {
        rest = rest.split_once(line).unwrap_or_else(|| panic!("no {line:?} in {rest}\nof\n{text}")).1;
    }
    assert!(!text.contains('\x1b'), "colors without a terminal");
    assert_nothing_left(&folder);
}

#[test]
fn interrupted_or_killed_it_leaves_nothing() {
    for signal in ["INT", "TERM", "KILL"] {
        let folder = Folder::new("t");
        let mut demo = demo(folder.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the demo's server is there", DEADLINE, || {
            made(folder.path()).is_some_and(|made| made.join("data/postmaster.pid").exists())
        });
        let kill = Command::new("sh").arg("-c").arg(format!("kill -s {signal} {}", demo.id())).status().unwrap();
        assert!(kill.success());
        let status = demo.wait().unwrap();
        assert_eq!(status.code(), (signal != "KILL").then_some(1), "{signal}");
        if signal == "KILL" {
            wait_until("its guardian has cleaned up", DEADLINE, || made(folder.path()).is_none());
        }
        assert_nothing_left(&folder);
    }
}

fn demo(folder: &Path) -> Command {
    let mut command = fencegate();
    command.arg("demo").env("TMPDIR", folder).stdin(Stdio::null());
    command
}

/// The folder that the demo has created.
fn made(folder: &Path) -> Option<std::path::PathBuf> {
    fs::read_dir(folder).unwrap().next().map(|entry| entry.unwrap().path())
}

fn assert_nothing_left(folder: &Folder) {
    assert_eq!(made(folder.path()), None);
    let name = folder.path().display().to_string();
    // The demo's guardian removes the folder and then ends. The command of the test's own guardian has no slash.
    let names_it = |process: fs::DirEntry| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(&format!("{name}/"))
    };
    wait_until("no process of it is left", DEADLINE, || !fs::read_dir("/proc").unwrap().flatten().any(names_it));
}
