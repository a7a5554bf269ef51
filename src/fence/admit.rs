//! Admit: may this server process write the resource under this token?
//!
//! Owns the decision, by one Query in the database. Must never take anything but that Query's
//! answer for a yes: no row, no reply, or a reply that a revocation overtook is a no. Owns giving
//! admissions up as well, of an idle session that has many; must never delete the row of a session
//! that was not revoked first.

use super::advance::Raising;
use super::authority::may_raise;
use super::control::{Answer, is_true};
use super::database::{Database, epoch, key};
use super::permission::Claim;
use super::refusal::{Hindrance, Refusal, Remedy};
use super::session::{Epoch, Identity, MOST_AT_ONCE, SessionFence, Token};
use super::sql;
use crate::policy::Resource;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long a session waits to be admitted, all that has to be drained first included.
const LIMIT: Duration = Duration::from_secs(10);

/// What the database says to one Query.
enum Verdict {
    /// The row is there; `new`: since this Query.
    Admitted {
        epoch: Epoch,
        new: bool,
    },
    /// The token is higher, or the first: the epoch to raise to, and the one there is.
    Above {
        target: Epoch,
        current: Option<Epoch>,
    },
    /// The token is the epoch's, which is not drained yet.
    Undrained(Epoch),
    Refused(Refusal),
}

/// Whether the token may be raised.
#[derive(Clone, Copy)]
enum Raise<'a> {
    Freely,
    WhoMay(&'a Claim),
    Never,
}

impl Database {
    /// Admits the session's server process to the resource under the token, raising the epoch and
    /// draining it first where needed. Once this has returned Ok, nothing with a lower token
    /// commits on the resource any more, and [`SessionFence::begin_write`] says yes.
    ///
    /// The caller holds this session's writes back until it returns. A session that was revoked
    /// meanwhile is refused. Where the policy names an election, raising asks etcd first. Takes at most about 15 s.
    ///
    /// Not cancel safe: the token may have been raised. The session is not admitted then.
    pub async fn admit(
        self: &Arc<Self>,
        session: &Arc<SessionFence>,
        resource: &Arc<Resource>,
        token: Token,
    ) -> Result<(), Refusal> {
        self.admit_if(session, resource, token, Raise::Freely).await
    }

    /// As [`Database::admit`], but the token is raised only if the server would let the session's role do what the claim says.
    pub async fn admit_who_may(
        self: &Arc<Self>,
        session: &Arc<SessionFence>,
        resource: &Arc<Resource>,
        token: Token,
        claim: &Claim,
    ) -> Result<(), Refusal> {
        self.admit_if(session, resource, token, Raise::WhoMay(claim)).await
    }

    /// As [`Database::admit`], but the token has to be the epoch's already: it raises nothing.
    pub async fn admit_in_force(
        self: &Arc<Self>,
        session: &Arc<SessionFence>,
        resource: &Arc<Resource>,
        token: Token,
    ) -> Result<(), Refusal> {
        self.admit_if(session, resource, token, Raise::Never).await
    }

    async fn admit_if(
        self: &Arc<Self>,
        session: &Arc<SessionFence>,
        resource: &Arc<Resource>,
        token: Token,
        raise: Raise<'_>,
    ) -> Result<(), Refusal> {
        let unknown = |reason: &String| Refusal::unavailable(&resource.name, reason);
        let who = session.identity.as_ref().map_err(unknown)?;
        let _one_at_a_time = session.admitting.lock().await;
        self.note_asking(who, Some((resource.name.clone(), token)));
        let outcome = self.admit_process(session, who, resource, token, raise).await;
        self.note_asking(who, None);
        outcome
    }

    async fn admit_process(
        self: &Arc<Self>,
        session: &Arc<SessionFence>,
        who: &Identity,
        resource: &Arc<Resource>,
        token: Token,
        raise: Raise<'_>,
    ) -> Result<(), Refusal> {
        let unavailable = |reason: &str| Refusal::unavailable(&resource.name, reason);
        let deadline = Instant::now() + LIMIT;
        self.make_room(session, who, resource).await?;
        let raising = Raising { session, who };
        while Instant::now() < deadline {
            if !self.sessions.contains_key(&key(who)) {
                return Err(unavailable("the session is not registered: nobody could revoke it"));
            }
            // Policies may have been loaded anew since; what is held back is judged by them again.
            let is_past = !self.resource_in_force(resource);
            let in_force = is_past.then(|| self.resource(&resource.name)).flatten();
            let resource = in_force.as_ref().unwrap_or(resource);
            let revocations = session.revocations();
            match self.verdict(who, resource, token).await? {
                Verdict::Admitted { epoch, new } => {
                    if self.record(session, who, resource, epoch, revocations) {
                        self.metrics.admissions.inc();
                        return Ok(());
                    }
                    // A drain came between the commit and here. The write was held back, so a new
                    // row was never used; the next verdict says which epoch came.
                    if new {
                        let deleted = self.look(&sql::delete_one(who, resource, epoch)).await;
                        let deleted = deleted.map_err(|error| Refusal::unavailable(&resource.name, error))?;
                        if deleted.iter().any(|answer| answer.affected > 0) {
                            self.released(&key(who), &resource.name, epoch);
                        }
                    }
                }
                Verdict::Above { current, .. } if matches!(raise, Raise::Never) => {
                    let (resource, highest) = (resource.name.clone(), current.map(|epoch| epoch.token));
                    return Err(Refusal::NotInForce { resource, presented: token, highest });
                }
                Verdict::Above { target, .. } => {
                    // Before anything is raised or anybody ended: LF003 changes nothing.
                    self.refuse_if_written(raising, resource, target).await?;
                    if let Raise::WhoMay(claim) = raise {
                        self.permits(claim, resource, token).await?;
                    }
                    // Outside of the turn: who waits for etcd must not keep those waiting who need not.
                    may_raise(self.authority.as_ref(), resource, target).await?;
                    self.in_turn(resource, deadline, self.raise(Some(raising), resource, target, deadline)).await?;
                }
                Verdict::Undrained(epoch) => {
                    self.refuse_if_written(raising, resource, epoch).await?;
                    self.in_turn(resource, deadline, self.settle(Some(raising), resource, epoch, deadline)).await?;
                }
                Verdict::Refused(refusal) => return Err(refusal),
            }
        }
        Err(unavailable("tokens are raised faster than sessions can be admitted"))
    }

