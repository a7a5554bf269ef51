//! The verdict on the current message: forward it, reject it, or hold it back until more is known.
//!
//! Owns the wait for missing facts, and the steps before DROP DATABASE and similar statements, which need a database
//! without other connections. Must never forward a write that is not admitted, nor close control connections for a
//! statement that cannot run.

use super::affected::privileges;
use super::host::Host;
use super::judge::need::Need;
use super::judge::{Decision, Judge, Standing, is_named_plainly, needs_every_token, resolve};
use super::message::{ServerFact, Verdict};
use super::path_lookup::Lookup;
use super::pending_definitions::{CatalogRequest, CatalogView, PendingDefinitions};
use super::pipeline::{Part, checks};
use super::session::Session;
use super::task::Task;
use fencegate_fence::session::{Epoch, MOST_AT_ONCE, SessionFence, Token};
use fencegate_fence::{Claim, FenceError, RequiredPrivilege, Role};
use fencegate_policy::Mode;
use fencegate_statement::{Operation, Statement};
use fencegate_wire::message::Status;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time that statements are held back for a reading of the catalog.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(5);
/// The limit if all fences only observe: a lost observation is better than a waiting statement.
const CATCH_UP_TO_OBSERVE: Duration = Duration::from_millis(500);

/// Maximum number of admissions in one task. Then the message is judged again.
const MAX_AT_ONCE: usize = MOST_AT_ONCE;

