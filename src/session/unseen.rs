//! Writes that only the guard sees, under a token that is not in force yet. The guard's error names the resource: the fence
//! is raised to the session's token, and the statement is sent again where nothing of it was lost.
//!
//! Must never raise a fence by an error for which the session could not raise it by naming the table: anybody's function can
//! raise that error. Must never send again what may have left anything behind.

use super::judge::Need;
use super::parameter::ParameterValue;
use super::raised::rollback;
use super::rejection::{Rejection, now_in_force};
use super::replies::{Audience, Request};
use super::{Host, Session, Status, Task, Wait, frame_of};
use crate::fence::session::Token;
use crate::fence::value::FenceValue;
use crate::fence::{Claim, Deed, Refusal};
use crate::policy::{Mode, Resource};
use crate::statement::{FunctionName, Operation, RelationName, Statement, TransactionEffect};
use crate::wire::error::{Severity, field, put_with_hint};
use crate::wire::frame::{HEADER, Header, body, split_string};
use crate::wire::message::put_ready;
use crate::wire::tag::{backend, frontend};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// The longest messages that are kept, in bytes together.
const LONGEST: usize = 64 * 1024;

/// The most fences that are raised for a statement, before it is not sent again.
const MOST_RAISED: usize = 8;

/// The statement that was sent since the session was idle, as long as it is a single one that may be sent again.
#[derive(Default)]
pub(super) struct Single {
    /// A Query; or Bind, Execute and Sync.
    messages: BytesMut,
    stage: Stage,
    /// What the rows of a Query look like: kept back until the next message of its answer.
    description: Option<Bytes>,
    /// The text of the BEGIN before it, if that was all that was done in the open transaction.
    begin: Option<(String, Arc<Statement>)>,
    /// It is sent again, after the fences of these were raised.
    raised: Vec<String>,
    /// The client has been told that it is bound.
    is_bound: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Nothing,
    Begin,
    Query,
    Bound,
    Executed,
    Synced,
    /// There is more than one, or it cannot be sent again.
    Lost,
}

impl Single {
    /// This message is forwarded. `frame`: all of it, if it is there and not too long.
    fn note(&mut self, tag: u8, frame: Option<&[u8]>, request: Option<&Request>) {
        let may_repeat = || match request {
            Some(Request::Query { statements, .. }) => matches!(&statements[..], [one] if is_repeatable(one)),
            Some(Request::Bind { plans: statement, .. } | Request::Execute { statement, .. }) => {
                is_repeatable(statement)
            }
            _ => false,
        };
        let stage = match (self.stage, tag) {
            // Whatever becomes of the transaction, these are answered for good.
            (Stage::Nothing, frontend::PARSE | frontend::FLUSH | frontend::DESCRIBE | frontend::SYNC) => return,
            (Stage::Bound, frontend::FLUSH | frontend::DESCRIBE) => return,
            (Stage::Nothing, frontend::QUERY) if may_repeat() => Stage::Query,
            (Stage::Nothing, frontend::QUERY) if self.note_begin(frame, request) => Stage::Begin,
            (Stage::Nothing, frontend::BIND) if may_repeat() => Stage::Bound,
            (Stage::Bound, frontend::EXECUTE) if may_repeat() => Stage::Executed,
            (Stage::Executed, frontend::SYNC) => Stage::Synced,
            _ => Stage::Lost,
        };
        match frame.filter(|frame| stage != Stage::Lost && self.messages.len() + frame.len() <= LONGEST) {
            Some(frame) => {
                self.messages.extend_from_slice(frame);
                self.stage = stage;
            }
            None => self.lose(),
        }
    }

