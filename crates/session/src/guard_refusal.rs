//! Writes that only the guard sees, under a token that is not in force yet. The guard's error names the resource. The
//! proxy then raises the fence to the session's token, and resends the statement where that is safe.
//!
//! Must never raise a fence because of an error unless the session could raise it by naming the table: any function can
//! raise that error. Must never resend a statement that may have left anything behind.

use super::host::Host;
use super::judge::need::Need;
use super::message::Stage;
use super::parameter::ParameterValue;
use super::pipeline::{Audience, Request, rollback};
use super::rejection::{Rejection, now_in_force};
use super::repetition::GuardRefusal;
use super::session::{Session, frame_of};
use super::task::Task;
use bytes::{Bytes, BytesMut};
use fencegate_fence::session::Token;
use fencegate_fence::value::FenceValue;
use fencegate_fence::{Claim, FenceError, RequiredPrivilege};
use fencegate_policy::{Mode, Resource};
use fencegate_statement::{Operation, RelationName, Statement};
use fencegate_wire::client_error::ClientError;
use fencegate_wire::error::{Severity, field, put_with_hint};
use fencegate_wire::frame::{HEADER, Header, body};
use fencegate_wire::message::{Status, put_ready};
use fencegate_wire::tag::frontend;
use std::sync::Arc;

impl<H: Host> Session<H> {
    /// Records a message at the front of the client's input before it is forwarded unchanged. Returns the receiver of
    /// its answer.
    pub(super) fn note_repetition(&mut self, header: Header, request: Option<&Request>) -> Audience {
        let repetition = &mut self.pipeline.repetition;
        let is_bound = header.tag == frontend::BIND && repetition.take_bound();
        match self.settings.parameter.current() {
            ParameterValue::Known(FenceValue::Missing) => repetition.lose(),
            _ => repetition.note(header.tag, self.client.input.get(..header.frame()), request),
        }
        if is_bound { Audience::Proxy } else { Audience::Client }
    }

    /// Records that the next message from the server is for the client and is not an error.
    pub(super) fn note_answer(&mut self, header: Header) {
        self.show_description();
        self.pipeline.repetition.note_answer(header.tag);
    }

    /// Holds back a RowDescription that the server repeats if the Query is resent. Returns false for any other message.
    pub(super) fn keep_description(&mut self, header: Header) -> bool {
        let is_held = self.pipeline.repetition.holds_description(header.tag);
        if is_held {
            let frame = frame_of(&mut self.server, header.frame());
            self.pipeline.repetition.keep_description(frame);
        }
        is_held
    }

    pub(super) fn show_description(&mut self) {
        if let Some(description) = self.pipeline.repetition.take_description() {
            self.client.output.extend_from_slice(&description);
        }
    }

    /// The guard's refusal, if the error at the front of the server's input is one and names a token of this session
    /// that may be put in force.
    pub(super) fn guard_refusal(&mut self, header: Header) -> Option<GuardRefusal> {
        let error = &self.server.input[HEADER..header.frame()];
        let (resource, token) = not_in_force(error)?;
        let policies = self.host.policies();
        let resource = policies.resource_called(resource)?.called(resource)?;
        let presents = match self.settings.parameter.current() {
            ParameterValue::Known(value) => value.token(&resource.name) == Some(token),
            // A statement may have set the parameter. A statement that cannot set it could not make the guard report
            // the token either.
            ParameterValue::Unknown => true,
            ParameterValue::Invalid => false,
        };
        if !presents || resource.mode != Mode::Enforce || policies.exempts(self.host.user()) {
            return None;
        }
        let request = &self.pipeline.front()?.to;
        let may_have_committed = self.transaction.may_have_committed() || request.may_commit();
        let is_run = matches!(request, Request::Query { completed: 0, .. } | Request::Execute { .. });
        let statement = request.statements().first().cloned().unwrap_or_default();
        let kept = self.pipeline.repetition.take(&resource.name, is_run);
        Some(GuardRefusal {
            need: Need { resource, token, may_raise: true, statement, role_changes: false, presumed: false },
            error: None,
            description: kept.description,
            again: kept.messages,
            begin: kept.begin,
            raised: Vec::new(),
            may_have_committed,
            ready: None,
        })
    }

    /// Keeps the guard's error until its ReadyForQuery, unless the client may wait for the error before it sends the
    /// Sync.
    pub(super) fn keep_error(&mut self, refusal: GuardRefusal, error: Bytes) {
        let front = self.pipeline.front();
        let is_ended = front.is_some_and(|reply| matches!(reply.to, Request::Query { .. } | Request::Sync));
        let error = if is_ended || self.client.input.first() == Some(&frontend::SYNC) {
            Some(error)
        } else {
            self.client.output.extend_from_slice(&error);
            None
        };
        self.pipeline.repetition.refusal = Some(GuardRefusal { error, ..refusal });
    }

