//! A single statement that may be resent: the guard has refused a write that only the guard could see, under a token
//! that was not in force yet.
//!
//! Owns which messages are resent. Must never keep a statement for repetition that may have left anything behind.

use super::judge::need::Need;
use super::pipeline::Request;
use bytes::{Bytes, BytesMut};
use fencegate_statement::{FunctionName, Statement, TransactionEffect};
use fencegate_wire::frame::{body, split_string};
use fencegate_wire::message::Status;
use fencegate_wire::tag::{backend, frontend};
use std::sync::Arc;

/// Maximum total length of the kept messages, in bytes.
const MAX_BYTES: usize = 64 * 1024;

/// Memory that an idle session keeps for them, in bytes.
const LITTLE: usize = 512;

/// Number of fences that are raised for one statement. Then it is not resent.
const MAX_RAISED: usize = 8;

/// The statement sent since the session was idle, if it is a single one that may be resent, and the guard's refusal of
/// it.
#[derive(Default)]
pub struct Repetition {
    /// A Query; or Bind, Execute and Sync.
    messages: BytesMut,
    stage: Stage,
    /// RowDescription of a Query, held back until the next message of its answer.
    description: Option<Bytes>,
    /// The BEGIN before the statement, if nothing else was done in the open transaction.
    begin: Option<Begin>,
    /// Resources whose fences were raised for this statement.
    raised: Vec<String>,
    /// The client has seen BindComplete.
    is_bound: bool,
    /// The guard's refusal that the client has not received yet.
    pub(super) refusal: Option<GuardRefusal>,
}

/// A statement that begins a transaction, and its text.
pub(super) type Begin = (String, Arc<Statement>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Nothing,
    Begin,
    Query,
    Bound,
    Executed,
    Synced,
    /// There is more than one statement, or it cannot be sent again.
    Lost,
}

/// Messages to send again, and the answer that was held back.
pub(super) struct Kept {
    pub(super) messages: Option<Bytes>,
    pub(super) description: Option<Bytes>,
    pub(super) begin: Option<Begin>,
}

/// The guard's refusal of a write.
pub(super) struct GuardRefusal {
    pub(super) need: Need,
    /// The guard's error, if the client has not received it.
    pub(super) error: Option<Bytes>,
    /// The part of the answer before the error that was held back.
    pub(super) description: Option<Bytes>,
    /// The messages to resend.
    pub(super) again: Option<Bytes>,
    /// The statement that restarts the transaction before them.
    pub(super) begin: Option<Begin>,
    /// Resources whose fences were raised for the statement before.
    pub(super) raised: Vec<String>,
    /// Work before the refused statement may have been committed.
    pub(super) may_have_committed: bool,
    /// The ReadyForQuery that waits until the fence is raised.
    pub(super) ready: Option<Bytes>,
}

impl GuardRefusal {
    /// The client waits until the fence is raised.
    fn waits_for_fence(&self) -> bool {
        self.ready.is_some()
    }
}

impl Repetition {
    /// A message of the client is forwarded. `frame`: all of it, if it has arrived.
    pub(super) fn note(&mut self, tag: u8, frame: Option<&[u8]>, request: Option<&Request>) {
        let may_repeat = || match request {
            Some(Request::Query { statements, .. }) => matches!(&statements[..], [one] if is_repeatable(one)),
            Some(Request::Bind { plans: statement, .. } | Request::Execute { statement, .. }) => {
                is_repeatable(statement)
            }
            _ => false,
        };
        let stage = match (self.stage, tag) {
            // Their answers stay valid, whatever happens to the transaction.
            (Stage::Nothing, frontend::PARSE | frontend::FLUSH | frontend::DESCRIBE | frontend::SYNC) => return,
            (Stage::Bound, frontend::FLUSH | frontend::DESCRIBE) => return,
            (Stage::Nothing, frontend::QUERY) if may_repeat() => Stage::Query,
            (Stage::Nothing, frontend::QUERY) if self.note_begin(frame, request) => Stage::Begin,
            (Stage::Nothing, frontend::BIND) if may_repeat() => Stage::Bound,
            (Stage::Bound, frontend::EXECUTE) if may_repeat() => Stage::Executed,
            (Stage::Executed, frontend::SYNC) => Stage::Synced,
            _ => Stage::Lost,
        };
        match frame.filter(|frame| stage != Stage::Lost && self.messages.len() + frame.len() <= MAX_BYTES) {
            Some(frame) => {
                self.messages.extend_from_slice(frame);
                self.stage = stage;
            }
            None => self.lose(),
        }
    }

    /// Returns true if the message begins a transaction and does nothing else.
    fn note_begin(&mut self, frame: Option<&[u8]>, request: Option<&Request>) -> bool {
        let Some(Request::Query { statements, .. }) = request else { return false };
        let [statement] = &statements[..] else { return false };
        let text = frame.and_then(|frame| std::str::from_utf8(split_string(body(frame))?.0).ok());
        let is_first = statement.transaction == TransactionEffect::Begin && self.begin.is_none();
        self.begin = text.filter(|_| is_first).map(|text| (text.to_owned(), statement.clone()));
        self.begin.is_some()
    }

    /// The statement cannot be sent again.
    pub(super) fn lose(&mut self) {
        self.stage = Stage::Lost;
        self.messages.clear();
    }

    /// Returns true once if the client has already received BindComplete for a resent Bind.
    pub(super) fn take_bound(&mut self) -> bool {
        std::mem::take(&mut self.is_bound)
    }

