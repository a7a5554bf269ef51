//! Admit: may this server process write the resource under this token?
//!
//! Owns the decision, which one Query in the database makes. Only that Query's answer can admit: no row,
//! no reply, or a reply after a revocation means refused.
//!
//! Also gives up admissions of an idle session that has many. Must never delete a session's row unless
//! the session was revoked first.

use super::advance::Raising;
use super::claim::{Claim, Raise};
use super::database::{Database, key};
use super::fence_error::{FenceError, about};
use super::obstacle::Obstacle;
use super::session::{Activity, Epoch, Identity, IdentityError, Presented, SessionFence, Token};
use super::store::{AdmissionRow, EpochRow, First, Recorded, Report, StoreError};
use fencegate_policy::Resource;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Time that a session waits for its admission, including drains.
const LIMIT: Duration = Duration::from_secs(10);

/// The database's answer to one Query.
enum AdmitDecision {
    /// The admission. `is_new`: the row did not exist before.
    Admitted {
        row: AdmissionRow,
        is_new: bool,
    },
    /// The token is higher than the current epoch's, or the first.
    Above {
        target: Epoch,
        current: Option<Epoch>,
    },
    /// The token is the epoch's, which is not drained yet.
    Undrained(Epoch),
    /// The epoch records different policies, loaded before those of this proxy.
    OlderPolicies,
    Refused(FenceError),
}

impl Database {
    /// Admits the session's server process to the resource under the token. Raises and drains the epoch
    /// first if necessary. After Ok, no process with a lower token can commit a write to the resource,
    /// and [`SessionFence::begin_write`] returns true.
    ///
    /// The caller holds back this session's writes until the call returns. A session that is revoked in
    /// the meantime is refused. Before a raise, checks etcd if the policy names an election, or the database if
    /// it names a lease. Takes at most about 15 s.
    ///
    /// Not cancel-safe: the token may have been raised although the session is not admitted.
    pub async fn admit(
        self: &Arc<Self>,
        session: &Arc<SessionFence>,
        resource: &Arc<Resource>,
        token: Token,
    ) -> Result<(), FenceError> {
        self.admit_if(session, resource, token, Raise::Freely).await
    }

    /// As [`Database::admit`], but raises the epoch only as `raise` says.
    pub async fn admit_if(
        self: &Arc<Self>,
        session: &Arc<SessionFence>,
        resource: &Arc<Resource>,
        token: Token,
        raise: Raise<'_>,
    ) -> Result<(), FenceError> {
        let unknown = |error: &IdentityError| FenceError::unavailable(&resource.name, error.clone().into());
        let who = session.identity.as_ref().map_err(unknown)?;
        let _one_at_a_time = session.admitting.lock().await;
        session.set_asking(Some((resource.name.clone(), token)));
        let outcome = self.admit_process(Raising { session, who }, resource, token, raise).await;
        session.set_asking(None);
        outcome
    }

