use super::*;
use crate::statement::rows::Declared;
use crate::statement::{OpaqueReason, ParameterEffect, Statement, StatementKind};
use crate::wire::error::ErrorText;
use std::sync::Arc;

fn execute() -> Request {
    Request::execute()
}

fn query() -> Request {
    Request::query(Vec::new())
}

fn queue(requests: impl IntoIterator<Item = Request>) -> Replies {
    let mut replies = Replies::default();
    requests.into_iter().for_each(|request| replies.push(request, Audience::Client));
    replies
}

#[test]
fn an_error_skips_to_the_sync() {
    let mut replies = queue([execute(), execute(), query(), Request::Sync, query()]);
    assert_eq!(replies.error().len(), 3);
    assert!(!replies.is_skipping());
    assert_eq!(replies.len(), 2);
}

#[test]
fn without_a_sync_the_server_goes_on_skipping() {
    let mut replies = queue([execute(), execute()]);
    assert_eq!(replies.error().len(), 2);
    assert!(replies.is_skipping() && replies.is_empty());
    replies.push(query(), Audience::Client);
    assert!(replies.is_empty());
    replies.push(Request::Sync, Audience::Client);
    assert!(!replies.is_skipping());
    assert_eq!(replies.len(), 1);
}

#[test]
fn an_error_in_a_simple_query_skips_nothing() {
    let mut replies = queue([query(), query()]);
    assert!(replies.error().is_empty());
    assert_eq!(replies.len(), 2);
}

#[test]
fn sync_during_copy_in_is_not_answered() {
    let mut replies = queue([execute(), Request::Sync]);
    replies.copy_in();
    assert!(replies.is_copying_in());
    assert_eq!(replies.len(), 1);
    replies.push(Request::Sync, Audience::Client);
    replies.push(Request::CopyEnd, Audience::Client);
    replies.push(Request::Sync, Audience::Client);
    assert!(!replies.is_copying_in());
    assert!(matches!(replies.pop().map(|reply| reply.to), Some(Request::Execute { .. })));
    assert!(matches!(replies.pop().map(|reply| reply.to), Some(Request::Sync)));
    assert!(replies.is_empty());
}

#[test]
fn a_sync_within_a_copy_is_in_doubt_until_that_has_ended() {
    let mut replies = queue([execute(), Request::CopyData, Request::CopyData]);
    replies.copy_in();
    assert!(replies.is_copying_in() && !replies.is_sync_in_doubt());
    replies.push(Request::Sync, Audience::Client);
    assert!(replies.is_sync_in_doubt());
    replies.push(Request::CopyEnd, Audience::Client);
    replies.copy_done();
    replies.pop();
    assert!(replies.is_empty() && !replies.is_sync_in_doubt());
    let mut ahead = queue([execute(), Request::CopyData, Request::Sync, Request::CopyEnd, Request::Sync]);
    ahead.copy_in();
    assert!(ahead.is_sync_in_doubt() && !ahead.is_copying_in());
}

#[test]
fn each_copy_of_a_query_has_an_end_of_its_own() {
    let mut replies = queue([query(), Request::CopyData, Request::CopyEnd]);
    replies.copy_in();
    assert!(!replies.is_copying_in());
    replies.copy_done();
    replies.copy_in();
    assert!(replies.is_copying_in());
    replies.push(Request::CopyEnd, Audience::Client);
    replies.copy_done();
    assert_eq!(replies.len(), 1);
}

#[test]
fn a_copy_to_the_client_leaves_what_is_for_the_next_one() {
    let mut replies = queue([query(), Request::CopyData, Request::CopyEnd]);
    replies.copy_done();
    replies.copy_in();
    assert!(!replies.is_copying_in(), "its data and their end are sent already");
    replies.copy_done();
    assert_eq!(replies.len(), 1);
}

#[test]
fn a_copy_that_was_sent_ahead_ends_by_itself() {
    let mut replies = queue([execute(), Request::Sync, Request::CopyEnd, Request::Sync]);
    replies.copy_in();
    assert!(!replies.is_copying_in());
    assert!(matches!(replies.pop().map(|reply| reply.to), Some(Request::Execute { .. })));
    assert!(matches!(replies.pop().map(|reply| reply.to), Some(Request::Sync)));
    assert!(replies.is_empty());
}

#[test]
fn stray_ends_of_copies_owe_nothing() {
    let mut replies = queue([Request::CopyEnd]);
    assert!(replies.is_empty());
    assert!(queue([execute(), Request::CopyEnd]).needs_flush());
    replies.push(query(), Audience::Client);
    replies.push(Request::CopyEnd, Audience::Client);
    replies.pop();
    assert!(replies.is_empty());
}

