//! The verdict on the current message: it is forwarded, rejected, or held back until more is known.
//!
//! Owns the waiting for that. Must never forward a write that is not admitted.

use super::checks::checks;
use super::host::{Seen, Wanted};
use super::judge::{Decision, Judge, Need, Standing, is_named_plainly, needs_every_token, resolve};
use super::path::Lookup;
use super::rejection::Rejection;
use super::suspects::Suspects;
use super::touched::deeds;
use super::transaction::Pipeline;
use super::{Asked, Host, Session, Task, Wait};
use crate::fence::session::{Activity, Epoch, SessionFence, Token};
use crate::fence::{Claim, Deed, Refusal, Role};
use crate::policy::Mode;
use crate::statement::{Operation, Statement};
use crate::wire::message::{self, Status};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// About the longest time that statements are held back for a reading of the catalogue.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(5);
/// The same where all fences only observe: better one observation less than a statement that waits.
const CATCH_UP_TO_OBSERVE: Duration = Duration::from_millis(500);

/// The most admissions in one task; then the message is judged again.
const MOST_AT_ONCE: usize = 256;

/// The most looks at the other sessions' suspects. Where some end between all looks, those that have ended count after these.
const MOST_SURVEYS: usize = 4;

/// More statements, writes and calls than this take long enough to judge for other sessions on the thread to notice.
const MANY: usize = 200;

/// What is to be done with the message at hand.
pub(super) enum Verdict {
    Forward,
    Reject(usize, Rejection),
    Hold,
}

/// Which run of the message's statements it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// What they write is to be counted.
    Begins,
    /// More of the rows of a portal: what it writes was counted when it began.
    GoesOn,
}

impl<H: Host> Session<H> {
    /// Judges statements; where something has to be found out first, starts to.
    pub(super) fn judge(&mut self, statements: &[Arc<Statement>], run: Run) -> (Verdict, Vec<Arc<Statement>>) {
        let size = |it: &Arc<Statement>| 1 + it.writes.len() + it.functions.len() + it.redirects.len();
        match statements.iter().map(size).sum::<usize>() > MANY {
            true => H::at_length(|| self.judge_all(statements, run)),
            false => self.judge_all(statements, run),
        }
    }