/// Maximum number of looks at other sessions' pending definitions. If some end between all looks, they still count
/// after the last.
const MAX_SURVEYS: usize = 4;

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
        if let Some(verdict) = self.wait_behind_admit(&resolved) {
            return (verdict, resolved);
        }
        let writes = resolved.iter().any(|statement| self.may_write(statement));
        if writes && (self.pipeline.may_change_catalog() || self.pipeline.holds_rejection()) {
            // A pending definition may make the written relation a way to a fenced table. After a rejection the server
            // may skip the statement, and a statement that never runs must raise no token.
            return (self.settle(), resolved);
        }
        let facts = &mut self.message.facts;
        if matches!(facts.refused, Some(FenceError::RoleUnknown { .. })) {
            facts.refused = None;
            facts.role = ServerFact::Due;
        }
        let lookup = if self.is_extended() { Lookup::AtExecute } else { Lookup::InString };
        if let Some(verdict) = self.resolve_by_path(&mut resolved, lookup) {
            return (verdict, resolved);
        }
        if let Some(verdict) = self.prepare_databases(&resolved) {
            return (verdict, resolved);
        }
        if self.message.facts.role == ServerFact::Due {
            return (self.query_role(), resolved);
        }
        let Some((others, seen)) = self.survey(&resolved) else { return (Verdict::Hold, resolved) };
        let judge = Judge {
            policies: self.host.policies(),
            standing: &StandingOf { fence: &self.process.fence, host: &self.host },
            seen: &seen,
            changes_catalog: self.transaction.changes_fenced_catalog(),
            shadows_keys: self.transaction.definitions().shadow_keys(),
            path: self.message.facts.path.as_deref(),
            pending: self.transaction.definitions().own(),
            definitions_of_others: &others,
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
        let decision = judge.statements(&resolved);
        let is_reported = match &decision {
            Decision::Forward(_, passed) => !passed.is_empty(),
            Decision::Reject(..) => true,
            Decision::Settle | Decision::ReadValue | Decision::ReadRows => false,
        };
        if is_reported && !self.pipeline.is_empty() && resolved.iter().any(|statement| statement.is_unread()) {
            // The server may report a syntax error in the text, which the proxy must recognize.
            return (self.settle(), resolved);
        }
        self.message.checks = match &decision {
            Decision::Forward(needs, _) => checks(needs, &resolved),
            _ => Vec::new(),
        };
        let verdict = match decision {
            Decision::Forward(needs, passed) => {
                let verdict = self.forward_when_admitted(needs, run, &seen);
                if matches!(verdict, Verdict::Forward) && run == Run::Begins {
                    self.report_passed(&resolved, passed);
                }
                verdict
            }
            Decision::Reject(index, rejection, needs) => match self.forward_when_admitted(needs, run, &seen) {
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
        };
        let forwarded = match verdict {
            Verdict::Forward => resolved.len(),
            Verdict::Reject(index, _) => index,
            Verdict::Hold => 0,
        };
        for statement in &resolved[..forwarded] {
            self.transaction.definitions_mut().note(statement, &seen, &self.host);
        }
        if matches!(verdict, Verdict::Hold) {
            // Changes by other sessions may have ended when the message is judged again.
            self.message.facts.changes = None;
        }
        (verdict, resolved)
    }

    /// Returns true for a statement that only reads. Its verdict depends on no fact: see the test
    /// `a_read_only_statement_is_always_forwarded`.
    pub(super) fn needs_no_verdict(&self, statement: &Statement) -> bool {
        statement.only_reads() && !self.host.policies().has_functions()
    }

    /// Reads the pending definitions of other sessions, then the catalog: in this order, each definition is in at least
    /// one of the two. Returns `None` if the catalog must be read first.
    fn survey(&mut self, statements: &[Arc<Statement>]) -> Option<(Vec<Arc<PendingDefinitions>>, CatalogView)> {
        let mut surveys = 0;
        loop {
            let others = self.host.definitions_of_others();
            let wanted = self.wanted(statements, &others);
            let mut seen = self.host.catalog(wanted.as_ref());
            if let Some(wanted) = wanted
                && statements.iter().any(|statement| self.depends_on_catalog(statement, &others, &seen))
            {
                if let Some(task) = self.first(&wanted) {
                    self.request(task);
                    return None;
                }
                // Another session may have read it meanwhile.
                seen = self.host.catalog(Some(&wanted));
            }
            // A definition whose effect was read meanwhile would count twice: as pending, and as part of the catalog.
            let is_same = |now: Vec<Arc<PendingDefinitions>>| {
                now.len() == others.len() && now.iter().zip(&others).all(|(one, other)| Arc::ptr_eq(one, other))
            };
            surveys += 1;
            if others.is_empty() || surveys == MAX_SURVEYS || is_same(self.host.definitions_of_others()) {
                return Some((others, seen));
            }
        }
    }

    /// Returns true if the statement may need a token, whatever the catalog contains.
    pub(super) fn may_need_token(&self, statement: &Statement) -> bool {
        self.may_write(statement) || self.host.policies().has_functions() && !statement.functions.is_empty()
    }

    /// Returns true if the statement's portal waits outside of a transaction, and the server may refuse the statement
    /// after an Execute of the proxy.
    pub(super) fn may_stand_alone(&self, statement: &Statement) -> bool {
        let is_alone = self.transaction.status() == Status::Idle && self.pipeline.part() == Part::Bound;
        self.is_extended() && is_alone && statement.may_commit()
    }

    /// Returns true if the statement may write a fenced table, or call a function of the policies, whatever the catalog
    /// contains.
    fn may_write(&self, statement: &Statement) -> bool {
        let runs_code = || !statement.reads.is_empty() || statement.reads_more || statement.calls_code();
        let may_call = || self.host.policies().has_functions() && runs_code();
        !statement.writes.is_empty() || statement.opaque.is_some() || may_call()
    }

    /// The part of the catalog that is needed to judge these statements; `None` if their text suffices. A reading needs
    /// to cover only the changes seen when the message arrived: other sessions may keep changing the catalog, and the
    /// wait would never end.
    pub(super) fn wanted(
        &mut self,
        statements: &[Arc<Statement>],
        others: &[Arc<PendingDefinitions>],
    ) -> Option<CatalogRequest> {
        let policies = self.host.policies();
        let calls = |it: &Statement| policies.has_functions() && !it.functions.is_empty();
        let is_concerned = |it: &Arc<Statement>| {
            (self.may_write(it) || it.changes_catalog || calls(it))
                && !(others.is_empty() && needs_every_token(it, policies))
        };
        if !statements.iter().any(is_concerned) {
            return None;
        }
        let since = *self.message.facts.changes.get_or_insert_with(|| self.host.changes());
        let cascades = statements.iter().flat_map(|it| &it.writes).any(|write| write.operation == Operation::Cascade);
        let is_plain = statements.iter().all(|it| is_named_plainly(it, policies));
        Some(CatalogRequest { since, temporary: self.settings.temporary.clone(), cascades, is_plain })
    }

    /// Returns true if catalog changes may change the verdict.
    fn depends_on_catalog(
        &self,
        statement: &Statement,
        others: &[Arc<PendingDefinitions>],
        seen: &CatalogView,
    ) -> bool {
        let is_suspect = || others.iter().any(|it| it.written_by(statement, &seen.catalog).is_some());
        (self.may_write(statement) || statement.changes_catalog)
            && (!needs_every_token(statement, self.host.policies()) || is_suspect())
    }

    /// The task to perform before the statements can be judged.
    fn first(&mut self, wanted: &CatalogRequest) -> Option<Task> {
        let now = self.pipeline.now();
        let since = *self.message.facts.judged_since.get_or_insert(now);
        let limit = if self.host.policies().enforces() { CATCH_UP_LIMIT } else { CATCH_UP_TO_OBSERVE };
        let left = limit.saturating_sub(now.saturating_duration_since(since));
        (!left.is_zero() && self.host.is_unread(wanted)).then(|| Task::CatchUp(wanted.clone(), left))
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
        // Request all missing admissions up to the limit before judging again.
        let lacking: Vec<Need> = needs.iter().filter(|need| lacks(need)).take(MAX_AT_ONCE).cloned().collect();
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

impl<H: Host> Session<H> {
    /// Finds out which of the databases belong to others: the server would lock a database before it checks the role,
    /// and while it waits for that lock, all logins to the database block. Then closes the control connections to the
    /// database, if the statement can run. Returns `None` when nothing is left to do.
    pub(super) fn prepare_databases(&mut self, statements: &[Arc<Statement>]) -> Option<Verdict> {
        let last = statements.iter().rposition(|it| it.needs_database_alone.is_some())?;
        let owned: HashSet<&str> = statements.iter().filter_map(|it| it.database_to_own()).collect();
        if owned.is_empty() && statements.len() > 1 {
            return None;
        }
        if !self.pipeline.is_empty() {
            return Some(self.settle());
        }
        let facts = &self.message.facts;
        let is_unchecked = facts.foreign_databases.is_none() && !owned.is_empty();
        let is_foreign = facts.foreign_databases.as_ref().is_some_and(|foreign| !foreign.is_empty());
        let can_run = self.transaction.status() == Status::Idle && self.pipeline.part() != Part::Executed;
        let is_to_vacate = statements.len() == 1 && can_run && !is_foreign && !facts.is_vacated;
        if self.settings.parameter.refuses(&statements[0]) || !is_unchecked && !is_to_vacate {
            return None;
        }
        // Earlier statements of the string may change the role. After an Execute of the proxy, which begins a pipeline,
        // the server refuses some of these statements.
        let role = match &facts.role {
            _ if statements[..last].iter().any(|it| it.may_change_role()) => self.any_role(),
            ServerFact::Known(role) => role.clone(),
            ServerFact::NotQueried | ServerFact::Due if self.is_extended() => self.any_role(),
            ServerFact::NotQueried | ServerFact::Due => return Some(self.query_role()),
        };
        self.request(match &statements[last].needs_database_alone {
            Some(wanted) if !is_unchecked => Task::VacateDatabase(wanted.clone(), role),
            _ => Task::CheckOwner(owned.into_iter().map(str::to_owned).collect(), role),
        });
        Some(Verdict::Hold)
    }
}
