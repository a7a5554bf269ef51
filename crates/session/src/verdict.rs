//! The verdict on the current message: forward it, reject it, or hold it back until more is known.
//!
//! Owns the order in which facts are found out, and the wait for admissions. Must never forward a write that is not
//! admitted.

use super::affected::privileges;
use super::host::Host;
use super::judge::need::Need;
use super::judge::{Decision, Judge, Standing, resolve};
use super::message::{ServerFact, Verdict};
use super::path_lookup::Lookup;
use super::pending_definitions::{CatalogView, PendingDefinitions};
use super::pipeline::{Part, checks};
use super::session::Session;
use super::task::Task;
use fencegate_fence::session::{Epoch, MOST_AT_ONCE, SessionFence, Token};
use fencegate_fence::{Claim, FenceError, RequiredPrivilege, Role};
use fencegate_policy::Mode;
use fencegate_statement::Statement;
use fencegate_wire::message::Status;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of statements, writes and calls beyond which judging would noticeably delay other sessions of the thread.
const MANY: usize = 200;

/// Which run of the statements is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// The first run: writes are counted.
    Begins,
    /// More rows of a portal, whose writes were counted when it began.
    GoesOn,
}

impl<H: Host> Session<H> {
    /// Judges statements. Requests missing facts first.
    pub(super) fn judge(&mut self, statements: &[Arc<Statement>], run: Run) -> (Verdict, Vec<Arc<Statement>>) {
        let size = |it: &Arc<Statement>| 1 + it.writes.len() + it.functions.len() + it.redirects.len();
        match statements.iter().map(size).sum::<usize>() > MANY {
            true => H::without_delaying_others(|| self.judge_all(statements, run)),
            false => self.judge_all(statements, run),
        }
    }

    fn judge_all(&mut self, statements: &[Arc<Statement>], run: Run) -> (Verdict, Vec<Arc<Statement>>) {
        let Some(mut resolved) = resolve(statements, &self.names, self.pipeline.batch()) else {
            return (self.settle(), statements.to_vec());
        };
        if resolved.iter().all(|statement| self.needs_no_verdict(statement)) {
            return (Verdict::Forward, resolved);
        }
        if let Some(verdict) = self.find_out_facts(&mut resolved) {
            return (verdict, resolved);
        }
        let verdict = match self.survey(&resolved) {
            Some((others, seen)) => self.judge_by(&resolved, run, &others, &seen),
            None => Verdict::Hold,
        };
        (verdict, resolved)
    }

    /// Finds out the facts about the session that the judge needs: first whether the statements may run at all, then the
    /// path, the owner of a database, and the role. Returns a verdict if the statements cannot be judged yet.
    fn find_out_facts(&mut self, statements: &mut [Arc<Statement>]) -> Option<Verdict> {
        if let Some(verdict) = self.wait_behind_admit(statements) {
            return Some(verdict);
        }
        let writes = statements.iter().any(|statement| self.may_need_token(statement));
        if writes && (self.pipeline.may_change_catalog() || self.pipeline.holds_rejection()) {
            // A pending definition may make the written relation a way to a fenced table. After a rejection the server
            // may skip the statement, and a statement that never runs must raise no token.
            return Some(self.settle());
        }
        let facts = &mut self.message.facts;
        if matches!(facts.refused, Some(FenceError::RoleUnknown { .. })) {
            facts.refused = None;
            facts.role = ServerFact::Due;
        }
        let lookup = if self.is_extended() { Lookup::AtExecute } else { Lookup::InString };
        if let Some(verdict) = self.resolve_by_path(statements, lookup) {
            return Some(verdict);
        }
        if let Some(verdict) = self.prepare_databases(statements) {
            return Some(verdict);
        }
        (self.message.facts.role == ServerFact::Due).then(|| self.query_role())
    }

