use super::*;
use fencegate_statement::rows::Declared;
use fencegate_statement::{OpaqueReason, ParameterEffect, Statement, StatementKind};
use fencegate_wire::error::ErrorText;
use std::sync::Arc;

fn execute() -> Request {
    Request::execute()
}

fn query() -> Request {
    Request::query(Vec::new())
}

fn queue(requests: impl IntoIterator<Item = Request>) -> Pipeline {
    let mut pipeline = Pipeline::new(Instant::now());
    requests.into_iter().for_each(|request| pipeline.push(request, Audience::Client));
    pipeline
}

#[test]
fn an_error_skips_to_the_sync() {
    let mut pipeline = queue([execute(), execute(), query(), Request::Sync, query()]);
    assert_eq!(pipeline.error().len(), 3);
    assert!(!pipeline.is_skipping());
    assert_eq!(pipeline.len(), 2);
}

#[test]
fn without_a_sync_the_server_keeps_skipping() {
    let mut pipeline = queue([execute(), execute()]);
    assert_eq!(pipeline.error().len(), 2);
    assert!(pipeline.is_skipping() && pipeline.is_empty());
    pipeline.push(query(), Audience::Client);
    assert!(pipeline.is_empty());
    pipeline.push(Request::Sync, Audience::Client);
    assert!(!pipeline.is_skipping());
    assert_eq!(pipeline.len(), 1);
}

#[test]
fn an_error_in_a_simple_query_skips_nothing() {
    let mut pipeline = queue([query(), query()]);
    assert!(pipeline.error().is_empty());
    assert_eq!(pipeline.len(), 2);
}

#[test]
fn sync_during_copy_in_is_not_answered() {
    let mut pipeline = queue([execute(), Request::Sync]);
    pipeline.copy_in();
    assert!(pipeline.is_copying_in());
    assert_eq!(pipeline.len(), 1);
    pipeline.push(Request::Sync, Audience::Client);
    pipeline.push(Request::CopyEnd, Audience::Client);
    pipeline.push(Request::Sync, Audience::Client);
    assert!(!pipeline.is_copying_in());
    assert!(matches!(pipeline.pop().map(|reply| reply.to), Some(Request::Execute { .. })));
    assert!(matches!(pipeline.pop().map(|reply| reply.to), Some(Request::Sync)));
    assert!(pipeline.is_empty());
}

#[test]
fn a_sync_within_a_copy_is_in_doubt_until_the_copy_ends() {
    let mut pipeline = queue([execute(), Request::CopyData, Request::CopyData]);
    pipeline.copy_in();
    assert!(pipeline.is_copying_in() && !pipeline.is_sync_in_doubt());
    pipeline.push(Request::Sync, Audience::Client);
    assert!(pipeline.is_sync_in_doubt());
    pipeline.push(Request::CopyEnd, Audience::Client);
    pipeline.copy_done();
    pipeline.pop();
    assert!(pipeline.is_empty() && !pipeline.is_sync_in_doubt());
    let mut ahead = queue([execute(), Request::CopyData, Request::Sync, Request::CopyEnd, Request::Sync]);
    ahead.copy_in();
    assert!(ahead.is_sync_in_doubt() && !ahead.is_copying_in());
}

#[test]
fn each_copy_of_a_query_ends_separately() {
    let mut pipeline = queue([query(), Request::CopyData, Request::CopyEnd]);
    pipeline.copy_in();
    assert!(!pipeline.is_copying_in());
    pipeline.copy_done();
    pipeline.copy_in();
    assert!(pipeline.is_copying_in());
    pipeline.push(Request::CopyEnd, Audience::Client);
    pipeline.copy_done();
    assert_eq!(pipeline.len(), 1);
}

#[test]
fn a_copy_to_the_client_leaves_the_data_for_the_next_copy() {
    let mut pipeline = queue([query(), Request::CopyData, Request::CopyEnd]);
    pipeline.copy_done();
    pipeline.copy_in();
    assert!(!pipeline.is_copying_in(), "the data and their end were already sent");
    pipeline.copy_done();
    assert_eq!(pipeline.len(), 1);
}

#[test]
fn a_copy_whose_end_was_sent_ahead_expects_no_data() {
    let mut pipeline = queue([execute(), Request::Sync, Request::CopyEnd, Request::Sync]);
    pipeline.copy_in();
    assert!(!pipeline.is_copying_in());
    assert!(matches!(pipeline.pop().map(|reply| reply.to), Some(Request::Execute { .. })));
    assert!(matches!(pipeline.pop().map(|reply| reply.to), Some(Request::Sync)));
    assert!(pipeline.is_empty());
}

#[test]
fn a_stray_copy_end_expects_no_reply() {
    let mut pipeline = queue([Request::CopyEnd]);
    assert!(pipeline.is_empty());
    assert!(queue([execute(), Request::CopyEnd]).needs_flush());
    pipeline.push(query(), Audience::Client);
    pipeline.push(Request::CopyEnd, Audience::Client);
    pipeline.pop();
    assert!(pipeline.is_empty());
}

