//! The operations that an election needs from the service that decides it, their time limits, the token that it issues, and the
//! leaders of an election as a stream.
//!
//! Owns the interface between candidates and coordinators. Must never expose details of one coordinator: the candidates' side is
//! the same for all of them. Must never make a token of a number that no coordinator has issued to a leader.

pub use crate::clock::BootInstant;
pub(crate) use sealed::Sealed;

use crate::{ElectionName, Error, Lost};
use futures_core::Stream;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::sleep;
use tracing::field::display;
use tracing::info;

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

/// Pause after an error, so that a coordinator that refuses immediately does not cause a busy loop.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

type Item = Result<Option<Leader>, Error>;

/// Reads the leader of one election.
pub(crate) trait Observe: Send + 'static {
    /// Returns the current leader at the first call and after an error; then whenever it may have changed.
    fn next(&mut self) -> impl Future<Output = Item> + Send;
}

/// A stream of the leaders of one election. It yields the current leader, then each change: another leader, no leader,
/// or another value of the leader. Changes in quick succession may be yielded as one.
///
/// If the coordinator cannot be read, it yields the error, and after a second reads everything again. It never ends.
pub struct Observer(Pin<Box<dyn Future<Output = (Item, Observer)> + Send>>);

impl Observer {
    pub(crate) fn new(source: impl Observe) -> Self {
        follow(source, None)
    }
}

fn follow(mut source: impl Observe, last: Option<Item>) -> Observer {
    Observer(Box::pin(async move {
        if matches!(last, Some(Err(_))) {
            sleep(PAUSE_AFTER_ERROR).await;
        }
        loop {
            let item = source.next().await;
            if item.is_err() || last.as_ref() != Some(&item) {
                return (item.clone(), follow(source, Some(item)));
            }
        }
    }))
}

impl Stream for Observer {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        let (item, next) = ready!(self.0.as_mut().poll(context));
        *self = next;
        Poll::Ready(Some(item))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Observer").finish_non_exhaustive()
    }
}

/// Time limits for a response.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Total limit.
    pub limit: Duration,
    /// Limit for one member, before the next one is queried too. A late response still counts.
    pub member: Duration,
}

impl Patience {
    /// For requests that do not depend on a lease: 5 s in total.
    pub const USUAL: Patience = Patience { limit: Duration::from_secs(5), member: Duration::from_secs(1) };
}

/// A fencing token. Every later leader of the election has a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(crate) i64);

impl Token {
    /// The number that `lease.fence` takes.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::Instant;

    /// Yields these items and then stays pending.
    struct Reads(Vec<Item>);

    impl Observe for Reads {
        async fn next(&mut self) -> Item {
            if self.0.is_empty() { std::future::pending().await } else { self.0.remove(0) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_yielded_once_and_errors_pause() {
        let reads = vec![Ok(None), Ok(None), Err(Error::Gone), Err(Error::Gone), Ok(None)];
        let (mut observer, start) = (Observer::new(Reads(reads)), Instant::now());
        for expected in [(Ok(None), 0), (Err(Error::Gone), 0), (Err(Error::Gone), 1), (Ok(None), 2)] {
            let item = poll_fn(|context| Pin::new(&mut observer).poll_next(context)).await;
            assert_eq!((item, start.elapsed().as_secs()), (Some(expected.0), expected.1));
        }
    }
}
