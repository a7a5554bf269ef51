//! Messages that wait for a task while a timeout of the server runs: `idle_in_transaction_session_timeout`,
//! `idle_session_timeout` and `transaction_timeout` end sessions, and the server does not know that the client waits.
//!
//! Owns when such a timeout is stopped, and when an Admit is given up because of one. An Admit that was given up goes on: must
//! never forward anything that runs code before it has ended.

use super::pending::{Asked, Wait};
use super::rejection::Rejection;
use super::transaction::Sent;
use super::verdict::Verdict;
use super::{Host, Session, Task};
use crate::fence::{Cause, Refusal, Remedy};
use crate::statement::{Statement, StatementKind, TransactionEffect};
use crate::wire::message::{self, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A message that has waited for less is not worth a question: most Admits take a round trip or two.
const PATIENCE: Duration = Duration::from_millis(10);

/// An Admit is given up this long before a timeout, at most; a tenth of a short one.
const MARGIN: Duration = Duration::from_millis(200);

/// The first release that has `transaction_timeout`, and the first that has `idle_session_timeout`.
const HAS_TRANSACTION_TIMEOUT: u8 = 17;
const HAS_IDLE_SESSION_TIMEOUT: u8 = 14;

const IN_TRANSACTION: &str = "idle_in_transaction_session_timeout";
const OUTSIDE: &str = "idle_session_timeout";
const WHOLE: &str = "transaction_timeout";

/// An Admit that was begun, and has not ended.
pub(super) struct Admit {
    /// The first resource that it is for.
    resource: String,
    /// The client has been told that it failed.
    is_given_up: bool,
    /// The message must not stand behind a question.
    stands_alone: bool,
}

/// When to give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    at: Instant,
    /// The timeout that would end the session.
    setting: &'static str,
    /// Its value, as the server says it.
    value: String,
}

impl<H: Host> Session<H> {
    /// The message at hand waits for this task.
    pub(super) fn begin_hold(&mut self, task: &Task) {
        self.hold_on();
        if let Task::Admit(needs) = task {
            let resource = needs.first().map_or_else(String::new, |(need, _)| need.resource.name.clone());
            let stands_alone = needs.iter().any(|(need, _)| self.may_stand_alone(&need.statement));
            self.admit = Some(Admit { resource, is_given_up: false, stands_alone });
        }
    }

    /// The message at hand waits, for the first time or for something else.
    fn hold_on(&mut self) {
        self.pending.held.get_or_insert(self.now);
        if self.pending.limit == Asked::Answered(None) {
            self.pending.limit = Asked::Not;
        }
    }

    /// The moment at which a step is due though nothing has happened.
    pub fn wakes_at(&self) -> Option<Instant> {
        let since = self.pending.held.filter(|_| self.is_holding())?;
        match &self.pending.limit {
            // What the server owes may be behind messages that it does not answer yet.
            Asked::Not if !self.replies.is_empty() && (self.pending.flushed || !self.replies.needs_flush()) => None,
            Asked::Not => Some(since + PATIENCE),
            Asked::Due => None,
            Asked::Answered(limit) => limit.as_ref().filter(|_| self.can_give_up()).map(|limit| limit.at),
        }
    }

    /// Does what is due.
    pub(super) fn look_after_held(&mut self) {
        if self.wakes_at().is_none_or(|at| self.now < at) {
            return;
        }
        match &self.pending.limit {
            Asked::Answered(Some(limit)) => {
                let limit = limit.clone();
                self.give_up(&limit);
            }
            _ if !self.replies.is_empty() => {
                self.note_forwarding();
                message::put_flush(&mut self.server.output);
                self.pending.flushed = true;
            }
            _ if self.can_ask_for_limits() => self.ask_for_limits(),
            _ => {
                self.stop_idle_timeouts();
                self.pending.limit = Asked::Answered(None);
            }
        }
    }

    fn is_holding(&self) -> bool {
        matches!(self.wait, Some(Wait::Task | Wait::GivenUp))
    }

    /// What the guard has refused waits behind the answer of the server, in a transaction that has failed or is over.
    fn can_give_up(&self) -> bool {
        self.is_holding() && self.admit.is_some() && self.unseen.is_none()
    }

    fn can_ask_for_limits(&self) -> bool {
        let may_follow = self.admit.as_ref().is_some_and(|admit| !admit.stands_alone);
        let is_answered = self.transaction.status != Status::Failed && !self.replies.is_skipping();
        self.can_give_up() && may_follow && is_answered
    }

    /// By SHOW, which takes no snapshot: see `question`.
    fn ask_for_limits(&mut self) {
        let names = self.limits();
        let questions: Vec<String> = match self.replicates {
            true => {
                let settings = names.map(|name| format!("pg_catalog.current_setting('{name}', true)"));
                vec![format!("SELECT {}", settings.collect::<Vec<_>>().join(", "))]
            }
            false => names.map(|name| format!("SHOW {name}")).collect(),
        };
        self.pending.limit = match questions.is_empty() {
            true => Asked::Answered(None),
            false => Asked::Due,
        };
        let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
        self.put_questions(&questions);
    }