#[test]
fn a_fenced_write_is_owed_until_it_is_answered() {
    let mut pipeline = queue([execute()]);
    pipeline.note_fenced();
    pipeline.push(execute(), Audience::Client);
    pipeline.push(execute(), Audience::Client);
    for is_owed in [true, false] {
        assert!(pipeline.pop().is_some());
        assert_eq!(pipeline.writes_fenced(), is_owed);
    }
}

#[test]
fn pending_replies_have_a_memory_limit() {
    let heavy = || Statement { kind: StatementKind::Select, opaque: Some(OpaqueReason::Do), ..Statement::default() };
    let mut pipeline = Pipeline::new(Instant::now());
    let mut pushed = 0;
    while !pipeline.is_full() {
        let statements = (0..1_000).map(|_| Arc::new(heavy())).collect();
        pipeline.push(Request::Query { statements, completed: 0, defines: Vec::new() }, Audience::Client);
        pushed += 1;
    }
    assert!(pushed < 100, "{pushed}");
    pipeline.pop();
    assert!(!pipeline.is_full());
    (1..pushed).for_each(|_| drop(pipeline.pop()));
    assert!(pipeline.is_empty() && pipeline.owed.weight == 0);
}

/// A report within a pipeline is provisional: the end of the pipeline runs deferred code, and an error rolls back
/// settings.
#[test]
fn the_path_is_in_doubt_after_code_has_run() {
    let mut pipeline = queue([execute()]);
    pipeline.pop();
    assert!(pipeline.path_in_doubt());
    pipeline.path_reported();
    assert!(!pipeline.path_in_doubt());
    pipeline.push(Request::Sync, Audience::Client);
    pipeline.pop();
    assert!(pipeline.path_in_doubt(), "deferred triggers");
    let mut pipeline = queue([execute(), Request::Sync]);
    assert!(pipeline.path_in_doubt());
    pipeline.error();
    pipeline.pop();
    assert!(pipeline.path_in_doubt(), "an error");
    let begin = Statement { kind: StatementKind::Begin, ..Statement::default() };
    let mut pipeline = queue([Request::query(vec![Arc::new(begin.clone())])]);
    assert!(!pipeline.path_in_doubt());
    pipeline.pop();
    assert!(!pipeline.path_in_doubt());
    let mut pipeline = queue([Request::Parse { defines: None }, Request::Sync]);
    pipeline.pop();
    assert!(!pipeline.path_in_doubt(), "its own Bind does not wait");
    pipeline.pop();
    assert!(pipeline.path_in_doubt(), "input functions of literals");
    for (declared, runs) in [(Vec::new(), false), (vec![Declared::default()], true)] {
        let plans = Arc::new(Statement { declared, ..begin.clone() });
        let pipeline = queue([Request::Bind { defines: None, plans }]);
        assert_eq!(pipeline.path_in_doubt(), runs);
    }
}

/// The second of two requests does not clear the doubt of the first.
#[test]
fn the_path_stays_in_doubt_after_any_number_of_requests() {
    for many in 1..4 {
        let mut pipeline = queue((0..many).map(|_| execute()));
        (0..many).for_each(|_| drop(pipeline.pop()));
        assert!(pipeline.path_in_doubt(), "{many}");
        pipeline.path_reported();
        pipeline.push(Request::Sync, Audience::Client);
        pipeline.pop();
        assert!(pipeline.path_in_doubt(), "{many}: the end of the pipeline");
    }
}

/// The failed request may have committed earlier changes.
#[test]
fn an_error_leaves_the_lexing_in_doubt() {
    for done in 0..3 {
        let mut pipeline = queue((0..=done).map(|_| execute()).chain([Request::Sync]));
        (0..done).for_each(|_| drop(pipeline.pop()));
        pipeline.error();
        assert!(pipeline.lexing_in_doubt(), "{done}");
        pipeline.pop();
        assert!(!pipeline.lexing_in_doubt(), "{done}: the server has reported it");
    }
}

#[test]
fn the_token_may_change_while_a_set_is_pending() {
    let parameter = ParameterEffect::Set { value: "1".into(), local: false };
    let sets = Arc::new(Statement { parameter, ..Statement::default() });
    let mut pipeline = queue([Request::query(vec![sets.clone()]), Request::query(vec![sets]), query()]);
    for may_change in [true, true, false] {
        assert_eq!(pipeline.may_change_parameter(), may_change);
        pipeline.pop();
    }
    assert!(!pipeline.may_change_parameter() && pipeline.is_empty());
}

#[test]
fn a_rejection_is_held_until_it_is_answered() {
    let text = Arc::new(ErrorText::new("LF002", "no token"));
    let mut pipeline = queue([query()]);
    assert!(!pipeline.holds_rejection());
    pipeline.push(query(), Audience::Rejection { shift: 0, text });
    pipeline.push(query(), Audience::Client);
    for is_under_way in [true, true, false] {
        assert_eq!(pipeline.holds_rejection(), is_under_way);
        pipeline.pop();
    }
}
