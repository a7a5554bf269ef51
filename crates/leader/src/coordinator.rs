//! The operations that an election needs from the service that decides it.
//!
//! Owns the interface between candidates and coordinators. Must never expose details of one coordinator: the
//! candidates' side is the same for all of them.

use crate::{ElectionName, Error, Lost, Observer, Patience, Token};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tracing::field::display;
use tracing::info;

pub use crate::clock::BootInstant;
pub(crate) use sealed::Sealed;

/// Maximum number of characters shown of a leader's value, which may be any text.
const LONGEST_HOLDER: usize = 200;
/// Only this crate implements coordinators: the safety of a leadership depends on the promises of their methods.
mod sealed {
    pub trait Sealed {}
}

/// Pause before a failed request is repeated.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// A place in the queue of an election, or among the candidates that wait for its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The election.
    pub election: ElectionName,
    /// Name of the candidate.
    pub holder: String,
    /// ID of the lease that keeps the place.
    pub lease: i64,
    /// Number of the candidate's token once it leads. With a queue, it is also the place there: later candidates have
    /// higher ones. Without a queue it is 0 until the candidate leads.
    pub token: i64,
    /// Lifetime of the lease after a renewal was sent: at most the requested TTL.
    pub ttl: Duration,
}

/// Proof of a candidate's leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The fencing token.
    pub token: Token,
    /// Time until which the lease certainly lives, if it began with the win.
    pub deadline: Option<BootInstant>,
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The fencing token. With etcd, the create_revision of the leader's key.
    pub token: Token,
    /// Key of the leader. With PostgreSQL, the name of the election.
    pub key: Vec<u8>,
    /// Value of the key: usually the leader's name.
    pub value: Vec<u8>,
    /// ID of the lease.
    pub lease: i64,
}

/// A service that grants leases and decides which candidate leads.
pub trait Coordinator: Sealed + Send + Sync + 'static {
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
    ) -> impl Future<Output = Result<(Candidate, BootInstant), Error>> + Send;

    /// Renews the lease, and returns the time until which it certainly lives: a TTL after the answered request was
    /// *sent*, so that a delayed response does not extend it. Cancel-safe: the renewal may take effect.
    ///
    /// # Errors
    /// [`Error::Gone`] if the coordinator reports that the lease has ended.
    fn renew(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<BootInstant, Error>> + Send;

    /// Like [`Self::await_turn`], but returns None instead of waiting if the coordinator has shown that another
    /// candidate leads. Cancel-safe: the candidate may lead.
    ///
    /// # Errors
    /// [`Error::Gone`] if the place is lost; also if the coordinator does not answer or refuses.
    fn try_turn(
        &self,
        candidate: &Candidate,
        patience: Patience,
    ) -> impl Future<Output = Result<Option<Turn>, Error>> + Send;

    /// Returns once a single consistent read of the coordinator shows that the candidate leads. The end of a candidate
    /// ahead is not a proof: this candidate may have lost its place earlier. Retries during outages, with `patience`
    /// for each request. Cancel-safe: the candidate may lead.
    ///
    /// # Errors
    /// [`Error::Gone`] if the place is lost; also if the coordinator refuses.
    fn await_turn(&self, candidate: &Candidate, patience: Patience)
    -> impl Future<Output = Result<Turn, Error>> + Send;

    /// Returns when the coordinator reports that a leading candidate no longer leads, and why. Retries during outages,
    /// with `patience` for each request: the caller must watch the lease's deadline. Cancel-safe.
    fn await_end(&self, candidate: &Candidate, patience: Patience) -> impl Future<Output = Lost> + Send;

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
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Gives up the place and the lease. Succeeds if they no longer exist. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses. The lease then ends by itself.
    fn withdraw(&self, candidate: &Candidate, patience: Patience) -> impl Future<Output = Result<(), Error>> + Send;

    /// Observes the leaders of an election. The caller need not be a candidate.
    fn observe(self: &Arc<Self>, election: &ElectionName) -> Observer;
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

/// A coordinator that keeps many places alive together, for a [`LeaseSession`](crate::LeaseSession).
pub trait Share: Coordinator {
    /// Grants a lease without a place. Not cancel-safe: the lease may be granted, and ends by itself.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses.
    fn grant(&self, ttl: Duration, patience: Patience) -> impl Future<Output = Result<Lease, Error>> + Send;

    /// Takes a place under the lease. Returns the time until which it certainly lives. Not cancel-safe: the place may
    /// be taken.
    ///
    /// # Errors
    /// As [`Coordinator::enrol`]; [`Error::Gone`] if the lease has ended. The place may be taken:
    /// [`Self::leave`] it, without a token.
    fn enter(
        &self,
        election: &ElectionName,
        holder: &str,
        lease: &Lease,
        patience: Patience,
    ) -> impl Future<Output = Result<(Candidate, BootInstant), Error>> + Send;

    /// Renews all of them in one request, as [`Coordinator::renew`], with a result for each. Cancel-safe: it may take
    /// effect.
    ///
    /// # Errors
    /// The coordinator does not answer; [`Error::Gone`] if the lease has ended.
    fn renew_all(
        &self,
        lease: &Lease,
        candidates: &[Candidate],
        patience: Patience,
    ) -> impl Future<Output = Result<Vec<Result<BootInstant, Error>>, Error>> + Send;

    /// Gives up the place, but not the lease. Succeeds if the place no longer exists. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses.
    fn leave(&self, candidate: &Candidate, patience: Patience) -> impl Future<Output = Result<(), Error>> + Send;

    /// Gives up the lease. Succeeds if it no longer exists. Cancel-safe: it may take effect.
    ///
    /// # Errors
    /// The coordinator does not answer or refuses. The lease then ends by itself.
    fn revoke(&self, lease: &Lease, patience: Patience) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Logs the leader for which the candidate waits, if it is not the one logged last.
pub(crate) fn log_awaited(candidate: &Candidate, leader: &Leader, logged: &mut Option<Token>) {
    if logged.replace(leader.token) != Some(leader.token) {
        let Candidate { election, holder, .. } = candidate;
        let leads: String = String::from_utf8_lossy(&leader.value).chars().take(LONGEST_HOLDER).collect();
        // Only with a queue do candidates have keys.
        let key = (candidate.token != 0).then(|| display(String::from_utf8_lossy(&leader.key)));
        info!(%election, holder, leader = leads, leader_token = leader.token.get(), key, "lease_awaited");
    }
}