    async fn admit_process(
        self: &Arc<Self>,
        raising: Raising<'_>,
        resource: &Arc<Resource>,
        token: Token,
        raise: Raise<'_>,
    ) -> Result<(), FenceError> {
        let Raising { session, who } = raising;
        let unavailable = |obstacle| FenceError::unavailable(&resource.name, obstacle);
        let deadline = Instant::now() + LIMIT;
        self.make_room(raising, resource).await?;
        while Instant::now() < deadline {
            if !self.sessions.contains_key(&key(who)) {
                return Err(unavailable(Obstacle::Unregistered));
            }
            // Policies may have been reloaded. The session judges the messages that it holds back by the new policies.
            let is_past = !self.resource_in_force(resource);
            let in_force = is_past.then(|| self.resource(&resource.name)).flatten();
            let resource = in_force.as_ref().unwrap_or(resource);
            // The token probably has to be raised. Let the session determine its role first and retry: this saves one Query.
            if let Raise::WhoMay(Claim { role: None, .. }) = raise
                && self.memory.is_below(&resource.name, token)
            {
                return Err(FenceError::RoleUnknown { resource: resource.name.clone() });
            }
            let revocations = session.revocations();
            if let Some(row) = self.try_first(raising, resource, token, raise, deadline).await?
                && self.record(raising, resource, row.epoch, revocations)
            {
                return Ok(());
            }
            match self.verdict(who, resource, token).await? {
                AdmitDecision::Admitted { row, is_new } => {
                    if self.record(raising, resource, row.epoch, revocations) {
                        self.metrics.admissions.inc();
                        return Ok(());
                    }
                    // A drain ran after the commit. The write was held back, so a new row was never
                    // used. The next verdict has the new epoch.
                    if is_new {
                        self.advance(resource, row.epoch).delete(&[row]).await?;
                    }
                }
                AdmitDecision::Above { current, .. } if matches!(raise, Raise::Never) => {
                    let (resource, highest) = (resource.name.clone(), current.map(|epoch| epoch.token));
                    return Err(FenceError::NotInForce { resource, presented: token, highest });
                }
                AdmitDecision::Above { target, current } => {
                    let advance = self.advance(resource, target).by(raising);
                    // Check both before raising a token or terminating a process. Concurrently, because neither changes anything.
                    let (written, permitted) = tokio::join!(advance.refuse_if_written(), async {
                        match raise {
                            Raise::WhoMay(claim) => self.permits(claim, resource, token).await,
                            _ => Ok(()),
                        }
                    });
                    written?;
                    permitted?;
                    // Before the resource's lock, so that sessions that do not need etcd never wait for it.
                    self.may_raise(resource, target).await?;
                    self.in_turn(resource, deadline, advance.raise(current, deadline)).await?;
                }
                AdmitDecision::Undrained(epoch) => {
                    let advance = self.advance(resource, epoch).by(raising);
                    advance.refuse_if_written().await?;
                    self.in_turn(resource, deadline, advance.settle(deadline)).await?;
                }
                AdmitDecision::OlderPolicies => {
                    about(resource, self.record_policy(resource).await)?;
                }
                AdmitDecision::Refused(refusal) => return Err(self.explained(resource, refusal).await),
            }
        }
        Err(unavailable(Obstacle::RaisedTooFast))
    }

    /// Admits the session under a resource's first token, if everything known indicates that it is the first.
    /// None: use the ordinary Admit, which also reports the reason of a refusal. Error: the session's role must be determined.
    async fn try_first(
        self: &Arc<Self>,
        Raising { session, who }: Raising<'_>,
        resource: &Arc<Resource>,
        token: Token,
        raise: Raise<'_>,
        deadline: Instant,
    ) -> Result<Option<AdmissionRow>, FenceError> {
        // Only for keys: resources without keys rarely see a first token.
        let is_one = resource.family.is_some() && self.memory.last_read(&resource.name).is_none();
        if !is_one || session.may_have_written(&resource.name) {
            return Ok(None);
        }
        match raise {
            Raise::Freely => {}
            Raise::WhoMay(claim) => match self.has_permitted(claim, resource, token).await {
                Ok(()) => {}
                Err(unknown @ FenceError::RoleUnknown { .. }) => return Err(unknown),
                Err(_) => return Ok(None),
            },
            Raise::Never => return Ok(None),
        }
        if self.may_raise(resource, Epoch { generation: 1, token }).await.is_err() {
            return Ok(None);
        }
        let began = Instant::now();
        let first = First { who: who.clone(), resource: resource.clone(), token, loaded: self.loaded(resource) };
        let Ok(Some(row)) = timeout_at(deadline, self.admit_first(first)).await else { return Ok(None) };
        self.memory.learn(&resource.name, row.epoch);
        self.metrics.admissions.inc();
        self.advance(resource, row.epoch).log_advanced(began.elapsed());
        Ok(Some(row))
    }

    /// Gives up admissions that the session does not need now, if it has many. Safe because the session is idle and was revoked
    /// first: it has no uncommitted writes, and forwards none until the next Admit, which waits for this call.
    async fn make_room(self: &Arc<Self>, raising: Raising<'_>, resource: &Resource) -> Result<(), FenceError> {
        let session = raising.session;
        if !session.is_full() {
            return Ok(());
        }
        if session.activity() == Activity::Idle {
            about(resource, self.give_up(raising).await)?;
        }
        if session.has_too_many() {
            return Err(FenceError::unavailable(&resource.name, Obstacle::TooManyResources));
        }
        Ok(())
    }

