//! The leader's standard error is not read, and its command shares it.

use crate::lead::stage::{ENDLESS, Stage, wait_until_dead};
use crate::support::full_pipe::FullPipe;
use crate::support::proxy::TO_PIPE;
use crate::support::{DEADLINE, wait_until};
use std::thread;
use std::time::Duration;

/// The command line of a leader whose standard error the shell script redirects.
fn with_errors_at(stage: &Stage, script: &str, leader: Vec<String>) -> Vec<String> {
    let shell = ["bash", "-c", script].map(str::to_owned).into_iter();
    shell.chain([stage.folder.join("fifo").display().to_string()]).chain(leader).collect()
}

#[test]
fn a_closed_log_pipe_does_not_end_the_leader() {
    let stage = Stage::new();
    for reader in ["\"$@\" 2> >(exec true)", "\"$@\" 2>/dev/full", "\"$@\" 2>&-"] {
        let command = stage.command(ENDLESS, &[], "sleep 0.2; exit 7");
        assert_eq!(stage.run(&with_errors_at(&stage, reader, command)).wait(), 7, "{reader}");
        assert!(stage.candidates().is_empty(), "{reader}");
    }
}

/// The pipe is full until the reader starts late.
#[test]
fn a_slow_reader_receives_every_line() {
    let stage = Stage::new();
    let pipe = FullPipe::make(&stage.folder.join("pipe"));
    let command = stage.command(ENDLESS, &["--id", "A", "--log-format", "json"], "echo >\"$1/ran\"");
    let mut lead = stage.run(&[["bash", "-c", TO_PIPE, &pipe.path].map(str::to_owned).to_vec(), command].concat());
    stage.wait_for("ran");
    wait_until("it has resigned", DEADLINE, || stage.candidates().is_empty());
    // Late, but before the leader gives up on the pipe.
    thread::sleep(Duration::from_secs(1));
    let reader = pipe.read();
    assert_eq!(lead.wait(), 0);
    let log = reader.end();
    assert!(log.contains("lease_acquired") && log.contains("lease_lost"), "{log}");
    assert!(!log.contains("log_lines_dropped"), "{log}");
}

#[test]
fn a_hanging_log_reader_does_not_block_the_leader() {
    let stage = Stage::new();
    // Fills the pipe, then ignores SIGTERM.
    let command = r#"timeout 0.3 yes >&2; trap "" TERM; echo $$ >"$1/stubborn"; while :; do sleep 0.02; done"#;
    let command = stage.command(ENDLESS, &["--kill-after", "0.2"], command);
    let script = r#"mkfifo "$0"; exec 3<>"$0"; exec "$@" 2>&3"#;
    let mut lead = stage.run(&with_errors_at(&stage, script, command));
    let command = stage.process("stubborn");
    stage.revoke();
    wait_until_dead(command);
    assert_eq!(lead.wait(), 75);
}
