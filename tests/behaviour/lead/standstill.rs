//! `fencegate lead` is suspended while its lease expires. The exit code shows whether the command ended by itself or
//! because it lost leadership, whichever process notices first.

use crate::lead::stage::{ENDLESS, STUBBORN, Stage, guard_of, kill, state, stop, wait_until_dead};
use std::io::Write;

crate::on_both!(
    a_command_killed_by_the_guard_counts_as_deposed,
    a_signal_during_the_suspension_has_no_effect,
    a_command_that_ended_by_itself_keeps_its_exit_code,
    a_command_killed_by_a_third_party_keeps_its_exit_code,
    a_command_that_survives_a_suspension_is_deposed,
    a_command_that_the_guard_does_not_reach_is_deposed,
    a_command_that_was_asked_to_end_and_loses_its_leadership_was_deposed,
);

const LOST: i32 = 75;
/// In seconds.
const TTL: u32 = 3;
/// Ends by itself with this code once the file `end` exists.
const ENDS_WITH_3: &str = r#"echo $$ >"$1/command"; while [ ! -e "$1/end" ]; do sleep 0.02; done; exit 3"#;

impl Stage {
    fn end_command(&self, command: u32) {
        std::fs::write(self.folder.join("end"), "").unwrap();
        wait_until_dead(command);
    }

    /// Returns when the suspended leader's lease has expired and another candidate has led.
    fn wait_for_a_successor(&self) {
        let mut successor = self.lead(ENDLESS, &[], r#"echo >"$1/successor""#);
        self.wait_for("successor");
        assert_eq!(successor.wait(), 0);
    }
}

/// The test sends the guard a deadline that has passed, so the guard certainly acts before its leader.
fn a_command_killed_by_the_guard_counts_as_deposed(stage: Stage) {
    let mut lead = stage.lead(ENDLESS, &[], STUBBORN);
    let command = stage.process("stubborn");
    let orders = format!("/proc/{}/fd/0", guard_of(lead.pid()));
    let order = [1, u64::from(command)].map(u64::to_ne_bytes).concat();
    std::fs::OpenOptions::new().write(true).open(orders).unwrap().write_all(&order).unwrap();
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    // The guard reports before it kills. The leader must not exit in between.
    assert_eq!(state(command), None);
    assert!(stage.log().contains("command_killed_by_guard"), "{}", stage.log());
    assert_eq!(stage.candidates(), [""; 0]);
}

fn a_signal_during_the_suspension_has_no_effect(stage: Stage) {
    let mut lead = stage.lead(TTL, &[], STUBBORN);
    let command = stage.process("stubborn");
    stop(lead.pid());
    lead.signal("TERM");
    wait_until_dead(command);
    lead.signal("CONT");
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
}

fn a_command_that_ended_by_itself_keeps_its_exit_code(stage: Stage) {
    let mut lead = stage.lead(TTL, &[], ENDS_WITH_3);
    let (command, guard) = (stage.process("command"), guard_of(lead.pid()));
    [guard, lead.pid()].into_iter().for_each(stop);
    stage.end_command(command);
    kill("CONT", guard);
    wait_until_dead(guard);
    lead.signal("CONT");
    assert_eq!(lead.wait(), 3, "{}", stage.log());
}

fn a_command_killed_by_a_third_party_keeps_its_exit_code(stage: Stage) {
    let mut lead = stage.lead(TTL, &[], STUBBORN);
    let (command, guard) = (stage.process("stubborn"), guard_of(lead.pid()));
    [guard, lead.pid()].into_iter().for_each(stop);
    kill("KILL", command);
    wait_until_dead(command);
    kill("CONT", guard);
    wait_until_dead(guard);
    lead.signal("CONT");
    assert_eq!(lead.wait(), 137, "{}", stage.log());
}

/// As if the whole machine was suspended and the leader resumed first.
#[test]
fn a_command_that_ended_before_the_suspension_keeps_its_exit_code() {
    for (end, code) in [("exit", 3), ("KILL", 137)] {
        let stage = Stage::new();
        let mut lead = stage.lead(TTL, &[], ENDS_WITH_3);
        let command = stage.process("command");
        [guard_of(lead.pid()), lead.pid()].into_iter().for_each(stop);
        if end == "exit" {
            stage.end_command(command);
        } else {
            kill(end, command);
            wait_until_dead(command);
        }
        stage.wait_for_a_successor();
        lead.signal("CONT");
        assert_eq!(lead.wait(), code, "{}", stage.log());
    }
}

fn a_command_that_survives_a_suspension_is_deposed(stage: Stage) {
    let mut lead = stage.lead(TTL, &[], STUBBORN);
    let (command, guard) = (stage.process("stubborn"), guard_of(lead.pid()));
    [command, guard, lead.pid()].into_iter().for_each(stop);
    stage.wait_for_a_successor();
    lead.signal("CONT");
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert_eq!([state(command), state(guard)], [None, None]);
}

/// timeout(1) creates its own process group, which the guard does not signal.
fn a_command_that_the_guard_does_not_reach_is_deposed(stage: Stage) {
    let mut command = stage.command(TTL, &[], STUBBORN);
    let dashes = command.iter().position(|argument| argument == "--").unwrap();
    command.splice(dashes + 1..=dashes, ["timeout", "1000"].map(str::to_owned));
    let mut lead = stage.run(&command);
    let (command, guard) = (stage.process("stubborn"), guard_of(lead.pid()));
    stop(lead.pid());
    wait_until_dead(guard);
    assert!(state(command).is_some());
    lead.signal("CONT");
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert_eq!(state(command), None);
}

fn a_command_that_was_asked_to_end_and_loses_its_leadership_was_deposed(stage: Stage) {
    let mut lead = stage.lead(ENDLESS, &["--kill-after", "0.2"], STUBBORN);
    let command = stage.process("stubborn");
    lead.signal("TERM");
    stage.wait_for("term");
    stage.revoke();
    assert_eq!(lead.wait(), LOST, "{}", stage.log());
    assert_eq!(state(command), None);
}