    /// Where the session is admitted to many resources, gives up those that it does not need now. Revoked first, and
    /// idle: nothing of it is uncommitted, and nothing is forwarded until it is admitted again, which waits for this.
    async fn make_room(
        self: &Arc<Self>,
        session: &SessionFence,
        who: &Identity,
        resource: &Resource,
    ) -> Result<(), Refusal> {
        if !session.is_full() {
            return Ok(());
        }
        if let Some(kept) = session.give_up() {
            let deleted = self.look(&sql::delete_all_but(who, &kept)).await;
            deleted.map_err(|error| Refusal::unavailable(&resource.name, error))?;
            if let Some(mut registered) = self.sessions.get_mut(&key(who)) {
                registered.presented.retain(|resource, _| session.admission(resource).is_some());
            }
        }
        if session.has_too_many() {
            let reason = format!("a transaction may write to {MOST_AT_ONCE} resources at most: do it in several");
            return Err(Refusal::unavailable(&resource.name, Hindrance::new(reason, Remedy::Split)));
        }
        Ok(())
    }

    /// Takes the step, unless another session is taking one for the resource: then waits for the end of that.
    async fn in_turn(
        &self,
        resource: &Resource,
        deadline: Instant,
        step: impl Future<Output = Result<(), Refusal>>,
    ) -> Result<(), Refusal> {
        let turn = self.turn(&resource.name);
        if let Ok(_turn) = turn.try_lock() {
            return step.await;
        }
        match timeout_at(deadline, turn.lock()).await {
            Ok(_turn) => Ok(()),
            Err(_) => Err(Refusal::unavailable(&resource.name, "another session's advance did not end in time")),
        }
    }

    fn record(
        &self,
        session: &SessionFence,
        who: &Identity,
        resource: &Resource,
        epoch: Epoch,
        revocations: u64,
    ) -> bool {
        let Some(mut registered) = self.sessions.get_mut(&key(who)) else { return false };
        registered.presented.insert(resource.name.clone(), epoch);
        session.record_admission(&resource.name, epoch, revocations)
    }

    /// Where the process is ended for the sake of a newer token before the answer is here, that was the reason.
    fn note_asking(&self, who: &Identity, asking: Option<(String, Token)>) {
        if let Some(mut registered) = self.sessions.get_mut(&key(who)) {
            registered.asking = asking;
        }
    }

    async fn verdict(self: &Arc<Self>, who: &Identity, resource: &Resource, token: Token) -> Result<Verdict, Refusal> {
        let query = sql::admit(who, resource, token, &self.proxy);
        let answers = self.run_past_blockers(&self.admission, resource, &query).await?;
        let verdict = decide(&answers, who, resource, token);
        match &verdict {
            Verdict::Admitted { epoch: current, .. } | Verdict::Refused(Refusal::Stale { highest: current, .. }) => {
                self.memory.learn(&resource.name, *current);
            }
            Verdict::Above { current: None, .. } => self.memory.forget(&resource.name),
            _ => {}
        }
        Ok(verdict)
    }
}

fn decide(answers: &[Answer], who: &Identity, resource: &Resource, token: Token) -> Verdict {
    let hindered = |hindrance| Verdict::Refused(Refusal::unavailable(&resource.name, hindrance));
    let refused = |reason: &str| hindered(reason.into());
    let [_, _, inserted, report] = answers else {
        return refused("the database's answer to Admit has an unknown form");
    };
    let Some(row) = report.rows.first() else {
        return refused("the database's answer to Admit is empty");
    };
    for (item, meaning) in sql::IDENTITY_ITEMS {
        if !is_true(row, item) {
            let reason = format!("the session's server process {} cannot be fenced: {meaning}", who.pid);
            let remedy = match item {
                "killable" => Remedy::Superuser,
                "same_server" | "running" => Remedy::SameServer,
                _ => Remedy::TryAgain,
            };
            return hindered(Hindrance::new(reason, remedy));
        }
    }
    let Some(current) = epoch(row) else {
        return Verdict::Above { target: Epoch { generation: 1, token }, current: None };
    };
    if token < current.token {
        let resource = resource.name.clone();
        return Verdict::Refused(Refusal::Stale { resource, presented: token, highest: current });
    }
    if !is_true(row, "same_policy") {
        let reason = "another proxy has loaded other policies since: reload this proxy";
        return hindered(Hindrance::new(reason, Remedy::Reload));
    }
    if token > current.token {
        let target = Epoch { generation: current.generation, token };
        return Verdict::Above { target, current: Some(current) };
    }
    if !is_true(row, "drained") {
        return Verdict::Undrained(current);
    }
    if token == current.token && is_true(row, "admitted") {
        return Verdict::Admitted { epoch: current, new: inserted.affected > 0 };
    }
    refused("the database did not admit the session's server process")
}