    fn judge_all(&mut self, statements: &[Arc<Statement>], run: Run) -> (Verdict, Vec<Arc<Statement>>) {
        let Some(mut resolved) = resolve(statements, &self.statements, &self.portals, self.batch) else {
            return (self.settle(), statements.to_vec());
        };
        // Whatever the token, the catalogue and other sessions are: see `no_fact_matters_to_what_only_reads`.
        if resolved.iter().all(|statement| statement.only_reads()) && !self.host.policies().has_functions() {
            return (Verdict::Forward, resolved);
        }
        if let Some(verdict) = self.behind_given_up(&resolved) {
            return (verdict, resolved);
        }
        let writes = resolved.iter().any(|statement| self.may_write(statement));
        if writes && (self.replies.change_catalogue() || self.replies.reject()) {
            // What is under way may make what this writes a way to a fenced table. Or this may never run: nobody is to be
            // admitted, nor a token raised, for what the server skips.
            return (self.settle(), resolved);
        }
        if matches!(self.pending.refused, Some(Refusal::RoleUnknown { .. })) {
            self.pending.refused = None;
            self.pending.role = Asked::Due;
        }
        let lookup = if self.is_extended() { Lookup::AtExecute } else { Lookup::InString };
        if let Some(verdict) = self.by_path(&mut resolved, lookup) {
            return (verdict, resolved);
        }
        if let Some(verdict) = self.look_after_database(&resolved) {
            return (verdict, resolved);
        }
        if self.pending.role == Asked::Due {
            return (self.ask_for_role(), resolved);
        }
        let Some((others, seen)) = self.survey(&resolved) else { return (Verdict::Hold, resolved) };
        let judge = Judge {
            policies: self.host.policies(),
            standing: &StandingOf { fence: &self.fence, host: &self.host },
            seen: &seen,
            changes_catalogue: self.transaction.catalogue_changed && self.definitions.concern_fences(),
            shadows_keys: self.definitions.shadow_keys(),
            path: self.pending.path.as_deref(),
            suspects: self.definitions.own(),
            suspects_of_others: &others,
            exempt: self.host.policies().exempts(self.host.user()),
            opaque: self.host.policies().opaque_of(self.host.user()),
            parameter: &self.parameter,
            owed: !self.replies.is_empty(),
            parameter_in_doubt: !self.replies.is_empty()
                && (self.replies.affect_parameter() || !self.parameter.is_settled()),
            written: &self.transaction.written,
            past: &self.transaction.past,
            refused: self.pending.refused.as_ref(),
        };
        let decision = judge.statements(&resolved);
        let is_told = match &decision {
            Decision::Forward(_, passed) => !passed.is_empty(),
            Decision::Reject(..) => true,
            Decision::Settle | Decision::ReadValue | Decision::ReadRows => false,
        };
        if is_told && !self.replies.is_empty() && resolved.iter().any(|statement| statement.is_unread()) {
            // What is under way may say that there is a mistake in it; or so will the answer to it, which has to be known then.
            return (self.settle(), resolved);
        }
        self.pending.checks = match &decision {
            Decision::Forward(needs, _) => checks(needs, &resolved),
            _ => Vec::new(),
        };
        let verdict = match decision {
            Decision::Forward(needs, passed) => {
                let verdict = self.forward_when_admitted(needs, run, &seen);
                if matches!(verdict, Verdict::Forward) && run == Run::Begins {
                    self.note_passed(&resolved, passed);
                }
                verdict
            }
            Decision::Reject(index, rejection, needs) => match self.forward_when_admitted(needs, run, &seen) {
                Verdict::Forward => Verdict::Reject(index, rejection),
                hold => hold,
            },
            Decision::Settle => self.settle(),
            Decision::ReadRows => {
                self.pending.with_rows = true;
                Verdict::Hold
            }
            Decision::ReadValue if !self.replies.is_empty() => self.settle(),
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
            self.definitions.note(statement, &seen, &self.host);
        }
        if matches!(verdict, Verdict::Hold) {
            // What others change until it goes on may be over by then.
            self.pending.changes = None;
        }
        (verdict, resolved)
    }

    /// What others are defining, and what is known of the catalogue, in this order: a definition is in one of the two. None
    /// while the catalogue is to be read first.
    fn survey(&mut self, statements: &[Arc<Statement>]) -> Option<(Vec<Arc<Suspects>>, Seen)> {
        let mut surveys = 0;
        loop {
            let others = self.host.suspects_of_others();
            let wanted = self.wanted(statements, &others);
            let mut seen = self.host.catalogue(wanted.as_ref());
            if let Some(wanted) = wanted
                && statements.iter().any(|statement| self.depends_on_catalogue(statement, &others, &seen))
            {
                if let Some(task) = self.first(&wanted) {
                    self.ask_for(task);
                    return None;
                }
                // It may have been read just now.
                seen = self.host.catalogue(Some(&wanted));
            }
            // A definition that was read meanwhile would count twice: as one, and as what it has become.
            let is_same = |now: Vec<Arc<Suspects>>| {
                now.len() == others.len() && now.iter().zip(&others).all(|(one, other)| Arc::ptr_eq(one, other))
            };
            surveys += 1;
            if others.is_empty() || surveys == MOST_SURVEYS || is_same(self.host.suspects_of_others()) {
                return Some((others, seen));
            }
        }
    }

    /// It may need a token, whatever the catalogue makes of it.
    pub(super) fn may_need_token(&self, statement: &Statement) -> bool {
        self.may_write(statement) || self.host.policies().has_functions() && !statement.functions.is_empty()
    }

