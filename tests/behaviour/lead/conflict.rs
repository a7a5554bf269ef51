//! Another candidate leads: exits with --no-wait, or after --wait.

use crate::lead::stage::{ENDLESS, Stage};

crate::on_both!(
    no_wait_exits_at_once_if_another_leads,
    wait_exits_after_its_limit,
    a_candidate_that_leads_in_time_runs_its_command,
    a_signal_ends_the_wait,
    a_silent_coordinator_is_not_a_conflict,
);

const CONFLICT: i32 = 73;

fn led(stage: &Stage) -> crate::support::guardian::Program {
    let leader = stage.lead(ENDLESS, &[], r#"echo >"$1/leads"; while [ ! -e "$1/end" ]; do sleep 0.02; done"#);
    stage.wait_for("leads");
    leader
}

fn no_wait_exits_at_once_if_another_leads(stage: Stage) {
    let _leader = led(&stage);
    let script = r#"echo >"$1/wrong""#;
    assert_eq!(stage.lead(ENDLESS, &["--no-wait"], script).wait(), CONFLICT, "{}", stage.log());
    assert_eq!(stage.lead(ENDLESS, &["--wait", "0"], script).wait(), CONFLICT, "{}", stage.log());
    let other_code = ["--no-wait", "--conflict-exit-code", "0"];
    assert_eq!(stage.lead(ENDLESS, &other_code, script).wait(), 0, "{}", stage.log());
    assert!(!stage.has("wrong"));
    assert_eq!(stage.candidates().len(), 1, "the other candidates have withdrawn");
}

fn wait_exits_after_its_limit(stage: Stage) {
    let _leader = led(&stage);
    assert_eq!(stage.lead(ENDLESS, &["--wait", "300ms"], "true").wait(), CONFLICT, "{}", stage.log());
    assert_eq!(stage.candidates().len(), 1, "the other candidate has withdrawn");
}

fn a_candidate_that_leads_in_time_runs_its_command(stage: Stage) {
    assert_eq!(stage.lead(ENDLESS, &["--no-wait"], "exit 3").wait(), 3, "{}", stage.log());
    let mut leader = led(&stage);
    let mut next = stage.lead(ENDLESS, &["--wait", "10min"], "exit 4");
    crate::support::wait_until("it waits", crate::support::DEADLINE, || stage.log().contains("lease_awaited"));
    std::fs::write(stage.folder.join("end"), "").unwrap();
    assert_eq!((leader.wait(), next.wait()), (0, 4), "{}", stage.log());
}

fn a_signal_ends_the_wait(stage: Stage) {
    let _leader = led(&stage);
    let mut waiting = stage.lead(ENDLESS, &["--wait", "10min"], "true");
    crate::support::wait_until("it waits", crate::support::DEADLINE, || stage.log().contains("lease_awaited"));
    waiting.signal("TERM");
    assert_eq!(waiting.wait(), 143, "{}", stage.log());
}

fn a_silent_coordinator_is_not_a_conflict(mut stage: Stage) {
    stage.silence();
    assert_eq!(stage.lead(2, &["--no-wait"], "true").wait(), 69, "{}", stage.log());
}
