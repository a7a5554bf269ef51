//! On whose behalf a session raises a fence, whether its role may, and the state that the sessions of a database share while they
//! raise fences: first tokens that wait for a Query. Those that arrive while one is under way are sent with the next one.
//!
//! Owns the batching. Must never
//! - give a session the answer of another;
//! - permit a write because of the role: a positive result only permits raising the token.

use super::fence_error::{FenceError, about};
use super::issuer::may_raise;
use super::obstacle::Obstacle;
use super::resource_lock::ResourceLocks;
use super::session::{Epoch, Identity, Token};
use super::step::{Context, Raising};
use super::store::{AdmissionRow, First, RequiredPrivilege, Role};
use fencegate_policy::Resource;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Queues of sessions, and permissions that were found recently.
#[derive(Debug, Default)]
pub(super) struct RaisingState {
    /// Permit one advance at a time per resource in this process. Other sessions wait for its result.
    pub(super) resource_locks: ResourceLocks,
    pub(super) first_tokens: FirstTokens,
    permitted: Permitted,
}

/// The statement on whose behalf a session would raise a fence.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The privileges that its statement requires.
    pub privileges: Arc<[RequiredPrivilege]>,
    /// The statement needs only one of these privileges, but it is unknown which.
    pub one_suffices: bool,
    /// The role that runs the statement. None: it must be determined before the token can be raised.
    pub role: Option<Role>,
    /// The login role of the session.
    pub login: String,
}

/// When an Admit may raise the epoch to its token.
#[derive(Clone, Copy)]
pub enum Raise<'a> {
    /// Always.
    Freely,
    /// If the server would permit the session's role to do what the claim describes.
    IfPermitted(&'a Claim),
    /// Never: the token must already be the epoch's.
    Never,
}

/// Time for which a positive result is valid for first tokens, and maximum number of remembered results.
const PERMITTED_FOR: Duration = Duration::from_secs(1);
const MOST_PERMITTED: usize = 1024;

/// Recent positive results.
#[derive(Debug, Default)]
struct Permitted(Mutex<HashMap<PermittedClaim, Instant>>);

/// The family of resources, privileges, [`Claim::one_suffices`] and login.
type PermittedClaim = (String, Arc<[RequiredPrivilege]>, bool, String);

impl Permitted {
    /// As [`permits`], but accepts a positive result of any session of the same login that is at most a second old.
    /// Used for the first tokens of many keys of a family. A session that has lost the privilege within that second, or currently
    /// acts as a role without it, may therefore raise the fence of a key that has no epoch. Cancel-safe.
    async fn permits(
        &self,
        context: Context<'_>,
        claim: &Claim,
        resource: &Resource,
        token: Token,
    ) -> Result<(), FenceError> {
        let key = (resource.lock_name().to_owned(), claim.privileges.clone(), claim.one_suffices, claim.login.clone());
        if self.0.lock().get(&key).is_some_and(|since| since.elapsed() < PERMITTED_FOR) {
            return Ok(());
        }
        let since = Instant::now();
        permits(context, claim, resource, token).await?;
        let mut permitted = self.0.lock();
        if permitted.len() >= MOST_PERMITTED {
            permitted.clear();
        }
        permitted.insert(key, since);
        Ok(())
    }
}

/// Returns Ok if the server would permit the claim to the role. Ignores uncommitted changes of other transactions.
/// Cancel-safe.
pub(super) async fn permits(
    context: Context<'_>,
    claim: &Claim,
    resource: &Resource,
    token: Token,
) -> Result<(), FenceError> {
    let Some(role) = &claim.role else { return Err(FenceError::RoleUnknown { resource: resource.name.clone() }) };
    if claim.privileges.is_empty() {
        // The statement affected the resource when it was judged, but the catalog has changed since.
        return Err(FenceError::unavailable(&resource.name, Obstacle::CatalogChanged));
    }
    let together = if claim.one_suffices { 1 } else { claim.privileges.len() };
    let mut denied = String::new();
    for privileges in claim.privileges.chunks(together) {
        match about(resource, context.store().denied(resource, privileges, role).await)? {
            None => return Ok(()),
            Some(what) => denied = what,
        }
    }
    Err(FenceError::Denied { resource: resource.name.clone(), presented: token, what: denied })
}

