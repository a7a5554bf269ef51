//! Messages that wait for a task while a timeout of the server runs: `idle_in_transaction_session_timeout`,
//! `idle_session_timeout` and `transaction_timeout` end sessions, and the server does not know that the client waits.
//!
//! Owns when such a timeout is restarted, and when an Admit is abandoned because of one. An abandoned Admit continues:
//! until it has ended, the session must never forward a message that runs code.

use super::host::Host;
use super::message::{Limit, ServerFact, Stage, Verdict};
use super::rejection::Rejection;
use super::session::Session;
use super::task::Task;
use fencegate_fence::{FenceError, Obstacle};
use fencegate_statement::{Statement, StatementKind, TransactionEffect};
use fencegate_wire::message::{self, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a message waits before the session queries the timeouts. Most Admits take a round trip or two.
const PATIENCE: Duration = Duration::from_millis(10);

/// Maximum time between abandoning an Admit and the timeout. A tenth of the timeout, if that is shorter.
const MARGIN: Duration = Duration::from_millis(200);

/// The first release that has `transaction_timeout`, and the first that has `idle_session_timeout`.
const HAS_TRANSACTION_TIMEOUT: u8 = 17;
const HAS_IDLE_SESSION_TIMEOUT: u8 = 14;

const IN_TRANSACTION: &str = "idle_in_transaction_session_timeout";
const OUTSIDE: &str = "idle_session_timeout";
const WHOLE: &str = "transaction_timeout";

impl<H: Host> Session<H> {
    /// The message at hand waits until the driver has performed this task.
    pub(super) fn request(&mut self, task: Task) {
        self.message.hold.begin(self.pipeline.now());
        if let Task::Admit(needs) = &task {
            let resource = needs.first().map_or_else(String::new, |(need, _)| need.resource.name.clone());
            let stands_alone = needs.iter().any(|(need, _)| self.may_stand_alone(&need.statement));
            self.process.begin_admit(resource, stands_alone);
        }
        self.message.set_stage(Stage::Requesting(Box::new(task)));
    }

    /// When a step is due without an event.
    pub fn wakes_at(&self) -> Option<Instant> {
        let hold = &self.message.hold;
        let since = hold.since.filter(|_| self.message.waits_for_task())?;
        match &hold.limit {
            // The owed replies may follow messages that the server does not answer yet.
            ServerFact::NotQueried if !self.pipeline.is_empty() && (hold.flushed || !self.pipeline.needs_flush()) => {
                None
            }
            ServerFact::NotQueried => Some(since + PATIENCE),
            ServerFact::Due => None,
            ServerFact::Known(limit) => limit.as_ref().filter(|_| self.can_abandon_wait()).map(|limit| limit.at),
        }
    }

    /// Handles expired deadlines: the current message has waited for long, or must not wait longer.
    pub(super) fn handle_timeouts(&mut self) {
        if self.wakes_at().is_none_or(|at| self.pipeline.now() < at) {
            return;
        }
        match &self.message.hold.limit {
            ServerFact::Known(Some(limit)) => {
                let limit = limit.clone();
                self.abandon_wait(&limit);
            }
            _ if !self.pipeline.is_empty() => {
                self.flush();
                self.message.hold.flushed = true;
            }
            _ if self.can_query_limits() => self.query_timeouts(),
            _ => {
                self.restart_idle_timeouts();
                self.message.hold.limit = ServerFact::Known(None);
            }
        }
    }

    /// A write that the guard has refused cannot be abandoned: it waits behind the server's answer, in a transaction
    /// that has failed or ended.
    fn can_abandon_wait(&self) -> bool {
        self.message.waits_for_task() && self.process.admit().is_some() && !self.pipeline.repetition.is_refused()
    }

    fn can_query_limits(&self) -> bool {
        let may_follow = self.process.admit().is_some_and(|admit| !admit.stands_alone);
        let is_answered = self.transaction.status() != Status::Failed && !self.pipeline.is_skipping();
        self.can_abandon_wait() && may_follow && is_answered
    }

    /// Queries with SHOW, which takes no snapshot: see `question`.
    fn query_timeouts(&mut self) {
        let names = self.limits();
        let questions: Vec<String> = match self.settings.replicates {
            true => {
                let settings = names.map(|name| format!("pg_catalog.current_setting('{name}', true)"));
                vec![format!("SELECT {}", settings.collect::<Vec<_>>().join(", "))]
            }
            false => names.map(|name| format!("SHOW {name}")).collect(),
        };
        if questions.is_empty() {
            self.message.hold.limit = ServerFact::Known(None);
            return;
        }
        self.report_activity();
        self.message.hold.limit = ServerFact::Due;
        let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
        self.put_questions(&questions);
    }

    /// The timeouts that may end the session while it waits here.
    fn limits(&self) -> impl Iterator<Item = &'static str> + use<H> {
        let release = self.settings.lexing.release;
        let idle = match self.transaction.status() {
            Status::Idle => (release >= HAS_IDLE_SESSION_TIMEOUT).then_some(OUTSIDE),
            Status::Transaction | Status::Failed => Some(IN_TRANSACTION),
        };
        idle.into_iter().chain((release >= HAS_TRANSACTION_TIMEOUT).then_some(WHOLE))
    }

    /// The server has reported the values of [`Self::limits`].
    pub(super) fn take_limits(&mut self, values: Vec<Option<String>>) {
        // The query has restarted the server's idle timeout.
        self.restart_idle_timeouts();
        let is_open = self.is_in_transaction();
        let limit = |(setting, value): (&'static str, Option<String>)| {
            let began = || self.transaction.began().filter(|_| is_open);
            let since = if setting == WHOLE { began() } else { self.message.hold.since };
            let (since, value) = (since?, value?);
            let timeout = duration(&value).filter(|timeout| !timeout.is_zero())?;
            let at = since.checked_add(timeout - (timeout / 10).min(MARGIN))?;
            Some(Limit { at, setting, value })
        };
        let limit = self.limits().zip(values).filter_map(limit).min_by_key(|limit| limit.at);
        self.message.hold.limit = ServerFact::Known(limit);
    }

    /// A Flush restarts the server's idle timeout although it causes no answer. The fence does not count it as
    /// forwarded: it does nothing in a transaction.
    fn restart_idle_timeouts(&mut self) {
        if self.pipeline.sent_since().is_none() {
            message::put_flush(&mut self.server.output);
        }
    }

    /// Answers the current message with LF006. The Admit continues, so the next message waits less.
    fn abandon_wait(&mut self, Limit { setting, value, .. }: &Limit) {
        let Some(admit) = self.process.admit() else { return };
        let waits_for = self.process.fence.waits_for();
        let (resource, waits_for) = waits_for.unwrap_or_else(|| (admit.resource.clone(), Vec::new()));
        self.process.abandon_admit();
        let obstacle = Obstacle::ServerTimeout { setting, value: value.to_string(), waits_for };
        self.message.facts.refused = Some(FenceError::Unavailable { resource, obstacle });
        self.message.resume();
    }

    /// The server answers a question with an error. The current message gets that error.
    pub(super) fn abandon_hold(&mut self) {
        self.process.abandon_admit();
        self.message.hold.end();
    }

    /// Statements that run code wait for the end of an abandoned Admit, which relies on the session writing nothing
    /// meanwhile.
    pub(super) fn wait_behind_admit(&mut self, statements: &[Arc<Statement>]) -> Option<Verdict> {
        if !self.process.has_abandoned_admit() {
            return None;
        }
        let index = statements.iter().position(|it| !self.settings.parameter.refuses(it) && may_run_code(it))?;
        let stands_alone = self.may_stand_alone(&statements[index]);
        if let Some(refusal) = &self.message.facts.refused {
            return Some(Verdict::Reject(index, Rejection::from(refusal.clone())));
        }
        if let Some(admit) = self.process.admit_mut() {
            admit.stands_alone = stands_alone;
        }
        self.message.hold.begin(self.pipeline.now());
        self.message.set_stage(Stage::BehindAdmit);
        Some(Verdict::Hold)
    }
}

fn may_run_code(statement: &Statement) -> bool {
    // The committed transaction has run nothing since the Admit began.
    let is_control = !matches!(statement.transaction, TransactionEffect::None | TransactionEffect::PrepareTransaction);
    let runs_none = matches!(statement.kind, StatementKind::Set | StatementKind::Reset | StatementKind::Prepare)
        || statement.kind.is_discard();
    !(is_control || runs_none || statement.runs_nothing() || statement.only_reads())
}

/// Reads a duration as SHOW reports it: a whole number and its unit.
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
