//! The command's environment, input, output, signals and exit code.

use crate::lead::stage::{ELECTION, ENDLESS, Stage, kill, state, wait_until_dead};
use crate::support::{DEADLINE, wait_until};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn the_token_is_in_its_environment() {
    let stage = Stage::new();
    let script = r#"echo "$FENCE_TOKEN|$FENCE_ELECTION|$FENCE_HOLDER|$PGOPTIONS" >"$1/seen""#;
    let mut command: Vec<String> = ["env", "PGOPTIONS=-c work_mem=1MB"].map(str::to_owned).into();
    command.extend(stage.command(ENDLESS, &["--id", "node-a"], script));
    assert_eq!(stage.run(&command).wait(), 0, "{}", stage.log());
    let seen = stage.wait_for("seen");
    let token: u64 = seen.split('|').next().unwrap().parse().unwrap();
    assert!(token > 0);
    let expected = format!("{token}|{ELECTION}|node-a|-c work_mem=1MB -c lease.fence={token}\n");
    assert_eq!(seen, expected);
}

#[test]
fn the_token_is_the_create_revision_of_the_key() {
    let mut stage = Stage::new();
    let _lead = stage.lead(ENDLESS, &[], r#"echo "$FENCE_TOKEN" >"$1/token"; exec sleep 1000"#);
    let token = stage.wait_for("token");
    let key = stage.etcd().etcdctl(&["get", "--prefix", "-w", "json", ELECTION]).output().unwrap();
    let key = String::from_utf8(key.stdout).unwrap();
    assert!(key.contains(&format!(r#""create_revision":{},"#, token.trim())), "{key}");
}

#[test]
fn its_exit_code_is_returned() {
    let stage = Stage::new();
    let by_real_time_signal = r#"exec python3 -c 'import os, time; os.kill(os.getpid(), 35); time.sleep(60)'"#;
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 75", 75),
        ("kill -s KILL $$", 137),
        ("kill -s TERM $$", 143),
        (by_real_time_signal, 163),
        (r#"exec "$1""#, 126),
    ] {
        assert_eq!(stage.lead(ENDLESS, &[], script).wait(), code, "{script}\n{}", stage.log());
        assert_eq!(stage.candidates(), [""; 0], "the lease is released after {script}");
    }
}

#[test]
fn a_command_that_cannot_run_is_reported_as_in_shells() {
    let stage = Stage::new();
    for (program, code) in [("no-such-program", 127), ("/no/such/program", 127), ("/etc/passwd", 126), ("/tmp", 126)] {
        let mut command = stage.command(ENDLESS, &[], "");
        let dashes = command.iter().position(|argument| argument == "--").unwrap();
        command[dashes + 1] = program.into();
        assert_eq!(stage.run(&command).wait(), code, "{program}");
        assert!(stage.log().contains(program));
    }
    assert!(!stage.log().contains("lease_acquired"), "it never led: {}", stage.log());
}

#[test]
fn its_input_and_output_are_untouched() {
    let stage = Stage::new();
    let command = stage.command(ENDLESS, &[], "cat; echo told >&2");
    let mut lead = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut input = lead.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
    let output = lead.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == bytes, "{} bytes came out", output.stdout.len());
    assert!(String::from_utf8_lossy(&output.stderr).lines().any(|line| line == "told"));
}

#[test]
fn signals_are_passed_on() {
    let stage = Stage::new();
    for (signal, code) in [("TERM", 3), ("INT", 4), ("HUP", 5), ("QUIT", 6)] {
        let script = r#"
            for n in 1 2 3 15; do trap "exit \$(cat \$1/code)" $n; done
            echo >"$1/ready"; while :; do sleep 0.02; done"#;
        std::fs::write(stage.folder.join("code"), format!("{code}\n")).unwrap();
        let mut lead = stage.lead(ENDLESS, &[], script);
        stage.wait_for("ready");
        lead.signal(signal);
        assert_eq!(lead.wait(), code, "{signal}: {}", stage.log());
        assert_eq!(stage.candidates(), [""; 0]);
        std::fs::remove_file(stage.folder.join("ready")).unwrap();
    }
}

#[test]
fn signals_reach_a_command_in_a_group_of_its_own() {
    let stage = Stage::new();
    let script =
        r#"exec timeout 1000 sh -c 'trap "exit 5" TERM; echo >"$1/ready"; while :; do sleep 0.02; done' sh "$1""#;
    let mut lead = stage.lead(ENDLESS, &[], script);
    stage.wait_for("ready");
    lead.signal("TERM");
    assert_eq!(lead.wait(), 5, "{}", stage.log());
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let stage = Stage::new();
    let mut command: Vec<String> = ["sh", "-c", r#"trap "" HUP; exec "$@""#, "sh"].map(str::to_owned).into();
    command.extend(stage.command(ENDLESS, &[], r#"echo $$ >"$1/command"; exec sleep 1000"#));
    let mut lead = stage.run(&command);
    let command = stage.process("command");
    lead.signal("HUP");
    lead.signal("TERM");
    assert_eq!(lead.wait(), 143, "ended by the second signal, not the first");
    wait_until_dead(command);
    assert!(!stage.log().contains("SIGHUP"), "{}", stage.log());
}

#[test]
fn the_terminal_cannot_suspend_the_command_but_sigstop_can() {
    let stage = Stage::new();
    let mut lead = stage.lead(ENDLESS, &[], r#"echo $$ >"$1/command"; while :; do sleep 0.02; done"#);
    let command = stage.process("command");
    kill("TSTP", command);
    wait_until("it is logged", DEADLINE, || stage.log().contains("command_continued"));
    wait_until("the command continues", DEADLINE, || matches!(state(command), Some('R' | 'S')));
    crate::lead::stage::stop(command);
    lead.signal("TSTP");
    wait_until("it is logged", DEADLINE, || stage.log().contains("suspension_refused"));
    assert_eq!(state(command), Some('T'), "SIGSTOP is obeyed");
}
