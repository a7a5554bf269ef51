//! The operations that an election needs from the service that decides it.
//!
//! Owns the interface between candidates and coordinators. Must never expose details of one coordinator: the
//! candidates' side is the same for all of them.

use super::clock::BootInstant;
use super::loss::Loss;
use crate::{ElectionName, Patience};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A place in the queue of an election, or among the candidates that wait for its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The election.
    pub election: ElectionName,
    /// Name of the candidate.
    pub holder: String,
    /// ID of the lease that keeps the place.
    pub lease: i64,
    /// Fencing token of the candidate once it leads. With a queue, it is also the place there: later candidates have
    /// higher ones. Without a queue it is 0 until the candidate leads.
    pub token: i64,
    /// Lifetime of the lease after a renewal was sent: at most the requested TTL.
    pub ttl: Duration,
}

/// Proof of a candidate's leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The fencing token.
    pub token: i64,
    /// Time until which the lease certainly lives, if it began with the win.
    pub deadline: Option<BootInstant>,
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The fencing token. With etcd, the create_revision of the leader's key.
    pub token: i64,
    /// Key of the leader. With PostgreSQL, the name of the election.
    pub key: Vec<u8>,
    /// Value of the key: usually the leader's name.
    pub value: Vec<u8>,
    /// ID of the lease.
    pub lease: i64,
}

/// Why a coordinator's request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum CoordinatorError {
    /// No response in time. Whether the request took effect is unknown.
    #[error("the coordinator did not answer within {limit:?}: {reason}")]
    Unreachable { limit: Duration, reason: String },
    /// The coordinator refused the request.
    #[error("the coordinator refused: {reason}")]
    Refused { reason: String },
    /// One election's keys are among the keys of another: the outer election would wait for the inner one's leader.
    #[error("the election {election} shares keys with another one, which has {key}: elections must not be nested")]
    Nested { election: ElectionName, key: String },
    /// The candidate has lost its place: its lease ended, or another client removed it from the queue.
    #[error("the candidate has lost its lease or its place in the queue")]
    Gone,
}

impl CoordinatorError {
    /// The reason of the failure, without the coordinator's name.
    pub(super) fn reason(self) -> String {
        match self {
            CoordinatorError::Unreachable { reason, .. } | CoordinatorError::Refused { reason } => reason,
            error => error.to_string(),
        }
    }
}

