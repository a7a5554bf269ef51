//! Raises a fence before the first write under the token: for a newly elected leader, and for fences in mode observe.
//!
//! Safety does not depend on this module: the first write under the token would raise the fence as well. Must never admit a
//! session.
//!
//! Functions here are not cancel-safe unless their comment says so: a step may be left incomplete, and the next proxy that
//! needs it repeats it.

use super::advance::Advance;
use super::claim::Raise;
use super::database::{Database, key};
use super::fence_error::{FenceError, about};
use super::obstacle::Obstacle;
use super::session::{Epoch, IdentityError, SessionFence, Token};
use super::store::{EpochRow, Recorded, StoreError};
use fencegate_policy::{Mode, Resource};
use fencegate_wire::client_error::{ClientError, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The token of no epoch. An Admit under it only reads: it never admits.
const NOBODYS: Token = 0;
/// Maximum delay until the proxy notices the end of a server process.
const ENDING: Duration = Duration::from_millis(500);
/// Time limit of one drain.
const LIMIT: Duration = Duration::from_secs(10);

impl Database {
    /// Returns true if the token is that of the epoch last read, so that there is nothing to record.
    pub fn is_current(&self, resource: &Resource, token: Token) -> bool {
        self.memory.is_current(&resource.name, token)
    }

    /// For a fence in mode observe: records a token. This raises the epoch, if permitted, but neither drains nor admits. Makes
    /// the same checks as an Admit of the session. Cancel-safe.
    ///
    /// # Errors
    /// Why a write under the token would be rejected.
    pub async fn observe(
        self: &Arc<Self>,
        session: &SessionFence,
        resource: &Resource,
        token: Token,
        raise: Raise<'_>,
    ) -> Result<(), FenceError> {
        let unknown = |error: &IdentityError| FenceError::unavailable(&resource.name, error.clone().into());
        let who = session.identity.as_ref().map_err(unknown)?;
        let report = about(resource, self.store().admit(who, resource, NOBODYS, self.loaded(resource)).await)?;
        let is_superseded = matches!(report.current, Some((_, Recorded::Others))) && self.resource_in_force(resource);
        let noted = self.take_note(resource, token, report.current.map(|(row, _)| row.epoch), raise).await;
        if let Some(fault) = report.unfenceable {
            // The process may be missing because the session has just ended. No caller waits for this, so wait until the proxy
            // would have noticed.
            sleep(ENDING).await;
            if self.sessions.contains_key(&key(who)) {
                return Err(FenceError::unavailable(&resource.name, Obstacle::Process { pid: who.pid, fault }));
            }
        }
        if is_superseded && noted.is_ok() {
            return Err(other_policies(resource));
        }
        noted
    }

    /// Records a token. `highest` is the current epoch.
    async fn take_note(
        self: &Arc<Self>,
        resource: &Resource,
        token: Token,
        highest: Option<Epoch>,
        raise: Raise<'_>,
    ) -> Result<(), FenceError> {
        match highest {
            Some(highest) => self.memory.learn(&resource.name, highest),
            None => self.memory.forget(&resource.name),
        }
        if let Some(highest) = highest.filter(|highest| token < highest.token) {
            let stale = FenceError::Stale { resource: resource.name.clone(), presented: token, highest };
            return Err(self.explained(resource, stale).await);
        }
        if highest.is_some_and(|highest| token == highest.token) {
            return Ok(());
        }
        match raise {
            Raise::Freely => {}
            Raise::WhoMay(claim) => self.permits(claim, resource, token).await?,
            Raise::Never => {
                let (resource, highest) = (resource.name.clone(), highest.map(|epoch| epoch.token));
                return Err(FenceError::NotInForce { resource, presented: token, highest });
            }
        }
        let target = Epoch { generation: highest.map_or(1, |epoch| epoch.generation), token };
        self.may_raise(resource, target).await?;
        self.publish_ahead(&self.advance(resource, target), highest).await.map(drop)
    }

    /// Raises the fence to the token of a leader that has not written yet. This shuts out its predecessor immediately.
    /// Does nothing if the resource has no epoch. A token that was superseded in the meantime raises nothing.
    ///
    /// The argument does not depend on this: the leader's first write has the same effect.
    /// The caller must retry after LF006.
    pub async fn overtake(self: &Arc<Self>, resource: &Resource, token: Token) -> Result<(), FenceError> {
        let Some((current, drained)) = self.epoch_of(resource).await? else { return Ok(()) };
        if token < current.token || (token == current.token && (drained || resource.mode == Mode::Observe)) {
            return Ok(());
        }
        let target = Epoch { token, ..current };
        if target != current {
            match self.may_raise(resource, target).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                Err(_) => return Ok(()),
            }
        }
        let turn = self.resource_lock(&resource.name);
        let _turn = turn.lock().await;
        let advance = self.advance(resource, target);
        let now = if target == current {
            // An epoch created by a lease has no policies yet. Without them it cannot be marked.
            about(resource, self.record_policy(resource).await)?;
            current
        } else {
            self.publish_ahead(&advance, Some(current)).await?
        };
        if resource.mode == Mode::Observe || now != target {
            return Ok(());
        }
        advance.settle(Instant::now() + LIMIT).await?;
        match self.epoch_of(resource).await? {
            Some((epoch, false)) if epoch == target => Err(other_policies(resource)),
            _ => Ok(()),
        }
    }

    /// Returns true if the resource's epoch was lower than the token when it was last read. The fence must then be raised, even
    /// if it was raised before: a reset may have lowered it, or the first epoch was created under a token that is now old.
    pub fn is_behind(&self, resource: &Resource, token: Token) -> bool {
        self.memory.is_below(&resource.name, token)
    }

    /// Returns after an epoch was read that differs from the remembered one. Cancel-safe. Supports one waiter.
    pub fn epoch_changed(&self) -> impl Future<Output = ()> + use<> {
        let memory = self.memory.clone();
        async move { memory.changed.notified().await }
    }

    /// Publishes, and returns the current epoch: the target or a higher one.
    async fn publish_ahead(self: &Arc<Self>, advance: &Advance<'_>, known: Option<Epoch>) -> Result<Epoch, FenceError> {
        let (resource, target) = (advance.resource, advance.to);
        let mut now = advance.publish(known).await?;
        if now.is_some_and(|now| now < target) {
            // A delayed record of older policies may have prevented it.
            about(resource, self.record_policy(resource).await)?;
            now = advance.publish(known).await?;
        }
        if now.is_none_or(|now| now < target) {
            // The lease may have ended in the meantime.
            self.may_raise(resource, target).await?;
        }
        now.filter(|now| *now >= target).ok_or_else(|| other_policies(resource))
    }

    /// The resource's epoch, and whether it is drained.
    async fn epoch_of(self: &Arc<Self>, resource: &Resource) -> Result<Option<(Epoch, bool)>, FenceError> {
        let mut read = match self.store().epochs(&[resource.name.as_str()]).await {
            // Without the schema there was never an epoch.
            Err(StoreError::Unprepared { .. }) => return Ok(None),
            read => about(resource, read)?,
        };
        let Some(EpochRow { epoch, drained, .. }) = read.pop() else {
            self.memory.forget(&resource.name);
            return Ok(None);
        };
        self.memory.learn(&resource.name, epoch);
        Ok(Some((epoch, drained)))
    }
}

fn other_policies(resource: &Resource) -> FenceError {
    FenceError::unavailable(&resource.name, Obstacle::OtherPolicies)
}