    /// True: the message begins a transaction, and does nothing else.
    fn note_begin(&mut self, frame: Option<&[u8]>, request: Option<&Request>) -> bool {
        let Some(Request::Query { statements, .. }) = request else { return false };
        let [statement] = &statements[..] else { return false };
        let text = frame.and_then(|frame| std::str::from_utf8(split_string(body(frame))?.0).ok());
        let is_first = statement.transaction == TransactionEffect::Begin && self.begin.is_none();
        self.begin = text.filter(|_| is_first).map(|text| (text.to_owned(), statement.clone()));
        self.begin.is_some()
    }

    fn lose(&mut self) {
        self.stage = Stage::Lost;
        self.messages.clear();
    }

    /// What has to be sent again, where that is all that the client sent.
    fn take(&mut self) -> Option<Bytes> {
        matches!(self.stage, Stage::Query | Stage::Synced).then(|| self.messages.split().freeze())
    }
}

/// It commits nothing while it runs, and an error takes back all that it shows to do.
/// It does all that it does in the transaction that fails.
fn is_repeatable(statement: &Statement) -> bool {
    statement.opaque.is_none()
        && statement.kind.is_query()
        && !statement.functions.iter().any(FunctionName::survives_error)
}

/// What the guard has refused.
pub(super) struct Unseen {
    need: Need,
    /// Its error, if the client has not been told.
    error: Option<Bytes>,
    /// What stands before that in the answer.
    description: Option<Bytes>,
    /// What is sent again.
    again: Option<Bytes>,
    /// What begins the transaction anew before that.
    begin: Option<(String, Arc<Statement>)>,
    /// The resources whose fences were raised for it before.
    raised: Vec<String>,
    /// What was done before it may have been committed.
    may_have_committed: bool,
    /// The ReadyForQuery that waits for the fence.
    ready: Option<Bytes>,
}

impl Unseen {
    /// The client waits for the fence to be raised.
    pub(super) fn waits(&self) -> bool {
        self.ready.is_some()
    }
}

impl<H: Host> Session<H> {
    /// A message at the front of the client's input is about to be forwarded as it is. For whom its answer is.
    pub(super) fn note_single(&mut self, header: Header, request: Option<&Request>) -> Audience {
        let is_bound = header.tag == frontend::BIND && std::mem::take(&mut self.single.is_bound);
        match self.parameter.current() {
            ParameterValue::Known(FenceValue::Missing) => self.single.lose(),
            _ => self.single.note(header.tag, self.client.input.get(..header.frame()), request),
        }
        if is_bound { Audience::Proxy } else { Audience::Client }
    }

    /// The next message of the server is for the client, and no error.
    pub(super) fn note_answer(&mut self, header: Header) {
        self.show_description();
        // What says nothing of the statement's run stays true when that is repeated.
        const OF_NO_RUN: [u8; 5] =
            [backend::PARSE_COMPLETE, backend::BIND_COMPLETE, backend::NO_DATA, backend::ROW_DESCRIPTION, b't'];
        if !OF_NO_RUN.contains(&header.tag) {
            self.single.lose();
        }
    }

    /// Keeps back what the rows of a Query look like: the server says it again when that is sent again. False: it is none.
    pub(super) fn keep_description(&mut self, header: Header) -> bool {
        let is_its = header.tag == backend::ROW_DESCRIPTION && self.single.stage == Stage::Query;
        if is_its {
            self.single.description = Some(frame_of(&mut self.server, header.frame()));
        }
        is_its
    }

    pub(super) fn show_description(&mut self) {
        if let Some(description) = self.single.description.take() {
            self.client.output.extend_from_slice(&description);
            self.single.lose();
        }
    }