impl RaisingState {
    /// The session's first token of the resource, if everything known indicates that it is the first. None: use the ordinary
    /// Admit, which also reports the reason of a refusal. Cancel-safe.
    ///
    /// # Errors
    /// The session's role must be determined.
    pub(super) async fn first_token(
        &self,
        context: Context<'_>,
        Raising { session, identity }: Raising<'_>,
        resource: &Arc<Resource>,
        token: Token,
        raise: Raise<'_>,
    ) -> Result<Option<First>, FenceError> {
        // Only for keys: resources without keys rarely see a first token.
        let is_one = resource.family.is_some() && context.memory.last_read(&resource.name).is_none();
        if !is_one || session.may_have_written(&resource.name) {
            return Ok(None);
        }
        // Until an Admit has seen that the server accepts writes, the issuer's answer may be from before a promotion.
        if resource.issuer.is_some() && !context.memory.confirmed.is_known(identity) {
            return Ok(None);
        }
        match raise {
            Raise::Freely => {}
            Raise::IfPermitted(claim) => match self.permitted.permits(context, claim, resource, token).await {
                Ok(()) => {}
                Err(unknown @ FenceError::RoleUnknown { .. }) => return Err(unknown),
                Err(_) => return Ok(None),
            },
            Raise::Never => return Ok(None),
        }
        let may_raise = may_raise(context, resource, Epoch { generation: 1, token }).await;
        let loaded = context.policies.loaded(resource);
        Ok(may_raise.is_ok().then(|| First { identity: identity.clone(), resource: resource.clone(), token, loaded }))
    }
}

/// Remembers a first epoch that was created for this process.
pub(super) fn note_first(
    context: Context<'_>,
    identity: &Identity,
    resource: &Resource,
    epoch: Epoch,
    waited: Duration,
) {
    context.memory.learn(&resource.name, epoch);
    context.memory.confirmed.confirm(identity, resource, epoch);
    context.advance(resource, epoch).log_advanced(waited);
}

/// Maximum number of first tokens in one Query, which has a time limit and holds the locks of all their resources.
const MOST: usize = 32;

/// First tokens that wait for the next Query.
#[derive(Debug, Default)]
pub(super) struct FirstTokens {
    waiting: Mutex<Vec<(First, oneshot::Sender<Option<AdmissionRow>>)>>,
    /// Held while a Query is under way.
    turn: tokio::sync::Mutex<()>,
}

impl FirstTokens {
    /// Takes the next batch: at most one first token per resource, and none whose caller has given up.
    fn next(&self) -> Vec<(First, oneshot::Sender<Option<AdmissionRow>>)> {
        let mut names = HashSet::new();
        let mut is_next = |first: &First| names.len() < MOST && names.insert(first.resource.name.clone());
        let mut waiting = self.waiting.lock();
        waiting.retain(|(_, sender)| !sender.is_closed());
        waiting.extract_if(.., |(first, _)| is_next(first)).collect()
    }

    /// As [`FirstTokens::admit`], for several resources of one session, in one Query. Returns the admissions.
    pub(super) async fn admit_batch(&self, context: Context<'_>, firsts: &[First]) -> Vec<AdmissionRow> {
        let _turn = self.turn.lock().await;
        context.store().admit_first(&firsts.iter().collect::<Vec<_>>()).await.unwrap_or_default()
    }

    /// Creates the resource's first epoch, drained, and admits the process under it. None: an obstacle was found, or the
    /// outcome is unknown.
    ///
    /// Not cancel-safe: the process may be admitted. The next Admit reports the admission.
    pub(super) async fn admit(&self, context: Context<'_>, first: First) -> Option<AdmissionRow> {
        let (sender, mut answer) = oneshot::channel();
        self.waiting.lock().push((first, sender));
        loop {
            let _turn = self.turn.lock().await;
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Closed) => return None,
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            let batch = self.next();
            let firsts: Vec<&First> = batch.iter().map(|(first, _)| first).collect();
            let mut rows = context.store().admit_first(&firsts).await.unwrap_or_default();
            for (first, sender) in batch {
                let row =
                    rows.iter().position(|row| row.resource == first.resource.name).map(|at| rows.swap_remove(at));
                // A session that has ended does not wait for the answer.
                sender.send(row).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests;