    /// The timeouts that may end the session while it waits here.
    fn limits(&self) -> impl Iterator<Item = &'static str> + use<H> {
        let release = self.lexing.release;
        let idle = match self.transaction.status {
            Status::Idle => (release >= HAS_IDLE_SESSION_TIMEOUT).then_some(OUTSIDE),
            Status::Transaction | Status::Failed => Some(IN_TRANSACTION),
        };
        idle.into_iter().chain((release >= HAS_TRANSACTION_TIMEOUT).then_some(WHOLE))
    }

    /// The server has said the values of [`Self::limits`].
    pub(super) fn take_limits(&mut self, values: Vec<Option<String>>) {
        // Asking has started the server's idle timeout anew.
        self.stop_idle_timeouts();
        let is_open = self.transaction.status != Status::Idle || self.transaction.sent != Sent::Nothing;
        let limit = |(setting, value): (&'static str, Option<String>)| {
            let since = if setting == WHOLE { self.transaction.began.filter(|_| is_open) } else { self.pending.held };
            let (since, value) = (since?, value?);
            let timeout = duration(&value).filter(|timeout| !timeout.is_zero())?;
            let at = since.checked_add(timeout - (timeout / 10).min(MARGIN))?;
            Some(Limit { at, setting, value })
        };
        let limit = self.limits().zip(values).filter_map(limit).min_by_key(|limit| limit.at);
        self.pending.limit = Asked::Answered(limit);
    }

    /// Where the server waits for the next message with a timeout, a Flush is one, to which it has nothing to say: the timeout
    /// begins again with its next ReadyForQuery. To the fence nothing was forwarded: a Flush does nothing in a transaction.
    fn stop_idle_timeouts(&mut self) {
        if self.transaction.sent == Sent::Nothing {
            message::put_flush(&mut self.server.output);
        }
    }

    /// The message at hand is answered by LF006; the Admit goes on, so that the next one waits less.
    fn give_up(&mut self, Limit { setting, value, .. }: &Limit) {
        let Some(admit) = &mut self.admit else { return };
        admit.is_given_up = true;
        let (resource, obstacle) = self.fence.waits_for().unwrap_or_else(|| (admit.resource.clone(), None));
        let obstacle = obstacle.unwrap_or_default();
        let reason = match obstacle.reason.as_str() {
            "" => "the session has not been admitted yet",
            reason => reason,
        };
        let reason = format!("{reason}; stopped waiting, because {setting} ({value}) would end the session");
        let cause = Cause::new(reason, Remedy::ServerTimeout(setting));
        self.pending.refused = Some(Refusal::Unavailable { resource, cause, queries: obstacle.queries });
        self.wait = None;
    }

    /// The server's answer to our question is an error, which is the answer to the message at hand.
    pub(super) fn abandon_hold(&mut self) {
        self.admit.iter_mut().for_each(|admit| admit.is_given_up = true);
        self.end_hold();
    }

    pub(super) fn end_hold(&mut self) {
        (self.pending.held, self.pending.limit) = (None, Asked::Not);
    }

    /// The Admit has ended. True: it had been given up.
    pub(super) fn admit_ended(&mut self) -> bool {
        self.admit.take().is_some_and(|admit| admit.is_given_up)
    }

    /// An Admit is under way for which nobody waits.
    pub(super) fn has_given_up(&self) -> bool {
        self.admit.as_ref().is_some_and(|admit| admit.is_given_up)
    }

    /// What runs code waits for the end of an Admit that was given up: that relies on the session writing nothing meanwhile.
    pub(super) fn behind_given_up(&mut self, statements: &[Arc<Statement>]) -> Option<Verdict> {
        if !self.has_given_up() {
            return None;
        }
        let index = statements.iter().position(|it| !self.parameter.refuses(it) && may_run_code(it))?;
        let stands_alone = self.may_stand_alone(&statements[index]);
        if let Some(refusal) = &self.pending.refused {
            return Some(Verdict::Reject(index, Rejection::from(refusal.clone())));
        }
        if let Some(admit) = &mut self.admit {
            admit.stands_alone = stands_alone;
        }
        self.hold_on();
        self.wait = Some(Wait::GivenUp);
        Some(Verdict::Hold)
    }
}

fn may_run_code(statement: &Statement) -> bool {
    // What is committed has run nothing since the Admit began.
    let is_control = !matches!(statement.transaction, TransactionEffect::None | TransactionEffect::PrepareTransaction);
    let runs_none = matches!(statement.kind, StatementKind::Set | StatementKind::Reset | StatementKind::Prepare)
        || statement.kind.is_discard();
    !(is_control || runs_none || statement.runs_nothing() || statement.only_reads())
}

/// As SHOW says it: a whole number and its unit.
fn duration(value: &str) -> Option<Duration> {
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let milliseconds: u64 = match &value[end..] {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(value[..end].parse::<u64>().ok()?.checked_mul(milliseconds)?))
}