    /// The error at the front of the server's input is the guard's, about a token of this session that may be put in force.
    pub(super) fn unseen_write(&mut self, header: Header) -> Option<Unseen> {
        let error = &self.server.input[HEADER..header.frame()];
        let (resource, token) = not_in_force(error)?;
        let policies = self.host.policies();
        let resource = policies.resource_called(resource)?.called(resource)?;
        let presents = match self.parameter.current() {
            ParameterValue::Known(value) => value.token(&resource.name) == Some(token),
            // What has run may have set it. Could it not, it could not have the guard say so either.
            ParameterValue::Unknown => true,
            ParameterValue::Invalid => false,
        };
        if !presents || resource.mode != Mode::Enforce || policies.exempts(self.host.user()) {
            return None;
        }
        let request = &self.replies.front()?.to;
        let may_have_committed = self.transaction.may_have_committed || request.may_commit();
        let is_run = matches!(request, Request::Query { completed: 0, .. } | Request::Execute { .. });
        let statement = request.statements().first().cloned().unwrap_or_default();
        let is_new = !self.single.raised.contains(&resource.name) && self.single.raised.len() < MOST_RAISED;
        let again = if is_run && is_new { self.single.take() } else { None };
        let (description, begin) = (self.single.description.take(), self.single.begin.take());
        let need = Need { resource, token, may_raise: true, statement, role_changes: false, presumed: false };
        let (error, ready, raised) = (None, None, Vec::new());
        Some(Unseen { need, error, description, again, begin, raised, may_have_committed, ready })
    }

    /// The guard's error is told with the ReadyForQuery behind it, unless the client may wait for the error before it asks
    /// for that.
    pub(super) fn keep_error(&mut self, unseen: Unseen, error: Bytes) {
        let is_ended =
            self.replies.front().is_some_and(|reply| matches!(reply.to, Request::Query { .. } | Request::Sync));
        let error = if is_ended || self.client.input.first() == Some(&frontend::SYNC) {
            Some(error)
        } else {
            self.client.output.extend_from_slice(&error);
            None
        };
        self.unseen = Some(Unseen { error, ..unseen });
    }

    /// ReadyForQuery is passed on; before that the fence is raised, where the guard has refused what it ends. Not while anything
    /// else runs, or is asked for: that may be about the same fence.
    pub(super) fn tell_ready(&mut self, frame: Bytes) {
        let is_alone = self.replies.is_empty() && self.client.rest == 0;
        let Single { raised, stage, begin, .. } = std::mem::take(&mut self.single);
        match self.transaction.status {
            Status::Idle if is_alone => {}
            Status::Transaction if is_alone && matches!(stage, Stage::Nothing | Stage::Begin) => {
                self.single.begin = begin
            }
            _ => self.single.lose(),
        }
        let Some(mut unseen) = self.unseen.take() else { return self.client.output.extend_from_slice(&frame) };
        let claim = self.claim(&unseen.need.resource);
        if !is_alone || self.has_given_up() || !matches!(self.wait, None | Some(Wait::Settle)) || claim.deeds.is_empty()
        {
            return self.tell(&unseen, &frame, |output, error| output.extend_from_slice(error));
        }
        let expected = if unseen.begin.is_some() { Status::Failed } else { Status::Idle };
        let is_expected = self.transaction.status == expected && self.client.input.is_empty();
        unseen.again = unseen.again.filter(|_| is_expected);
        unseen.raised = raised;
        self.ask_for(Task::Admit(vec![(unseen.need.clone(), claim)]));
        self.unseen = Some(Unseen { ready: Some(frame), ..unseen });
    }

    /// By naming one of its tables in LOCK TABLE, or in SELECT FOR UPDATE, the client could raise the fence, as any role that it
    /// may become.
    fn claim(&self, resource: &Resource) -> Claim {
        let policies = self.host.policies();
        let names = resource.tables.iter().map(|table| &table.name);
        let relations = names.map(|name| RelationName { schema: Some(name.schema.clone()), name: name.name.clone() });
        let is_fenced = |relation: &RelationName| {
            policies.fenced(relation, Operation::Lock).any(|(it, _)| it.is_called(&resource.name))
        };
        let deeds = relations.filter(is_fenced).map(|relation| Deed::Write(relation, Operation::Lock)).collect();
        Claim { deeds, one_suffices: true, role: Some(self.any_role()), login: self.host.user().to_owned() }
    }

