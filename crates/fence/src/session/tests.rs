use super::*;
use futures_util::FutureExt;

const SEVEN: Epoch = Epoch { generation: 1, token: 7 };
const EIGHT: Epoch = Epoch { generation: 1, token: 8 };

fn session() -> SessionFence {
    SessionFence::new(Err(IdentityError::NoAnswer))
}

fn sizes(session: &SessionFence) -> [usize; 4] {
    let state = session.lock();
    [state.admitted.len(), state.floors.len(), state.written.len(), state.fresh.len()]
}

/// Records an admission and begins a write under it, as a session does.
fn write(session: &SessionFence, resource: &str) {
    if session.is_full() {
        let _ = session.give_up(None);
    }
    assert!(session.record_admission(resource, SEVEN, session.revocations()));
    assert!(session.begin_write([(resource, 7)]));
}

#[test]
fn a_policy_waits_only_until_a_busy_session_changes_its_activity() {
    let session = session();
    assert_eq!(session.rests_while_busy(), None);
    session.set_activity(Activity::Busy);
    let given = session.rests_while_busy();
    assert!(given.is_some());
    session.set_activity(Activity::Busy);
    assert_eq!(session.rests_while_busy(), given, "the activity is unchanged");
    session.set_activity(Activity::Waiting);
    assert_eq!(session.rests_while_busy(), None);
    session.set_activity(Activity::Busy);
    assert!(session.rests_while_busy().is_some_and(|rests| Some(rests) != given), "a later activity");
}

#[test]
fn an_idle_session_keeps_a_limited_number_of_admissions() {
    let session = session();
    for number in 0..10 * FULL {
        write(&session, &format!("shard/{number}"));
        if number % 3 == 0 {
            let _ = session.revoke(&format!("shard/{number}"), Epoch { token: 8, ..SEVEN });
        }
        session.set_activity(Activity::Idle);
        assert!(sizes(&session).iter().all(|size| *size <= FULL));
    }
}

#[test]
fn an_admission_requested_before_a_revocation_is_not_recorded() {
    let session = session();
    let asked = session.revocations();
    let _ = session.revoke("r", Epoch { token: 8, ..SEVEN });
    assert!(!session.record_admission("r", SEVEN, asked));
    assert!(session.record_admission("other", SEVEN, asked));
    // The epoch was pruned, and 7 is the new first token. Only a new revocation applies to it.
    let asked = session.revocations();
    assert!(session.record_admission("r", SEVEN, asked) && session.floors().is_empty());
    let _ = session.revoke("r", Epoch { token: 8, ..SEVEN });
    assert!(!session.record_admission("r", SEVEN, asked));
}

#[test]
fn an_admission_under_the_revoking_epoch_is_recorded() {
    let session = session();
    let asked = session.revocations();
    let _ = session.revoke("r", EIGHT);
    assert!(session.record_admission("r", EIGHT, asked));
    assert_eq!(session.floors(), [("r".to_owned(), EIGHT)]);
}

#[test]
fn a_revocation_removes_only_lower_admissions() {
    let session = session();
    assert!(!session.holds_admissions());
    write(&session, "r");
    assert_eq!(session.revoke("r", SEVEN), Activity::Busy);
    let _ = session.revoke("other", EIGHT);
    assert_eq!(session.admissions(), [("r".to_owned(), SEVEN)]);
    assert!(session.holds_admissions());
    let _ = session.revoke("r", EIGHT);
    assert!(!session.holds_admissions() && session.admissions().is_empty());
}

/// The drain deletes the rows of idle sessions. Other sessions delete theirs when they become idle.
#[test]
fn a_revocation_wakes_the_task_of_a_session_that_is_not_idle() {
    for activity in [Activity::Idle, Activity::Waiting, Activity::Busy] {
        let session = session();
        write(&session, "r");
        session.set_activity(activity);
        assert_eq!(session.revoke("r", EIGHT), activity);
        assert_eq!(session.revoked.notified().now_or_never().is_some(), activity != Activity::Idle, "{activity:?}");
    }
}

#[test]
fn a_write_counts_until_the_transaction_ends() {
    let session = session();
    write(&session, "r");
    session.set_activity(Activity::Waiting);
    assert!(session.may_have_written("r") && !session.may_have_written("other"));
    session.transaction_ended();
    assert!(!session.may_have_written("r") && session.admission("r") == Some(SEVEN));
}

#[test]
fn a_step_is_known_until_it_ends() {
    let session = session();
    assert_eq!(session.step(), None);
    session.begin_step();
    let step = session.step();
    assert!(step.is_some());
    session.end_step();
    assert_eq!(session.step(), None);
    session.begin_step();
    assert!(session.step().is_some() && session.step() != step, "a new step");
}

#[test]
fn admissions_are_released_only_if_nothing_is_uncommitted() {
    let session = session();
    write(&session, "r");
    for activity in [Activity::Busy, Activity::Waiting] {
        session.set_activity(activity);
        assert!(session.give_up(None).is_none());
        assert!(session.admission("r").is_some());
    }
    session.set_activity(Activity::Idle);
    assert!(session.give_up(None).unwrap().admissions.is_empty());
    assert!(!session.begin_write([("r", 7)]), "released admissions permit no writes");
}

#[test]
fn a_statement_that_is_held_back_keeps_its_admissions() {
    let session = session();
    write(&session, "old");
    session.set_activity(Activity::Idle);
    for resource in ["one", "two"] {
        assert!(session.record_admission(resource, SEVEN, session.revocations()));
        let kept = session.give_up(None).unwrap();
        assert!(kept.admissions.contains(&(resource.to_owned(), SEVEN)));
    }
    assert!(session.admission("old").is_none() && session.begin_write([("one", 7), ("two", 7)]));
}

#[test]
fn a_transaction_has_a_limited_number_of_admissions() {
    let session = session();
    for number in 0..MOST_AT_ONCE {
        assert!(!session.has_too_many(1));
        write(&session, &format!("shard/{number}"));
    }
    assert!(session.has_too_many(1));
    session.set_activity(Activity::Idle);
    let _ = session.give_up(None);
    assert!(!session.has_too_many(1));
}

#[test]
fn a_statement_with_too_many_resources_does_not_block_the_next() {
    let session = session();
    for number in 0..MOST_AT_ONCE {
        assert!(session.record_admission(&format!("shard/{number}"), SEVEN, 0));
    }
    assert!(session.has_too_many(1));
    let _ = session.give_up(None);
    assert!(!session.is_full());
}
