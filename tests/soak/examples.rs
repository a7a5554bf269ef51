//! Each program of `examples/` shows the result that its README describes, and only then exits with code 0.

use crate::support::example::example;
use crate::support::guardian::Folder;
use crate::support::programs::{build_go, forget_settings};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the show. Its output and the README must contain these texts in this order.
fn play(name: &str, arguments: &[&str], in_order: &[&str]) {
    let folder = Folder::new("show");
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let readme = fs::read_to_string(here.join("README.md")).unwrap();
    let mut command = Command::new(example("stage"));
    forget_settings(&mut command);
    command.args(["policy.yaml", "schema.sql"].map(|file| here.join(file)));
    let pictures = Folder::new("timeline");
    let timeline = pictures.join("timeline.svg");
    command.arg("--timeline").arg(&timeline);
    command.arg("--").arg(here.join("show.py")).args(arguments);
    let output = command.env("TMPDIR", folder.path()).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let (mut shown, mut told) = (text.as_str(), readme.as_str());
    for line in in_order {
        shown = shown.split_once(line).unwrap_or_else(|| panic!("no {line:?} in {shown}\nof\n{text}")).1;
        told = told.split_once(line).unwrap_or_else(|| panic!("the README shows no {line:?} in {told}")).1;
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");
    let drawn = fs::read_to_string(timeline).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("LF001"), "{drawn}");
    assert!(readme.contains("](timeline.svg)") && here.join("timeline.svg").exists());
}

/// Includes the node in Go, which is not in the README's output.
#[test]
fn distributed_cron() {
    example("distributed_cron");
    let folder = Folder::new("go");
    let go = folder.join("node");
    build_go(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/distributed_cron/node.go"), &go);
    let scenes = ["1. Straight", "WRONG", "2. The same", "rejected: LF001", "RIGHT", "3. A guard in each row"];
    let more = ["INSERT 0 0", "INSERT 0 1", "WRONG", "4. The same", "LF001", "LF001", "RIGHT", "5. Jobs in 4 shards"];
    let last = ["8 candidates under 2 leases", "wakes up", "RIGHT", "6. Nodes in Rust", "RIGHT", "All claims hold"];
    play("distributed_cron", &[go.to_str().unwrap()], &[&scenes[..], &more, &last].concat());
}

#[test]
fn dispatch_leader() {
    let scenes = ["1. The leader crashes", "A crashes", "Gaps are harmless", "RIGHT", "2. Straight", "WRONG"];
    let more = [
        "3. The same",
        "LF001",
        "RIGHT",
        "4. etcd is unavailable",
        "was not renewed",
        "LF006",
        "RIGHT",
        "All claims hold",
    ];
    play("dispatch_leader", &[], &[&scenes[..], &more].concat());
}

#[test]
fn blue_green_scheduler() {
    let scenes =
        ["1. Blue and green", "skips: another", "RIGHT", "2. A job hangs", "ends the job", "releases the lock"];
    let more = ["3. Who releases", "WRONG", "RIGHT", "4. Straight", "WRONG", "5. The same", "LF001", "RIGHT"];
    let last = ["6. Redis is down", "skips: no answer", "counts from 1", "LF001", "FENCE RESET", "All claims hold"];
    play("blue_green_scheduler", &[], &[&scenes[..], &more, &last].concat());
}

#[test]
fn job_queue() {
    example("job_queue");
    let naive = ["1. Straight", "WRONG", "2. Straight", "WRONG"];
    let fenced = ["3. Through fencegate", "LF001", "RIGHT", "4. Through fencegate", "LF001", "RIGHT"];
    let crashes = ["5. A crashes", "B's", "6. A crashes", "A's", "7. The database crashes", "LF001", "RIGHT"];
    let service = ["8. Two replicas", "RIGHT", "All claims hold"];
    play("job_queue", &[], &[&naive[..], &fenced, &crashes, &service].concat());
}

/// The service has all events and metrics of the dashboard.
#[test]
fn board_of_job_queue() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/job_queue");
    let [board, queue, tend] =
        ["grafana.json", "queue.rs", "tend.rs"].map(|file| fs::read_to_string(here.join(file)).unwrap());
    let word =
        |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default().to_owned();
    let events = board.split("event=\\\"").skip(1).map(|rest| format!("\"{}\"", word(rest)));
    let metrics = board.split("job_queue_").skip(1).map(|rest| format!("job_queue_{}", word(rest)));
    let asked: Vec<String> = events.chain(metrics).collect();
    assert!(asked.len() > 15, "{asked:?}");
    let missing: Vec<_> = asked.iter().filter(|name| !queue.contains(*name) && !tend.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