    /// The fence was raised, or not.
    pub(super) fn fence_raised(&mut self, outcome: Result<(), Refusal>) {
        let Some(mut unseen) = self.unseen.take() else { return };
        let ready = unseen.ready.take().unwrap_or_default();
        let again = unseen.again.take().filter(|_| !self.client.ended);
        match (outcome, again) {
            (Ok(()), Some(again)) => {
                unseen.again = Some(again);
                match unseen.begin.clone() {
                    Some((begin, statement)) => self.begin_anew(&begin, statement),
                    None => return self.send_again(unseen),
                }
                self.unseen = Some(unseen);
            }
            (Ok(()), None) => {
                let hint = now_in_force(unseen.may_have_committed);
                self.tell(&unseen, &ready, |output, error| put_with_hint(output, body(error), hint));
            }
            // The guard's hint says what helps.
            (Err(Refusal::Denied { .. }), _) => {
                self.tell(&unseen, &ready, |output, error| output.extend_from_slice(error));
            }
            (Err(refusal), _) => {
                let rejection = Rejection::from(refusal);
                self.host.note_rejected(&rejection, &unseen.need.statement);
                self.tell(&unseen, &ready, |output, _| rejection.text().put(output, Severity::Error));
            }
        }
    }

    /// The failed transaction, in which nothing was done, is ended, and another begun like it. By no Query: that would take the
    /// unnamed statement away.
    fn begin_anew(&mut self, begin: &str, statement: Arc<Statement>) {
        self.note_forwarding();
        for (text, statement) in [("ROLLBACK", rollback()), (begin, statement)] {
            self.run_in_pipeline(text, statement, &Audience::Proxy);
            self.put_sync(Audience::Proxy);
        }
        self.wait = Some(Wait::Begin);
    }

    /// It is, or it is not, should a cancel request have met it: then the client is told of the error. Outside of a transaction
    /// nothing may run that the client has sent within one.
    pub(super) fn begun_anew(&mut self) {
        self.wait = None;
        let Some(unseen) = self.unseen.take() else { return };
        if self.transaction.status == Status::Transaction {
            return self.send_again(unseen);
        }
        let mut ready = BytesMut::new();
        put_ready(&mut ready, self.transaction.status);
        self.tell(&unseen, &ready, |output, error| output.extend_from_slice(error));
    }

    /// It is judged again, and the guard looks at it again.
    fn send_again(&mut self, unseen: Unseen) {
        let again = unseen.again.unwrap_or_default();
        let behind = self.client.input.split();
        self.client.input.extend_from_slice(&again);
        self.client.input.extend_from_slice(&behind);
        let mut raised = unseen.raised;
        raised.push(unseen.need.resource.name.clone());
        let is_bound = again.first() == Some(&frontend::BIND);
        self.single = Single { raised, begin: unseen.begin, is_bound, ..Single::default() };
    }

    /// Passes on what was kept back; `put` writes the error.
    fn tell(&mut self, unseen: &Unseen, ready: &[u8], put: impl FnOnce(&mut BytesMut, &[u8])) {
        let output = &mut self.client.output;
        output.extend_from_slice(unseen.description.as_deref().unwrap_or_default());
        if let Some(error) = &unseen.error {
            put(output, error);
        }
        output.extend_from_slice(ready);
    }
}

/// The resource and the token that the guard's error is about, if it is the one that says that nothing has put it in force.
fn not_in_force(error: &[u8]) -> Option<(&str, Token)> {
    let text = |tag| std::str::from_utf8(field(error, tag)?).ok();
    let mut detail = text(b'D').filter(|_| field(error, b'C') == Some(b"LF004"))?.split(' ');
    let resource = detail.next()?.strip_prefix("resource=")?;
    let presented = detail.next()?.strip_prefix("presented=")?;
    Some((resource, presented.parse().ok()?))
}
