//! The operations that an election needs of the service that decides it.
//!
//! Owns the terms between candidates and coordinators. Must never let one coordinator's own terms through: the candidates'
//! side is the same for all of them.

use super::clock::BootInstant;
use super::loss::Loss;
use crate::etcd::{ElectionName, Leader, Patience};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A place in the queue of an election, or among those who wait for its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The election.
    pub election: ElectionName,
    /// Its name.
    pub holder: String,
    /// Names the lease on which the place depends.
    pub lease: i64,
    /// The fencing token once the candidate leads, and with a queue its place there: later candidates' are higher. 0 where
    /// only who leads has one.
    pub token: i64,
    /// The time that the lease lives after a renewal was sent: at most the requested one.
    pub ttl: Duration,
}

/// The proof of a candidate's leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The fencing token.
    pub token: i64,
    /// Until when the lease certainly lives, where it began with the win.
    pub deadline: Option<BootInstant>,
}

/// Why a coordinator did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum CoordinatorError {
    /// No answer in time. Whether the request took effect is unknown.
    #[error("the coordinator did not answer within {limit:?}: {reason}")]
    Unreachable { limit: Duration, reason: String },
    /// It answered, and refused.
    #[error("the coordinator refused: {reason}")]
    Refused { reason: String },
    /// One election among the keys of another: the outer one would wait for the inner one's leader.
    #[error("the election {election} shares its keys with another: {key} is there; elections must not be nested")]
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

/// A service that grants leases, and decides which candidate leads.
pub trait Coordinator: Send + Sync + 'static {
    /// Follows who leads.
    type Observer: Observe;

    /// Takes a place, which lives for `ttl` unless it is renewed. Also says until when it certainly lives.
    ///
    /// Not cancel-safe: the place may be taken, and blocks the queue for a TTL.
    ///
    /// # Errors
    /// When the coordinator does not answer or refuses, or the election is nested with another. No place is left
    /// behind for longer than the TTL.
    fn enrol(
        &self,
        election: &ElectionName,
        holder: &str,
        ttl: Duration,
        patience: Patience,
    ) -> impl Future<Output = Result<(Candidate, BootInstant), CoordinatorError>> + Send;

    /// Renews the lease, and says until when it certainly lives: a TTL after the answered request was *sent*, so that
    /// an answer that was held up does not extend the belief. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// [`CoordinatorError::Gone`] when the coordinator says that the lease has ended.
    fn renew(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<BootInstant, CoordinatorError>> + Send;

    /// None once the coordinator has shown that another leads. Otherwise as [`Self::await_turn`], without waiting.
    /// Cancel-safe: the candidate may lead.
    ///
    /// # Errors
    /// [`CoordinatorError::Gone`] when the place is lost; when the coordinator does not answer or refuses.
    fn try_turn(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<Turn>, CoordinatorError>> + Send;

    /// Returns once the coordinator has shown, in one consistent reading, that the candidate leads. That someone ahead has
    /// gone is no proof: the candidate may have gone before. Goes on through outages, with `patience` for each question.
    /// Cancel-safe: the candidate may lead.
    ///
    /// # Errors
    /// [`CoordinatorError::Gone`] when the place is lost; when the coordinator refuses.
    fn await_turn(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<Turn, CoordinatorError>> + Send;

    /// Returns when the coordinator says that a candidate that led does no longer, and why. Goes on through outages,
    /// with `patience` for each question: the lease's deadline is the caller's to watch. Cancel-safe.
    fn await_end(&self, candidate: &Candidate, patience: Patience) -> impl Future<Output = Loss> + Send;

    /// Shows another value to observers, if the candidate still has its place. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// When the place is lost, or the coordinator does not answer or refuses.
    fn proclaim(
        &self,
        candidate: &Candidate,
        value: Vec<u8>,
        patience: Patience,
    ) -> impl Future<Output = Result<(), CoordinatorError>> + Send;

    /// Gives up place and lease; no error when they have gone already. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// When the coordinator does not answer or refuses: the lease then ends by itself.
    fn withdraw(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<(), CoordinatorError>> + Send;

    /// Observes the leaders of an election, also without taking part.
    fn observe(self: &Arc<Self>, election: &ElectionName) -> Self::Observer;
}

/// A lease by which several places may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Names it, where the coordinator knows such leases.
    pub id: i64,
    /// The time that it lives after a renewal was sent: at most the requested one.
    pub ttl: Duration,
    /// Until when it certainly lives unless it is renewed.
    pub deadline: BootInstant,
}

/// A coordinator that keeps many places alive at once, for a [`Session`](super::Session).
pub trait Share: Coordinator {
    /// A lease without a place. Not cancel-safe: it may be granted, and ends by itself.
    ///
    /// # Errors
    /// When the coordinator does not answer or refuses.
    fn grant(&self, ttl: Duration, patience: Patience) -> impl Future<Output = Result<Lease, CoordinatorError>> + Send;

    /// Takes a place by the lease. Also says until when it certainly lives. Not cancel-safe: the place may be taken.
    ///
    /// # Errors
    /// As [`Coordinator::enrol`]; [`CoordinatorError::Gone`] when the lease has ended. The place may be taken: [`Self::leave`]
    /// it, without a token.
    fn enter(
        &self,
        election: &ElectionName,
        holder: &str,
        lease: &Lease,
        patience: Patience,
    ) -> impl Future<Output = Result<(Candidate, BootInstant), CoordinatorError>> + Send;

    /// As [`Coordinator::renew`], of all these in one request, with an answer for each. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// When there is no answer at all; [`CoordinatorError::Gone`] when the lease has ended.
    fn renew_all(
        &self,
        lease: &Lease,
        candidates: &[Candidate],
        patience: Patience,
    ) -> impl Future<Output = Result<Vec<Result<BootInstant, CoordinatorError>>, CoordinatorError>> + Send;

    /// Gives up the place, but not the lease; no error when it has gone already. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// When the coordinator does not answer or refuses.
    fn leave(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<(), CoordinatorError>> + Send;

    /// Gives up the lease; no error when it has gone already. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// When the coordinator does not answer or refuses: the lease then ends by itself.
    fn revoke(&self, lease: &Lease, patience: Patience) -> impl Future<Output = Result<(), CoordinatorError>> + Send;
}

/// Follows the leader of one election.
pub trait Observe: Send {
    /// The leader as it is now, at first, and then each time that another leads, that nobody does any more, or that it
    /// shows another value. Cancel-safe.
    ///
    /// # Errors
    /// When the coordinator cannot be read; call again, which reads everything anew.
    fn next(&mut self) -> impl Future<Output = Result<Option<Leader>, CoordinatorError>> + Send;
}