    /// Its portal waits outside of a transaction, and the server may refuse it behind an Execute of ours.
    pub(super) fn may_stand_alone(&self, statement: &Statement) -> bool {
        let is_alone = self.transaction.status == Status::Idle && self.transaction.pipeline == Pipeline::Bound;
        self.is_extended() && is_alone && statement.may_commit()
    }

    /// It may write a fenced table, whatever the catalogue makes of it.
    fn may_write(&self, statement: &Statement) -> bool {
        let reads = || self.host.policies().has_functions() && (!statement.reads.is_empty() || statement.reads_more);
        !statement.writes.is_empty() || statement.opaque.is_some() || reads()
    }

    /// What has to be known of the catalogue to judge these statements; None where their text is enough, whatever the
    /// catalogue has become. Others may change it again as soon as it is read: what was seen when the message came has to be
    /// in it, or that would have no end.
    pub(super) fn wanted(&mut self, statements: &[Arc<Statement>], others: &[Arc<Suspects>]) -> Option<Wanted> {
        let policies = self.host.policies();
        let calls = |it: &Statement| policies.has_functions() && !it.functions.is_empty();
        let is_concerned = |it: &Arc<Statement>| {
            (self.may_write(it) || it.changes_catalogue || calls(it))
                && !(others.is_empty() && needs_every_token(it, policies))
        };
        if !statements.iter().any(is_concerned) {
            return None;
        }
        let since = *self.pending.changes.get_or_insert_with(|| self.host.changes());
        let cascades = statements.iter().flat_map(|it| &it.writes).any(|write| write.operation == Operation::Cascade);
        let is_plain = statements.iter().all(|it| is_named_plainly(it, policies));
        Some(Wanted { since, temporary: self.temporary.clone(), cascades, is_plain })
    }

    /// What has changed in the catalogue may make another verdict of it.
    fn depends_on_catalogue(&self, statement: &Statement, others: &[Arc<Suspects>], seen: &Seen) -> bool {
        let is_suspect = || others.iter().any(|it| it.written_by(statement, &seen.catalogue).is_some());
        (self.may_write(statement) || statement.changes_catalogue)
            && (!needs_every_token(statement, self.host.policies()) || is_suspect())
    }

    /// What has to be done before the statements at hand can be judged.
    fn first(&mut self, wanted: &Wanted) -> Option<Task> {
        let since = *self.pending.since.get_or_insert(self.now);
        let limit = if self.host.policies().enforces() { CATCH_UP_LIMIT } else { CATCH_UP_TO_OBSERVE };
        let left = limit.saturating_sub(self.now.saturating_duration_since(since));
        (!left.is_zero() && self.host.is_unread(wanted)).then(|| Task::CatchUp(wanted.clone(), left))
    }

    /// If a statement needs a database alone, gets the control connections to it out of its way. A role that may not run the
    /// statement gets the server's error from the proxy: the server would first wait for a lock on the database, and keep
    /// everybody from logging in meanwhile.
    fn look_after_database(&mut self, statements: &[Arc<Statement>]) -> Option<Verdict> {
        let [statement] = statements else { return None };
        let wanted = statement.needs_database_alone.clone()?;
        if let Some(is_permitted) = self.pending.alone {
            let denied = || Verdict::Reject(0, Rejection::NotOwner { database: wanted.database });
            return (!is_permitted).then(denied);
        }
        if !self.replies.is_empty() {
            return Some(self.settle());
        }
        if self.transaction.status != Status::Idle || self.transaction.pipeline == Pipeline::Executed {
            return None;
        }
        let role = match &self.pending.role {
            Asked::Answered(role) => role.clone(),
            // The server does not run it in a pipeline, which an Execute of ours would begin.
            _ if self.is_extended() => self.any_role(),
            Asked::Not | Asked::Due => return Some(self.ask_for_role()),
        };
        self.ask_for(Task::LeaveAlone(wanted, role));
        Some(Verdict::Hold)
    }