    /// Records a message with this tag, other than an error, to the client. Responses before the statement's execution
    /// stay valid when the statement is resent.
    pub(super) fn note_answer(&mut self, tag: u8) {
        const BEFORE_RUN: [u8; 5] = [
            backend::PARSE_COMPLETE,
            backend::BIND_COMPLETE,
            backend::NO_DATA,
            backend::ROW_DESCRIPTION,
            backend::PARAMETER_DESCRIPTION,
        ];
        if !BEFORE_RUN.contains(&tag) {
            self.lose();
        }
    }

    /// Returns true if a message with this tag must be held back: the server repeats it if the Query is resent.
    pub(super) fn holds_description(&self, tag: u8) -> bool {
        tag == backend::ROW_DESCRIPTION && self.stage == Stage::Query
    }

    /// Holds back a RowDescription.
    pub(super) fn keep_description(&mut self, frame: Bytes) {
        self.description = Some(frame);
    }

    /// The RowDescription that was held back, now due to the client: the Query cannot be resent.
    pub(super) fn take_description(&mut self) -> Option<Bytes> {
        self.description.as_ref()?;
        self.lose();
        self.description.take()
    }

    /// The guard has refused the statement. `may_repeat`: nothing of it has run, and raising this resource's fence may help.
    pub(super) fn take(&mut self, resource: &str, may_repeat: bool) -> Kept {
        let is_new = !self.raised.iter().any(|it| it == resource) && self.raised.len() < MAX_RAISED;
        let is_all = matches!(self.stage, Stage::Query | Stage::Synced);
        let messages = (may_repeat && is_new && is_all).then(|| self.messages.split().freeze());
        Kept { messages, description: self.description.take(), begin: self.begin.take() }
    }

    /// ReadyForQuery. Returns the resources whose fences were raised for the statement. `is_alone`: nothing else is under way.
    pub(super) fn ready(&mut self, is_alone: bool, status: Status) -> Vec<String> {
        let (stage, begin) = (std::mem::take(&mut self.stage), self.begin.take());
        (self.description, self.is_bound) = (None, false);
        self.messages.clear();
        if !self.messages.try_reclaim(1) || self.messages.capacity() > LITTLE {
            self.messages = BytesMut::new();
        }
        match status {
            Status::Idle if is_alone => {}
            Status::Transaction if is_alone && matches!(stage, Stage::Nothing | Stage::Begin) => self.begin = begin,
            _ => self.lose(),
        }
        std::mem::take(&mut self.raised)
    }

    /// The statement is resent after the fences of these resources were raised.
    pub(super) fn repeat(&mut self, messages: &[u8], begin: Option<Begin>, raised: Vec<String>) {
        let is_bound = messages.first() == Some(&frontend::BIND);
        *self = Repetition { raised, begin, is_bound, ..Repetition::default() };
    }

    /// Returns true if the client has not received a refusal of the guard yet.
    pub(super) fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// Returns true if the client waits until a fence is raised.
    pub(super) fn waits_for_fence(&self) -> bool {
        self.refusal.as_ref().is_some_and(GuardRefusal::waits_for_fence)
    }
}

/// Returns true if an error undoes everything that the statement does: it commits nothing while it runs, and has no
/// effect outside its transaction.
fn is_repeatable(statement: &Statement) -> bool {
    statement.opaque.is_none()
        && statement.kind.is_query()
        && !statement.functions.iter().any(FunctionName::survives_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencegate_statement::StatementKind;

    fn select(functions: &[&str]) -> Arc<Statement> {
        let functions = functions.iter().map(|name| FunctionName { schema: None, name: (*name).to_owned() });
        Arc::new(Statement { kind: StatementKind::Select, functions: functions.collect(), ..Statement::default() })
    }

    fn after(messages: &[(u8, Request)]) -> Repetition {
        let mut repetition = Repetition::default();
        messages.iter().for_each(|(tag, request)| repetition.note(*tag, Some(&[*tag]), Some(request)));
        repetition
    }

    fn kept(mut repetition: Repetition) -> Option<Bytes> {
        repetition.take("scheduler", true).messages
    }

    #[test]
    fn only_a_single_statement_is_resent() {
        let query = || (frontend::QUERY, Request::query(vec![select(&[])]));
        assert_eq!(kept(after(&[query()])).as_deref(), Some(&b"Q"[..]));
        assert_eq!(kept(after(&[query(), query()])), None);
        assert_eq!(kept(after(&[(frontend::QUERY, Request::query(vec![select(&[]), select(&[])]))])), None);
        let bound = [(frontend::BIND, Request::Bind { defines: None, plans: select(&[]) })];
        assert_eq!(kept(after(&bound)), None, "the portal was not executed");
    }

    #[test]
    fn a_statement_whose_effect_survives_an_error_is_not_resent() {
        let query = Request::query(vec![select(&["pg_advisory_unlock"])]);
        assert_eq!(kept(after(&[(frontend::QUERY, query)])), None);
    }

    #[test]
    fn a_row_prevents_the_resend() {
        let query = || after(&[(frontend::QUERY, Request::query(vec![select(&[])]))]);
        let mut described = query();
        described.note_answer(backend::ROW_DESCRIPTION);
        assert!(kept(described).is_some());
        let mut answered = query();
        answered.note_answer(backend::DATA_ROW);
        assert_eq!(kept(answered), None);
    }

    #[test]
    fn each_fence_is_raised_at_most_once_per_statement() {
        let mut repetition = Repetition::default();
        repetition.repeat(b"Q", None, vec!["scheduler".to_owned()]);
        repetition.note(frontend::QUERY, Some(b"Q"), Some(&Request::query(vec![select(&[])])));
        assert_eq!(repetition.take("scheduler", true).messages, None);
        assert!(repetition.take("another", true).messages.is_some());
    }
}
