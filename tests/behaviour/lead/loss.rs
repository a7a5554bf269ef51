//! Leadership is lost while the command runs: signals, their times, and the exit code.

use crate::lead::stage::{ELECTION, ENDLESS, STUBBORN, STUBBORN_CHILD, Stage, kill, state, stop, wait_until_dead};
use crate::metrics::page::{get, samples, sum};
use crate::metrics::world::http_address;
use crate::support::Stalls;
use std::time::{Duration, SystemTime};

crate::on_both!(
    a_command_that_ends_after_the_signal_counts_as_lost,
    a_stopped_command_is_signaled,
    a_stopped_command_that_ignores_it_is_killed,
    the_whole_group_and_its_former_members_die,
    a_command_in_its_own_group_is_signaled_and_killed,
    earlier_children_of_the_shell_are_spared,
    the_lease_is_released_only_when_the_whole_group_is_gone,
    processes_left_by_an_ended_command_may_shut_down,
    silence_signals_with_a_third_left_and_kills_at_the_deadline,
    a_revoked_lease_signals_at_once_and_kills_after_the_grace,
    a_loss_is_counted_by_its_reason,
);

const LOST: i32 = 75;
/// In seconds. A third of it is 1 s.
const TTL: u32 = 3;
/// Tolerance for timers on a machine that is not stalled.
const BLUR: Duration = Duration::from_millis(100);

fn silence_signals_with_a_third_left_and_kills_at_the_deadline(mut stage: Stage) {
    let stalls = Stalls::watch();
    let mut lead = stage.lead(TTL, &["--kill-after", "600"], STUBBORN);
    let command = stage.process("stubborn");
    let silent = SystemTime::now();
    stage.silence();
    stage.wait_for("term");
    wait_until_dead(command);
    let dead = SystemTime::now();
    let told = stage.written_at("term");
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    let (second, blur) = (Duration::from_secs(1), BLUR + stalls.total());
    // The last renewal was sent up to a third of the TTL before.
    assert!(told.duration_since(silent).unwrap() >= second.saturating_sub(blur), "not signaled too early");
    assert!(dead.duration_since(told).unwrap() >= second.saturating_sub(blur), "not killed too soon after the signal");
    assert!(
        dead.duration_since(silent).unwrap() >= (2 * second).saturating_sub(blur),
        "not killed before the deadline"
    );
}

fn a_revoked_lease_signals_at_once_and_kills_after_the_grace(stage: Stage) {
    let stalls = Stalls::watch();
    let mut lead = stage.lead(ENDLESS, &["--kill-after", "2"], STUBBORN);
    let command = stage.process("stubborn");
    stage.revoke();
    stage.wait_for("term");
    let told = stage.written_at("term");
    wait_until_dead(command);
    let grace = SystemTime::now().duration_since(told).unwrap();
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert!(grace >= Duration::from_secs(2).saturating_sub(BLUR + stalls.total()), "{grace:?}");
}

fn a_loss_is_counted_by_its_reason(stage: Stage) {
    let mut lead = stage.lead(ENDLESS, &["--kill-after", "600", "--http", "127.0.0.1:0"], STUBBORN);
    let command = stage.process("stubborn");
    let address = http_address(|| stage.log());
    let lost = |reason| {
        let labels = [("election", ELECTION), ("reason", reason)];
        sum(&samples(&get(address, "/metrics").body), "fencegate_lease_losses_total", &labels)
    };
    assert_eq!(lost("revoked"), 0.0);
    stage.revoke();
    // The command is signaled before the loss is counted.
    crate::support::wait_until("it is counted", crate::support::DEADLINE, || lost("revoked") > 0.0);
    assert_eq!((lost("revoked"), lost("resigned")), (1.0, 0.0));
    kill("KILL", command);
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
}

fn a_command_that_ends_after_the_signal_counts_as_lost(stage: Stage) {
    let script = r#"trap 'echo >"$1/cleaned"; exit 0' TERM; echo >"$1/leads"; while :; do sleep 0.02; done"#;
    let mut lead = stage.lead(ENDLESS, &["--kill-after", "600"], script);
    stage.wait_for("leads");
    stage.revoke();
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert!(stage.has("cleaned"));
}