/// A service that grants leases and decides which candidate leads.
pub trait Coordinator: Send + Sync + 'static {
    /// Follows the leaders of an election.
    type Observer: Observe;

    /// Takes a place that lives for `ttl` unless it is renewed. Returns the time until which it certainly lives.
    ///
    /// Not cancel-safe: the place may be taken, and then blocks the queue for a TTL.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses, or the election is nested with another. No place remains for longer
    /// than the TTL.
    fn enrol(
        &self,
        election: &ElectionName,
        holder: &str,
        ttl: Duration,
        patience: Patience,
    ) -> impl Future<Output = Result<(Candidate, BootInstant), CoordinatorError>> + Send;

    /// Renews the lease, and returns the time until which it certainly lives: a TTL after the answered request was
    /// *sent*, so that a delayed response does not extend it. Cancel-safe: the renewal may take effect.
    ///
    /// # Errors
    /// [`CoordinatorError::Gone`] if the coordinator reports that the lease has ended.
    fn renew(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<BootInstant, CoordinatorError>> + Send;

    /// Like [`Self::await_turn`], but returns None instead of waiting if the coordinator has shown that another
    /// candidate leads. Cancel-safe: the candidate may lead.
    ///
    /// # Errors
    /// [`CoordinatorError::Gone`] if the place is lost; also if the coordinator does not answer or refuses.
    fn try_turn(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<Turn>, CoordinatorError>> + Send;

    /// Returns once a single consistent read of the coordinator shows that the candidate leads. The end of a candidate
    /// ahead is not a proof: this candidate may have lost its place earlier. Retries during outages, with `patience`
    /// for each request. Cancel-safe: the candidate may lead.
    ///
    /// # Errors
    /// [`CoordinatorError::Gone`] if the place is lost; also if the coordinator refuses.
    fn await_turn(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<Turn, CoordinatorError>> + Send;

    /// Returns when the coordinator reports that a leading candidate no longer leads, and why. Retries during outages,
    /// with `patience` for each request: the caller must watch the lease's deadline. Cancel-safe.
    fn await_end(&self, candidate: &Candidate, patience: Patience) -> impl Future<Output = Loss> + Send;

    /// Changes the value that observers see, if the candidate still has its place. Cancel-safe: the change may take
    /// effect.
    ///
    /// # Errors
    /// The place is lost, or the coordinator does not answer or refuses.
    fn proclaim(
        &self,
        candidate: &Candidate,
        value: Vec<u8>,
        patience: Patience,
    ) -> impl Future<Output = Result<(), CoordinatorError>> + Send;

    /// Gives up the place and the lease. Succeeds if they no longer exist. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses. The lease then ends by itself.
    fn withdraw(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<(), CoordinatorError>> + Send;

    /// Observes the leaders of an election. The caller need not be a candidate.
    fn observe(self: &Arc<Self>, election: &ElectionName) -> Self::Observer;
}

/// A lease that can keep several places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// ID of the lease, if the coordinator has such leases.
    pub id: i64,
    /// Lifetime after a renewal was sent: at most the requested TTL.
    pub ttl: Duration,
    /// Time until which the lease certainly lives unless it is renewed.
    pub deadline: BootInstant,
}

/// A coordinator that keeps many places alive together, for a [`LeaseSession`](super::LeaseSession).
pub trait Share: Coordinator {
    /// Grants a lease without a place. Not cancel-safe: the lease may be granted, and ends by itself.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses.
    fn grant(&self, ttl: Duration, patience: Patience) -> impl Future<Output = Result<Lease, CoordinatorError>> + Send;

    /// Takes a place under the lease. Returns the time until which it certainly lives. Not cancel-safe: the place may
    /// be taken.
    ///
    /// # Errors
    /// As [`Coordinator::enrol`]; [`CoordinatorError::Gone`] if the lease has ended. The place may be taken:
    /// [`Self::leave`] it, without a token.
    fn enter(
        &self,
        election: &ElectionName,
        holder: &str,
        lease: &Lease,
        patience: Patience,
    ) -> impl Future<Output = Result<(Candidate, BootInstant), CoordinatorError>> + Send;

    /// Renews all of them in one request, as [`Coordinator::renew`], with a result for each. Cancel-safe: it may take
    /// effect.
    ///
    /// # Errors
    /// The coordinator does not answer; [`CoordinatorError::Gone`] if the lease has ended.
    fn renew_all(
        &self,
        lease: &Lease,
        candidates: &[Candidate],
        patience: Patience,
    ) -> impl Future<Output = Result<Vec<Result<BootInstant, CoordinatorError>>, CoordinatorError>> + Send;

    /// Gives up the place, but not the lease. Succeeds if the place no longer exists. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses.
    fn leave(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<(), CoordinatorError>> + Send;

    /// Gives up the lease. Succeeds if it no longer exists. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses. The lease then ends by itself.
    fn revoke(&self, lease: &Lease, patience: Patience) -> impl Future<Output = Result<(), CoordinatorError>> + Send;
}

/// Follows the leader of one election.
pub trait Observe: Send {
    /// Returns the current leader, then each change: another leader, no leader, or another value of the leader.
    /// Cancel-safe.
    ///
    /// # Errors
    /// The coordinator cannot be read. Call it again: it then reads everything again.
    fn next(&mut self) -> impl Future<Output = Result<Option<Leader>, CoordinatorError>> + Send;
}
