//! `fencegate lead` or its guard is killed or suspended: the command does not outlive the lease.

use crate::lead::stage::{
    ELECTION, ENDLESS, STUBBORN, STUBBORN_CHILD, Stage, guard_of, kill, state, stop, wait_until_dead,
};
use crate::support::guardian::Program;
use crate::support::programs::run;
use crate::support::{DEADLINE, Stalls, wait_until};
use std::time::{Duration, Instant};

crate::on_both!(
    a_killed_leader_takes_command_and_grandchildren_with_it,
    a_killed_leader_is_succeeded_at_once,
    a_killed_leader_whose_command_does_not_end_keeps_its_lease,
    a_command_that_has_left_the_group_dies_with_its_leader,
    a_paused_leader_does_not_keep_the_command_alive_past_the_deadline,
    a_renewed_lease_does_not_end_the_command,
    signals_to_the_group_do_not_end_the_guard,
    without_its_guard_a_command_is_ended,
    a_group_that_kills_itself_has_ended,
    orphans_are_reaped_while_the_command_runs,
);

fn a_killed_leader_takes_command_and_grandchildren_with_it(stage: Stage) {
    let mut lead = stage.lead(ENDLESS, &[], &format!("{STUBBORN_CHILD} while :; do sleep 0.02; done"));
    let (command, child) = (stage.process("command"), stage.process("stubborn"));
    let guard = guard_of(lead.pid());
    lead.signal("KILL");
    assert_eq!(lead.wait(), 137);
    [command, child, guard].into_iter().for_each(wait_until_dead);
}

/// TTL in seconds. A guard that cannot check its group within a second keeps the lease, which then has to expire.
const LONG: u32 = 20;

/// When a leader was killed, and how long the machine has stalled since.
struct Killed(Instant, Stalls);

impl Killed {
    fn now(lead: &mut Program) -> Self {
        let killed = Killed(Instant::now(), Stalls::watch());
        lead.signal("KILL");
        killed
    }

    /// Asserts that the next leader did not have to wait until the lease expired.
    fn was_followed_at_once(self) {
        let (took, stalled) = (self.0.elapsed(), self.1.total());
        // Up to a third of the TTL may have passed since the last renewal.
        let at_once = took < Duration::from_secs((LONG / 2).into()) || stalled >= Duration::from_millis(500);
        assert!(at_once, "followed after {took:?}, stalled for {stalled:?}");
    }
}