fn a_stopped_command_is_signaled(stage: Stage) {
    let script = r#"trap 'echo >"$1/told"; exit 0' TERM; echo $$ >"$1/command"; while :; do sleep 0.02; done"#;
    let mut lead = stage.lead(ENDLESS, &["--kill-after", "600"], script);
    let command = stage.process("command");
    stop(command);
    stage.revoke();
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert!(stage.has("told"));
}

fn a_stopped_command_that_ignores_it_is_killed(stage: Stage) {
    let mut lead =
        stage.lead(ENDLESS, &["--kill-after", "0"], r#"trap "" TERM; echo $$ >"$1/command"; kill -s STOP $$"#);
    let command = stage.process("command");
    crate::support::wait_until("it has stopped", crate::support::DEADLINE, || state(command) == Some('T'));
    stage.revoke();
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert_eq!(state(command), None);
}

fn the_whole_group_and_its_former_members_die(stage: Stage) {
    // timeout(1) creates its own process group.
    let script = format!(
        r#"{STUBBORN_CHILD}
        timeout 1000 sh -c 'trap "" TERM; echo $$ >"$1/elsewhere"; while :; do sleep 0.02; done' sh "$1" & wait"#
    );
    let mut lead = stage.lead(ENDLESS, &["--kill-after", "0.2"], &script);
    let (child, elsewhere) = (stage.process("stubborn"), stage.process("elsewhere"));
    stage.revoke();
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert_eq!([state(child), state(elsewhere)], [None, None]);
}

fn a_command_in_its_own_group_is_signaled_and_killed(stage: Stage) {
    let mut command = stage.command(ENDLESS, &["--kill-after", "2"], STUBBORN);
    let dashes = command.iter().position(|argument| argument == "--").unwrap();
    command.splice(dashes + 1..=dashes, ["timeout", "1000"].map(str::to_owned));
    let mut lead = stage.run(&command);
    let command = stage.process("stubborn");
    stage.revoke();
    stage.wait_for("term");
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert_eq!(state(command), None);
}

fn earlier_children_of_the_shell_are_spared(stage: Stage) {
    let before = r#"folder=$1; shift; sleep 60 & echo $! >"$folder/stranger"; exec "$@""#;
    let folder = stage.folder.path().display().to_string();
    let mut command: Vec<String> = ["sh", "-c", before, "sh", &folder].map(str::to_owned).into();
    command.extend(stage.command(ENDLESS, &["--kill-after", "0.2"], STUBBORN));
    let mut lead = stage.run(&command);
    let (command, stranger) = (stage.process("stubborn"), stage.process("stranger"));
    stage.revoke();
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert_eq!(state(command), None);
    assert!(state(stranger).is_some());
    crate::lead::stage::kill("KILL", stranger);
}

fn the_lease_is_released_only_when_the_whole_group_is_gone(stage: Stage) {
    let mut first = stage.lead(ENDLESS, &["--kill-after", "0.5"], &format!("{STUBBORN_CHILD} exit 3"));
    let child = stage.process("stubborn");
    let overlaps = r#"kill -s 0 "$(cat "$1/stubborn")" 2>/dev/null && echo overlap || echo alone"#;
    let mut second = stage.lead(ENDLESS, &[], &format!(r#"({overlaps}) >"$1/successor""#));
    assert_eq!(second.wait(), 0);
    assert_eq!(stage.wait_for("successor"), "alone\n", "{}", stage.log());
    assert_eq!((first.wait(), state(child)), (3, None));
}

fn processes_left_by_an_ended_command_may_shut_down(stage: Stage) {
    let script = r#"
        sh -c 'trap "echo >\"\$1/cleaned\"; exit 0" TERM; echo >"$1/ready"; while :; do sleep 0.02; done' sh "$1" &
        while [ ! -e "$1/ready" ]; do sleep 0.02; done; exit 3"#;
    let mut lead = stage.lead(ENDLESS, &["--kill-after", "600"], script);
    assert_eq!(lead.wait(), 3, "{}", stage.log());
    assert!(stage.has("cleaned"), "{}", stage.log());
}