#[test]
fn what_was_admitted_may_write_whatever_it_shows() {
    let mut replies = queue([execute()]);
    replies.admitted();
    replies.push(execute(), Audience::Client);
    replies.push(execute(), Audience::Client);
    for is_owed in [true, false] {
        assert!(replies.pop().is_some());
        assert_eq!(replies.may_write(), is_owed);
    }
}

#[test]
fn what_is_owed_has_a_bound_in_bytes() {
    let heavy = || Statement { kind: StatementKind::Select, opaque: Some(OpaqueReason::Do), ..Statement::default() };
    let mut replies = Replies::default();
    let mut pushed = 0;
    while !replies.is_full() {
        let statements = (0..1_000).map(|_| Arc::new(heavy())).collect();
        replies.push(Request::Query { statements, completed: 0, defines: Vec::new() }, Audience::Client);
        pushed += 1;
    }
    assert!(pushed < 100, "{pushed}");
    replies.pop();
    assert!(!replies.is_full());
    (1..pushed).for_each(|_| drop(replies.pop()));
    assert!(replies.is_empty() && replies.weight == 0);
}

/// Whatever was said of the path in a pipeline: its end runs what was put off, and an error takes back what was set.
#[test]
fn the_path_is_in_doubt_behind_what_ran() {
    let mut replies = queue([execute()]);
    replies.pop();
    assert!(replies.path_in_doubt());
    replies.path_said();
    assert!(!replies.path_in_doubt());
    replies.push(Request::Sync, Audience::Client);
    replies.pop();
    assert!(replies.path_in_doubt(), "deferred triggers");
    let mut replies = queue([execute(), Request::Sync]);
    assert!(replies.path_in_doubt());
    replies.error();
    replies.pop();
    assert!(replies.path_in_doubt(), "an error");
    let begin = Statement { kind: StatementKind::Begin, ..Statement::default() };
    let mut replies = queue([Request::query(vec![Arc::new(begin.clone())])]);
    assert!(!replies.path_in_doubt());
    replies.pop();
    assert!(!replies.path_in_doubt());
    let mut replies = queue([Request::Parse { defines: None }, Request::Sync]);
    replies.pop();
    assert!(!replies.path_in_doubt(), "its own Bind need not wait");
    replies.pop();
    assert!(replies.path_in_doubt(), "a literal");
    for (declared, runs) in [(Vec::new(), false), (vec![Declared::default()], true)] {
        let plans = Arc::new(Statement { declared, ..begin.clone() });
        let replies = queue([Request::Bind { defines: None, plans }]);
        assert_eq!(replies.path_in_doubt(), runs);
    }
}

/// However many there are: what two of them have done, the second does not undo.
#[test]
fn what_has_run_more_than_once_leaves_as_much_in_doubt() {
    for many in 1..4 {
        let mut replies = queue((0..many).map(|_| execute()));
        (0..many).for_each(|_| drop(replies.pop()));
        assert!(replies.path_in_doubt(), "{many}");
        replies.path_said();
        replies.push(Request::Sync, Audience::Client);
        replies.pop();
        assert!(replies.path_in_doubt(), "{many}: the end of the pipeline");
    }
}

/// What it did before, it may have committed.
#[test]
fn an_error_leaves_in_doubt_how_text_is_read() {
    for done in 0..3 {
        let mut replies = queue((0..=done).map(|_| execute()).chain([Request::Sync]));
        (0..done).for_each(|_| drop(replies.pop()));
        replies.error();
        assert!(replies.lexing_in_doubt(), "{done}");
        replies.pop();
        assert!(!replies.lexing_in_doubt(), "{done}: it was reported");
    }
}

#[test]
fn the_token_may_change_while_what_sets_it_is_under_way() {
    let parameter = ParameterEffect::Set { value: "1".into(), local: false };
    let sets = Arc::new(Statement { parameter, ..Statement::default() });
    let mut replies = queue([Request::query(vec![sets.clone()]), Request::query(vec![sets]), query()]);
    for may_change in [true, true, false] {
        assert_eq!(replies.affect_parameter(), may_change);
        replies.pop();
    }
    assert!(!replies.affect_parameter() && replies.is_empty());
}

#[test]
fn a_rejection_is_under_way_until_it_is_answered() {
    let text = Arc::new(ErrorText::new("LF002", "no token"));
    let mut replies = queue([query()]);
    assert!(!replies.reject());
    replies.push(query(), Audience::Rejection { shift: 0, text });
    replies.push(query(), Audience::Client);
    for is_under_way in [true, true, false] {
        assert_eq!(replies.reject(), is_under_way);
        replies.pop();
    }
}
