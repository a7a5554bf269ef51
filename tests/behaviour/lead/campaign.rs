//! Before the command runs: wrong usage, a silent etcd, and canceling.

use crate::lead::stage::{ENDLESS, Stage};
use crate::support::guardian::Port;
use crate::support::programs::run;
use crate::support::proxy::fencegate;
use crate::support::{DEADLINE, wait_until};

#[test]
fn wrong_usage_is_reported_in_one_line() {
    let election = &["--election", "/e"][..];
    let etcd = &["--etcd", "http://127.0.0.1:1"][..];
    let command = &["--", "true"][..];
    for (arguments, text) in [
        (vec![election, etcd], "COMMAND"),
        (vec![etcd, command], "--election"),
        (vec![election, command], "--etcd or --coordinator is required"),
        (vec![&["--election", "/e/"][..], etcd, command], "nested"),
        (vec![election, &["--etcd", "127.0.0.1:1"], command], "--etcd"),
        (vec![election, etcd, &["--ttl", "1"], command], "--ttl"),
        (vec![election, etcd, &["--ttl", "2.5"], command], "--ttl"),
        (vec![election, etcd, &["--kill-after=-1"], command], "--kill-after"),
        (vec![election, etcd, &["--kill-after", "soon"], command], "--kill-after"),
        (vec![election, etcd, &["--id", ""], command], "--id"),
        (vec![election, &["--coordinator", "postgres://h"], command], "--coordinator has no user"),
        (vec![election, etcd, &["--coordinator", "postgres://u@h"], command], "cannot be used with"),
        (vec![election, etcd, &["--no-wait", "--wait", "1s"], command], "cannot be used with"),
        (vec![election, etcd, &["--conflict-exit-code", "256"], command], "--conflict-exit-code"),
    ] {
        let arguments = arguments.concat();
        let output = fencegate().arg("lead").args(&arguments).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.lines().count() == 1 && told.contains(text), "{arguments:?}: {told}");
    }
}

#[test]
fn settings_are_read_from_the_environment() {
    let mut stage = Stage::new();
    let output = fencegate()
        .args(["lead", "--", "sh", "-c", "echo $FENCE_ELECTION $FENCE_HOLDER"])
        .env("FENCEGATE_ETCD", stage.etcd().url())
        .env("FENCEGATE_ELECTION", "/e")
        .env("FENCEGATE_TTL", "9")
        .env("FENCEGATE_ID", "n")
        .env("FENCEGATE_KILL_AFTER", "0.5")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "/e n\n", "{output:?}");
}

/// Runs with the role from the documentation, and with only some of its permissions.
#[test]
fn an_etcd_user_needs_the_documented_permissions() {
    const PAGE: &str = include_str!("../../../docs/lead/etcd.md");
    const OUTER: [&str; 2] = ["/cron/0", "/cron/g"];
    let mut stage = Stage::new();
    for line in PAGE.lines().filter_map(|line| line.strip_prefix("etcdctl ")) {
        run(&mut stage.etcd().etcdctl(&line.split(' ').collect::<Vec<_>>()));
    }
    stage.etcd().enable_users("/elsewhere/");
    let url = stage.etcd().url();
    let lead = || {
        fencegate()
            .args(["lead", "--etcd", &url, "--etcd-user", "node-a", "--etcd-password", "change-me"])
            .args(["--election", "/cron/scheduler/leader", "--", "true"])
            .output()
            .unwrap()
    };
    let output = lead();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    run(stage.etcd().etcdctl(&["role", "revoke-permission", "leader"]).args(OUTER));
    let output = lead();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let needed = "permission denied; its user needs permission to read and write the prefix /cron/scheduler/leader/, \
        and to read the keys from /cron/0 to /cron/g, and to read the keys from /cron/scheduler/0 to /cron/scheduler/g";
    assert!(told.contains(needed), "{told}");
}

#[test]
fn a_campaign_on_a_silent_etcd_fails_after_a_ttl() {
    let mut stage = Stage::new();
    stage.etcd().pause();
    assert_eq!(stage.lead(2, &[], "true").wait(), 69, "{}", stage.log());
    let nobody = Port::claim();
    let mut command = stage.command(2, &[], "true");
    for argument in &mut command {
        if argument.starts_with("http") {
            *argument = format!("http://127.0.0.1:{}", nobody.number());
        }
    }
    assert_eq!(stage.run(&command).wait(), 69, "{}", stage.log());
}

#[test]
fn a_signal_ends_an_unanswered_campaign() {
    let mut stage = Stage::new();
    stage.etcd().pause();
    let mut candidate = stage.lead(ENDLESS, &[], "true");
    wait_until("it handles signals", DEADLINE, || catches(candidate.pid(), 15));
    candidate.signal("TERM");
    assert_eq!(candidate.wait(), 143, "{}", stage.log());
}

#[test]
fn an_ended_command_is_reported_while_the_coordinator_is_silent() {
    let mut stage = Stage::new();
    let mut lead =
        stage.lead(ENDLESS, &[], r#"echo >"$1/leads"; while [ ! -e "$1/end" ]; do sleep 0.02; done; exit 7"#);
    stage.wait_for("leads");
    stage.etcd().pause();
    std::fs::write(stage.folder.join("end"), "").unwrap();
    assert_eq!(lead.wait(), 7, "{}", stage.log());
}

/// True if the process has a handler for the signal, according to /proc.
fn catches(pid: u32, signal: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 << (signal - 1) != 0)
}

#[test]
fn a_signal_ends_the_campaign_and_withdraws_the_candidate() {
    let stage = Stage::new();
    let _leader = stage.lead(ENDLESS, &[], r#"echo >"$1/leads"; exec sleep 1000"#);
    stage.wait_for("leads");
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut candidate = stage.lead(ENDLESS, &[], r#"echo >"$1/wrong""#);
        wait_until("it is a candidate", DEADLINE, || stage.candidates().len() == 2);
        candidate.signal(signal);
        assert_eq!(candidate.wait(), code);
        assert_eq!(stage.candidates().len(), 1);
    }
    assert!(!stage.has("wrong"));
}

#[test]
fn the_next_candidate_leads_as_soon_as_the_command_has_ended() {
    let stage = Stage::new();
    let script = r#"echo >"$1/leads"; while [ ! -e "$1/end" ]; do sleep 0.02; done; exit 3"#;
    let mut first = stage.lead(ENDLESS, &[], script);
    stage.wait_for("leads");
    let mut second = stage.lead(ENDLESS, &[], r#"echo >"$1/next"; exit 4"#);
    wait_until("there are two candidates", DEADLINE, || stage.candidates().len() == 2);
    assert!(!stage.has("next"));
    // The log names the leader that it waits for.
    wait_until("it is logged", DEADLINE, || stage.log().contains("lease_awaited"));
    std::fs::write(stage.folder.join("end"), "").unwrap();
    assert_eq!((first.wait(), second.wait()), (3, 4), "{}", stage.log());
}