    /// Forwards ReadyForQuery. If the guard has refused the statement that ends here, raises the fence first, unless
    /// other work is under way: it may concern the same fence.
    pub(super) fn forward_ready(&mut self, header: Header) {
        let is_alone = self.pipeline.is_empty() && self.client.rest == 0;
        let status = self.transaction.status();
        let raised = self.pipeline.repetition.ready(is_alone, status);
        let Some(mut refusal) = self.pipeline.repetition.refusal.take() else {
            return self.stream(header, Audience::Client);
        };
        let frame = frame_of(&mut self.server, header.frame());
        let claim = self.claim_by_table(&refusal.need.resource);
        let is_free = matches!(self.message.stage(), Stage::Reading | Stage::Settling);
        if !is_alone || self.process.has_abandoned_admit() || !is_free || claim.privileges.is_empty() {
            return self.answer_refused(&refusal, &frame, |output, error| output.extend_from_slice(error));
        }
        let expected = if refusal.begin.is_some() { Status::Failed } else { Status::Idle };
        let is_expected = status == expected && self.client.input.is_empty();
        refusal.again = refusal.again.filter(|_| is_expected);
        refusal.raised = raised;
        refusal.ready = Some(frame);
        self.request(Task::Admit(vec![(refusal.need.clone(), claim)]));
        self.pipeline.repetition.refusal = Some(refusal);
    }

    /// The claim to raise the fence like a LOCK TABLE or SELECT FOR UPDATE on one of its tables, as any role that the
    /// client may assume.
    fn claim_by_table(&self, resource: &Resource) -> Claim {
        let policies = self.host.policies();
        let names = resource.tables.iter().map(|table| &table.name);
        let relations = names.map(|name| RelationName { schema: Some(name.schema.clone()), name: name.name.clone() });
        let is_fenced = |relation: &RelationName| {
            policies.fenced(relation, Operation::Lock).any(|(it, _)| it.is_called(&resource.name))
        };
        let privileges =
            relations.filter(is_fenced).map(|relation| RequiredPrivilege::Write(relation, Operation::Lock)).collect();
        Claim { privileges, one_suffices: true, role: Some(self.any_role()), login: self.host.user().to_owned() }
    }

    /// Handles the outcome of raising the fence.
    pub(super) fn fence_raised(&mut self, outcome: Result<(), FenceError>) {
        let Some(mut refusal) = self.pipeline.repetition.refusal.take() else { return };
        let ready = refusal.ready.take().unwrap_or_default();
        let again = refusal.again.take().filter(|_| !self.client.ended);
        match (outcome, again) {
            (Ok(()), Some(again)) => {
                refusal.again = Some(again);
                match refusal.begin.clone() {
                    Some((begin, statement)) => self.restart_transaction(&begin, statement),
                    None => return self.send_again(refusal),
                }
                self.pipeline.repetition.refusal = Some(refusal);
            }
            (Ok(()), None) => {
                let hint = now_in_force(refusal.may_have_committed);
                self.answer_refused(&refusal, &ready, |output, error| put_with_hint(output, body(error), hint));
            }
            // The guard's hint already has the advice.
            (Err(FenceError::Denied { .. }), _) => {
                self.answer_refused(&refusal, &ready, |output, error| output.extend_from_slice(error));
            }
            (Err(why), _) => {
                let rejection = Rejection::from(why);
                self.host.note_rejected(&rejection, &refusal.need.statement);
                self.answer_refused(&refusal, &ready, |output, _| rejection.text().put(output, Severity::Error));
            }
        }
    }

    /// Ends the failed transaction, in which nothing was done, and begins another one like it. A Query would drop the
    /// unnamed statement.
    fn restart_transaction(&mut self, begin: &str, statement: Arc<Statement>) {
        self.begin_forwarding();
        let output = &mut self.server.output;
        for (text, statement) in [("ROLLBACK", rollback()), (begin, statement)] {
            self.pipeline.run(output, text, statement, &Audience::Proxy);
            self.pipeline.put_sync(output, Audience::Proxy);
        }
        self.message.set_stage(Stage::Restarting);
    }

    /// Handles the outcome of a restart. If a cancel request prevented it, the client receives the error: a statement
    /// from a transaction must not run outside of one.
    pub(super) fn transaction_restarted(&mut self) {
        self.message.resume();
        let Some(refusal) = self.pipeline.repetition.refusal.take() else { return };
        if self.transaction.status() == Status::Transaction {
            return self.send_again(refusal);
        }
        let mut ready = BytesMut::new();
        put_ready(&mut ready, self.transaction.status());
        self.answer_refused(&refusal, &ready, |output, error| output.extend_from_slice(error));
    }

    /// Puts the statement at the front of the client's input. The proxy and the guard then judge it again.
    fn send_again(&mut self, refusal: GuardRefusal) {
        let again = refusal.again.unwrap_or_default();
        let behind = self.client.input.split();
        self.client.input.extend_from_slice(&again);
        self.client.input.extend_from_slice(&behind);
        let mut raised = refusal.raised;
        raised.push(refusal.need.resource.name.clone());
        self.pipeline.repetition.repeat(&again, refusal.begin, raised);
    }

    /// Forwards the answer that was held back. `put` writes the error.
    fn answer_refused(&mut self, refusal: &GuardRefusal, ready: &[u8], put: impl FnOnce(&mut BytesMut, &[u8])) {
        let output = &mut self.client.output;
        output.extend_from_slice(refusal.description.as_deref().unwrap_or_default());
        if let Some(error) = &refusal.error {
            put(output, error);
        }
        output.extend_from_slice(ready);
    }
}

/// The resource and the token of the guard's error, if it reports that the token is not in force.
fn not_in_force(error: &[u8]) -> Option<(&str, Token)> {
    let text = |tag| std::str::from_utf8(field(error, tag)?).ok();
    let mut detail = text(b'D').filter(|_| field(error, b'C') == Some(b"LF004"))?.split(' ');
    let resource = detail.next()?.strip_prefix("resource=")?;
    let presented = detail.next()?.strip_prefix("presented=")?;
    Some((resource, presented.parse().ok()?))
}