    /// Judges statements by the known facts, and carries out the decision.
    fn judge_by(
        &mut self,
        statements: &[Arc<Statement>],
        run: Run,
        others: &[Arc<PendingDefinitions>],
        seen: &CatalogView,
    ) -> Verdict {
        let decision = self.decide(statements, others, seen);
        let is_reported = match &decision {
            Decision::Forward(_, passed) => !passed.is_empty(),
            Decision::Reject(..) => true,
            Decision::Settle | Decision::ReadValue | Decision::ReadRows => false,
        };
        if is_reported && !self.pipeline.is_empty() && statements.iter().any(|statement| statement.is_unread()) {
            // The server may report a syntax error in the text, which the proxy must recognize.
            return self.settle();
        }
        self.message.checks = match &decision {
            Decision::Forward(needs, _) => checks(needs, statements),
            _ => Vec::new(),
        };
        let verdict = self.carry_out(decision, statements, run, seen);
        let forwarded = match verdict {
            Verdict::Forward => statements.len(),
            Verdict::Reject(index, _) => index,
            Verdict::Hold => 0,
        };
        for statement in &statements[..forwarded] {
            self.transaction.definitions_mut().note(statement, seen, &self.host);
        }
        if matches!(verdict, Verdict::Hold) {
            // Changes by other sessions may have ended when the message is judged again.
            self.message.facts.changes = None;
        }
        verdict
    }

    fn decide(
        &self,
        statements: &[Arc<Statement>],
        others: &[Arc<PendingDefinitions>],
        seen: &CatalogView,
    ) -> Decision {
        let judge = Judge {
            policies: self.host.policies(),
            standing: &StandingOf { fence: &self.process.fence, host: &self.host },
            seen,
            changes_catalog: self.transaction.changes_fenced_catalog(),
            shadows_keys: self.transaction.definitions().shadow_keys(),
            path: self.message.facts.path.as_deref(),
            pending: self.transaction.definitions().own(),
            definitions_of_others: others,
            exempt: self.host.policies().exempts(self.host.user()),
            opaque: self.host.policies().opaque_of(self.host.user()),
            parameter: &self.settings.parameter,
            owed: !self.pipeline.is_empty(),
            parameter_in_doubt: !self.pipeline.is_empty()
                && (self.pipeline.may_change_parameter() || !self.settings.parameter.is_settled()),
            written: self.transaction.written(),
            observed: self.transaction.observed(),
            refused: self.message.facts.refused.as_ref(),
            foreign_databases: self.message.facts.foreign_databases.as_ref(),
        };
        judge.statements(statements)
    }

    fn carry_out(
        &mut self,
        decision: Decision,
        statements: &[Arc<Statement>],
        run: Run,
        seen: &CatalogView,
    ) -> Verdict {
        match decision {
            Decision::Forward(needs, passed) => {
                let verdict = self.forward_when_admitted(needs, run, seen);
                if matches!(verdict, Verdict::Forward) && run == Run::Begins {
                    self.report_passed(statements, passed);
                }
                verdict
            }
            Decision::Reject(index, rejection, needs) => match self.forward_when_admitted(needs, run, seen) {
                Verdict::Forward => Verdict::Reject(index, rejection),
                hold => hold,
            },
            Decision::Settle => self.settle(),
            Decision::ReadRows => {
                self.message.text.with_rows = true;
                Verdict::Hold
            }
            Decision::ReadValue if !self.pipeline.is_empty() => self.settle(),
            Decision::ReadValue => {
                self.ask();
                Verdict::Hold
            }
        }
    }

    /// Returns true for a statement that only reads. Its verdict depends on no fact: see the test
    /// `a_read_only_statement_is_always_forwarded`.
    pub(super) fn needs_no_verdict(&self, statement: &Statement) -> bool {
        statement.only_reads() && !self.host.policies().has_functions()
    }

    /// Returns true if the statement may need a token, whatever the catalog contains: it may write a fenced table, or call a
    /// function of the policies.
    pub(super) fn may_need_token(&self, statement: &Statement) -> bool {
        let may_call = || !statement.reads.is_empty() || statement.reads_more || !statement.functions.is_empty();
        let may_write = !statement.writes.is_empty() || statement.opaque.is_some();
        may_write || self.host.policies().has_functions() && may_call()
    }