fn a_killed_leader_is_succeeded_at_once(stage: Stage) {
    let mut lead = stage.lead(LONG, &[], &format!("{STUBBORN_CHILD} while :; do sleep 0.02; done"));
    let child = stage.process("stubborn");
    // Zombie processes have state Z.
    let overlaps = r#"grep -qs "^State:.[^Z]" "/proc/$(cat "$1/stubborn")/status" && echo overlap || echo alone"#;
    let mut next = stage.lead(ENDLESS, &[], &format!(r#"({overlaps}) >"$1/next""#));
    wait_until("the next one waits", DEADLINE, || stage.log().contains("lease_awaited"));
    let guard = guard_of(lead.pid());
    let killed = Killed::now(&mut lead);
    assert_eq!(stage.wait_for("next"), "alone\n", "{}", stage.log());
    killed.was_followed_at_once();
    assert_eq!((lead.wait(), next.wait()), (137, 0));
    [child, guard].into_iter().for_each(wait_until_dead);
}

/// The guard keeps the lease while a process of the group can still act.
fn a_killed_leader_whose_command_does_not_end_keeps_its_lease(stage: Stage) {
    let linger = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/behaviour/lead/linger.py");
    let mut lead = stage.lead(ENDLESS, &[], &format!(r#"python3 {linger} "$1" & wait"#));
    let lingering = stage.process("lingering");
    let guard = guard_of(lead.pid());
    let before = stage.candidates();
    lead.signal("KILL");
    assert_eq!(lead.wait(), 137);
    stage.wait_for("dying");
    wait_until_dead(guard);
    assert_eq!(state(lingering), Some('t'), "the process still exists");
    assert_eq!((before.len(), stage.candidates()), (1, before));
    std::fs::write(stage.folder.join("end"), "").unwrap();
    wait_until_dead(lingering);
}

/// The guard also has the credentials, but its command line does not show them.
#[test]
fn the_guard_of_a_killed_leader_releases_the_lease_with_its_credentials() {
    let mut stage = Stage::new();
    let role = ["role", "grant-permission", "leader", "readwrite", "--prefix=true", "/"];
    for arguments in [&["role", "add", "leader"][..], &role, &["user", "add", "node:change-me"]] {
        run(&mut stage.etcd().etcdctl(arguments));
    }
    run(&mut stage.etcd().etcdctl(&["user", "grant-role", "node", "leader"]));
    stage.etcd().enable_users("/elsewhere/");
    let user = ["--etcd-user", "node", "--etcd-password", "change-me"];
    let mut lead = stage.lead(LONG, &user, STUBBORN);
    stage.process("stubborn");
    let guard = std::fs::read_to_string(format!("/proc/{}/cmdline", guard_of(lead.pid()))).unwrap();
    assert!(guard.contains(ELECTION) && !guard.contains("change-me"), "{guard}");
    let mut next = stage.lead(ENDLESS, &user, "exit 3");
    let killed = Killed::now(&mut lead);
    assert_eq!((lead.wait(), next.wait()), (137, 3), "{}", stage.log());
    killed.was_followed_at_once();
}

fn a_command_that_has_left_the_group_dies_with_its_leader(stage: Stage) {
    let mut lead = stage.lead(ENDLESS, &[], r#"exec setsid --fork --wait true; exit 1"#);
    assert_eq!(lead.wait(), 0);
    let script = r#"exec python3 -c 'import os, sys, time
os.setpgid(0, 0)
print(os.getpid(), file=open(sys.argv[1] + "/command", "w"), flush=True)
time.sleep(1000)' "$1""#;
    let mut lead = stage.lead(ENDLESS, &[], script);
    let command = stage.process("command");
    lead.signal("KILL");
    wait_until_dead(command);
}

fn a_paused_leader_does_not_keep_the_command_alive_past_the_deadline(stage: Stage) {
    let mut lead = stage.lead(3, &[], &format!("{STUBBORN_CHILD} {STUBBORN}"));
    let (command, child) = (stage.process("command"), stage.process("stubborn"));
    // By now the lease has been renewed several times. Otherwise the command would be dead.
    stop(lead.pid());
    [command, child].into_iter().for_each(wait_until_dead);
    assert_eq!(state(lead.pid()), Some('T'));
    lead.signal("CONT");
    assert_eq!(lead.wait(), 75, "{}", stage.log());
}

fn a_renewed_lease_does_not_end_the_command(stage: Stage) {
    let script = r#"trap 'echo >"$1/term"' TERM; i=0
        while [ $i -lt 80 ]; do sleep 0.1; i=$((i + 1)); done; exit 3"#;
    assert_eq!(stage.lead(6, &[], script).wait(), 3, "{}", stage.log());
    assert!(!stage.has("term"));
}

fn signals_to_the_group_do_not_end_the_guard(stage: Stage) {
    let script = r#"trap "" TERM INT HUP QUIT; echo $$ >"$1/command"; kill 0; kill -s INT 0; kill -s HUP 0; kill -s TSTP 0
        echo >"$1/sent"; while :; do sleep 0.02; done"#;
    let mut lead = stage.lead(ENDLESS, &[], script);
    let command = stage.process("command");
    stage.wait_for("sent");
    let guard = guard_of(lead.pid());
    assert!(state(guard).is_some());
    lead.signal("KILL");
    [command, guard].into_iter().for_each(wait_until_dead);
}

fn without_its_guard_a_command_is_ended(stage: Stage) {
    let mut lead = stage.lead(ENDLESS, &["--kill-after", "2"], STUBBORN);
    let command = stage.process("stubborn");
    kill("KILL", guard_of(lead.pid()));
    stage.wait_for("term");
    assert_eq!(lead.wait(), 137, "{}", stage.log());
    assert_eq!(state(command), None);
}

fn a_group_that_kills_itself_has_ended(stage: Stage) {
    assert_eq!(stage.lead(ENDLESS, &[], "kill -s KILL 0").wait(), 137, "{}", stage.log());
    assert_eq!(stage.candidates(), [""; 0]);
}

fn orphans_are_reaped_while_the_command_runs(stage: Stage) {
    let script = r#"(sh -c 'echo $$ >"$1/orphan"' sh "$1" &); echo $$ >"$1/command"; exec sleep 1000"#;
    let _lead = stage.lead(ENDLESS, &[], script);
    let orphan = stage.process("orphan");
    let folder = std::path::PathBuf::from(format!("/proc/{orphan}"));
    wait_until("the orphan is reaped", DEADLINE, || !folder.exists());
}