    fn forward_when_admitted(&mut self, needs: Vec<Need>, run: Run, seen: &Seen) -> Verdict {
        let (needs, observed): (Vec<Need>, Vec<Need>) =
            needs.into_iter().partition(|need| need.resource.mode == Mode::Enforce);
        if needs.is_empty()
            || self.fence.begin_write(needs.iter().map(|need| (need.resource.name.as_str(), need.token)))
        {
            if !needs.is_empty() {
                self.activity = Activity::Busy;
                self.replies.admitted();
            }
            if run == Run::Begins {
                for need in observed {
                    let deeds = self.deeds(&need, seen);
                    let claim = self.claim_of(deeds, Some(self.any_role()));
                    self.transaction.past.written.insert(need.resource.name.clone(), need.token);
                    self.transaction.past.admitted = Some(need.resource.clone());
                    self.host.observe(need, claim);
                }
                needs.iter().for_each(|need| self.host.note_admitted(&need.resource));
            }
            self.transaction.written.extend(needs.into_iter().map(|need| (need.resource.name.clone(), need.token)));
            return Verdict::Forward;
        }
        if self.fence.is_full() && !self.replies.is_empty() {
            // It gives up other admissions first, which it can only when the process is idle.
            return self.settle();
        }
        let lacks =
            |need: &Need| self.fence.admission(&need.resource.name).is_none_or(|epoch| epoch.token != need.token);
        // All that there is to know before it is worth judging again, from the first statement on.
        let lacking: Vec<Need> = needs.iter().filter(|need| lacks(need)).take(MOST_AT_ONCE).cloned().collect();
        let lacking = if lacking.is_empty() { needs[..1].to_vec() } else { lacking };
        let lacking = self.with_claims(lacking, seen);
        // An Admit that raises the token looks at what the process does.
        self.note_activity();
        self.ask_for(Task::Admit(lacking));
        Verdict::Hold
    }

    /// What is needed, and on what ground it may be raised. What a statement does is the same for all keys of a resource.
    fn with_claims(&self, needs: Vec<Need>, seen: &Seen) -> Vec<(Need, Claim)> {
        let mut known: HashMap<(*const Statement, String), Arc<[Deed]>> = HashMap::new();
        let with_claim = |need: Need| {
            let role = match &self.pending.role {
                _ if self.may_stand_alone(&need.statement) => Some(self.any_role()),
                _ if need.role_changes => Some(self.any_role()),
                Asked::Answered(role) => Some(role.clone()),
                Asked::Not | Asked::Due => None,
            };
            let place = (Arc::as_ptr(&need.statement), need.resource.lock_name().to_owned());
            let deeds = known.entry(place).or_insert_with(|| self.deeds(&need, seen)).clone();
            (need, self.claim_of(deeds, role))
        };
        needs.into_iter().map(with_claim).collect()
    }

    fn claim_of(&self, deeds: Arc<[Deed]>, role: Option<Role>) -> Claim {
        Claim { deeds, one_suffices: false, role, login: self.host.user().to_owned() }
    }

    fn deeds(&self, need: &Need, seen: &Seen) -> Arc<[Deed]> {
        deeds(&need.statement, self.host.policies(), seen, &need.resource)
    }

    /// Holds the message at hand until the server owes nothing. While it waits for COPY data that would never be: it
    /// refuses the message by itself, and in case that COPY has failed meanwhile, ours takes its place.
    pub(super) fn settle(&mut self) -> Verdict {
        if self.replies.is_copying_in() {
            let why = "it was sent during COPY FROM STDIN".to_owned();
            return Verdict::Reject(0, Rejection::Unverifiable { why, hint: "End the COPY first." });
        }
        if self.replies.needs_flush() {
            self.note_forwarding();
            message::put_flush(&mut self.server.output);
        }
        self.wait = Some(Wait::Settle);
        Verdict::Hold
    }
}

/// As the session's fence and the proxy know it.
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