    /// Returns true if the statement's portal waits outside of a transaction, and the server may refuse the statement
    /// after an Execute of the proxy.
    pub(super) fn may_stand_alone(&self, statement: &Statement) -> bool {
        let is_alone = self.transaction.status() == Status::Idle && self.pipeline.part() == Part::Bound;
        self.is_extended() && is_alone && statement.may_commit()
    }

    fn forward_when_admitted(&mut self, needs: Vec<Need>, run: Run, seen: &CatalogView) -> Verdict {
        let (needs, observed): (Vec<Need>, Vec<Need>) =
            needs.into_iter().partition(|need| need.resource.mode == Mode::Enforce);
        if needs.is_empty()
            || self.process.fence.begin_write(needs.iter().map(|need| (need.resource.name.as_str(), need.token)))
        {
            if !needs.is_empty() {
                self.process.write_begun();
            }
            if !needs.is_empty() || !observed.is_empty() {
                self.pipeline.note_fenced();
            }
            if run == Run::Begins {
                for need in observed {
                    let privileges = self.privileges(&need, seen);
                    let claim = self.claim_of(privileges, Some(self.any_role()));
                    self.transaction.note_observed(&need);
                    self.host.observe(need, claim);
                }
                needs.iter().for_each(|need| self.host.note_admitted(&need.resource));
            }
            self.transaction.note_written(needs);
            return Verdict::Forward;
        }
        if self.process.fence.is_full() && !self.pipeline.is_empty() {
            // The session first gives up other admissions, which requires an idle process.
            return self.settle();
        }
        let lacks = |need: &Need| {
            self.process.fence.admission(&need.resource.name).is_none_or(|epoch| epoch.token != need.token)
        };
        // Request all missing admissions, up to the limit of a transaction, before judging again.
        let lacking: Vec<Need> = needs.iter().filter(|need| lacks(need)).take(MOST_AT_ONCE).cloned().collect();
        let lacking = if lacking.is_empty() { needs[..1].to_vec() } else { lacking };
        let lacking = self.with_claims(lacking, seen);
        // An Admit that raises the token looks at the activity of the process.
        self.report_activity();
        self.request(Task::Admit(lacking));
        Verdict::Hold
    }

    /// The needs, each with the grounds for raising its token. All keys of a resource have the same grounds.
    fn with_claims(&self, needs: Vec<Need>, seen: &CatalogView) -> Vec<(Need, Claim)> {
        let mut known: HashMap<(*const Statement, String), Arc<[RequiredPrivilege]>> = HashMap::new();
        let with_claim = |need: Need| {
            let role = match &self.message.facts.role {
                _ if self.may_stand_alone(&need.statement) => Some(self.any_role()),
                _ if need.role_changes => Some(self.any_role()),
                ServerFact::Known(role) => Some(role.clone()),
                ServerFact::NotQueried | ServerFact::Due => None,
            };
            let place = (Arc::as_ptr(&need.statement), need.resource.lock_name().to_owned());
            let privileges = known.entry(place).or_insert_with(|| self.privileges(&need, seen)).clone();
            (need, self.claim_of(privileges, role))
        };
        needs.into_iter().map(with_claim).collect()
    }

    fn claim_of(&self, privileges: Arc<[RequiredPrivilege]>, role: Option<Role>) -> Claim {
        Claim { privileges, one_suffices: false, role, login: self.host.user().to_owned() }
    }

    fn privileges(&self, need: &Need, seen: &CatalogView) -> Arc<[RequiredPrivilege]> {
        privileges(&need.statement, self.host.policies(), seen, &need.resource)
    }
}

/// The session's admissions, and the proxy's knowledge of the fences.
struct StandingOf<'a, H> {
    fence: &'a SessionFence,
    host: &'a H,
}

impl<H: Host> Standing for StandingOf<'_, H> {
    fn admitted(&self, resource: &str) -> Option<Token> {
        self.fence.admission(resource).map(|epoch| epoch.token)
    }

    fn holds_admissions(&self) -> bool {
        self.fence.holds_admissions()
    }

    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        self.host.known_stale(resource, token)
    }
}