    /// Does nothing if the session is not idle. Reads the rows before the revocation and deletes only these versions. A later
    /// Admit creates new versions, so a delayed DELETE does not affect it.
    async fn give_up(self: &Arc<Self>, Raising { session, who }: Raising<'_>) -> Result<(), StoreError> {
        let rows = self.store().admissions_of(who).await?;
        let Some(kept) = session.give_up() else { return Ok(()) };
        let kept: HashSet<&(String, Epoch)> = kept.iter().collect();
        let given_up = |row: &&AdmissionRow| !kept.contains(&(row.resource.clone(), row.epoch));
        let presented = session.presented();
        // An unknown row comes from an abandoned Admit. It stays until it is drained or the process ends.
        let rows = rows.iter().filter(given_up);
        let rows: Vec<_> =
            rows.filter_map(|row| Some((row, presented.get(&row.resource)?.lock_name.as_str()))).collect();
        let deleted = self.delete(&rows).await?;
        let deleted: HashSet<&str> = deleted.iter().map(|row| row.resource.as_str()).collect();
        let left: HashSet<&str> = rows.iter().map(|it| it.0.resource.as_str()).collect();
        session.retain_presented(|resource| left.contains(resource) && !deleted.contains(resource));
        Ok(())
    }

    /// Runs the step, unless another session runs one for the resource. In that case only waits until that one is done.
    async fn in_turn(
        &self,
        resource: &Resource,
        deadline: Instant,
        step: impl Future<Output = Result<(), FenceError>>,
    ) -> Result<(), FenceError> {
        let turn = self.resource_lock(&resource.name);
        if let Ok(_turn) = turn.try_lock() {
            return step.await;
        }
        match timeout_at(deadline, turn.lock()).await {
            Ok(_turn) => Ok(()),
            Err(_) => Err(FenceError::unavailable(&resource.name, Obstacle::OtherAdvance)),
        }
    }

    fn record(&self, raising: Raising<'_>, resource: &Resource, epoch: Epoch, revocations: u64) -> bool {
        if !self.sessions.contains_key(&key(raising.who)) {
            return false;
        }
        raising.session.present(&resource.name, Presented { epoch, lock_name: resource.lock_name().to_owned() });
        raising.session.record_admission(&resource.name, epoch, revocations)
    }

    async fn verdict(
        self: &Arc<Self>,
        who: &Identity,
        resource: &Resource,
        token: Token,
    ) -> Result<AdmitDecision, FenceError> {
        let report = about(resource, self.store().admit(who, resource, token, self.loaded(resource)).await)?;
        if let Some((_, recorded)) = &report.current {
            self.note_superseded(resource, *recorded == Recorded::Others);
        }
        let verdict = decide(report, who.pid, resource, token);
        match &verdict {
            AdmitDecision::Admitted { row: AdmissionRow { epoch: current, .. }, .. }
            | AdmitDecision::Refused(FenceError::Stale { highest: current, .. }) => {
                self.memory.learn(&resource.name, *current);
            }
            AdmitDecision::Above { current: None, .. } => self.memory.forget(&resource.name),
            _ => {}
        }
        Ok(verdict)
    }
}

fn decide(report: Report, pid: i32, resource: &Resource, token: Token) -> AdmitDecision {
    let unavailable = |obstacle| AdmitDecision::Refused(FenceError::unavailable(&resource.name, obstacle));
    if let Some(fault) = report.unfenceable {
        return unavailable(Obstacle::Process { pid, fault });
    }
    let Some((EpochRow { epoch: current, drained, .. }, recorded)) = report.current else {
        return AdmitDecision::Above { target: Epoch { generation: 1, token }, current: None };
    };
    if token < current.token {
        let resource = resource.name.clone();
        return AdmitDecision::Refused(FenceError::Stale { resource, presented: token, highest: current });
    }
    match recorded {
        Recorded::Same => {}
        Recorded::Older => return AdmitDecision::OlderPolicies,
        Recorded::Others => return unavailable(Obstacle::NewerPolicies),
    }
    if token > current.token {
        let target = Epoch { generation: current.generation, token };
        return AdmitDecision::Above { target, current: Some(current) };
    }
    if !drained {
        return AdmitDecision::Undrained(current);
    }
    match report.admission {
        Some((row, is_new)) if row.epoch == current && token == current.token => {
            AdmitDecision::Admitted { row, is_new }
        }
        _ => unavailable(Obstacle::NotAdmitted),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
