//! One lease for many elections of a process: a thousand shards are a thousand keys, but one renewal.
//!
//! Owns the lease, its members, and the renewals, which all keepers share: the first keeper that needs one renews for
//! all.
//! Must never
//! - let the renewals of other members keep a place that was given up or may have been taken;
//! - take a second place in an election, which would be the same place.

use crate::builder::Source;
use crate::candidacy::Settings;
use crate::clock::{BootInstant, Timings};
use crate::coordinator::{Candidate, Coordinator, Lease, Sealed, Share, Turn};
use crate::{Election, ElectionName, Error, InvalidName, Lost, Meter, Observer, Patience};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::debug;

/// Pause before retrying to give up a place.
const PAUSE: Duration = Duration::from_millis(100);

/// Result of a renewal for each of its elections.
type Renewed = Result<HashMap<ElectionName, Result<BootInstant, Error>>, Error>;

/// A renewal in progress.
type Renewal = watch::Receiver<Option<Arc<Renewed>>>;

/// Elections that share a lease. Losing the lease ends all leadership under it; resigning from one election leaves the
/// others. The lease is granted when it is first needed, granted again after a loss, and released with the last place.
#[derive(Clone)]
pub struct LeaseSession {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) holder: String,
    pub(crate) timings: Timings,
    pub(crate) meter: Option<Arc<dyn Meter>>,
}

/// The coordinator of the elections of a session.
pub(crate) struct SharedLease<C> {
    shared: Arc<SessionState<C>>,
    timings: Timings,
}

struct SessionState<C> {
    coordinator: Arc<C>,
    state: Mutex<State>,
    /// Locked while the lease is granted.
    granting: tokio::sync::Mutex<()>,
    left: Notify,
}

#[derive(Default)]
struct State {
    lease: Option<Lease>,
    members: HashMap<ElectionName, Member>,
    renewal: Option<Renewal>,
}

/// A member that has a place, or is about to take or leave it.
enum Member {
    Entering,
    In(Candidate, BootInstant),
    Leaving,
}

impl fmt::Debug for LeaseSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaseSession { holder, timings, .. } = self;
        formatter.debug_struct("LeaseSession").field("holder", holder).field("timings", timings).finish_non_exhaustive()
    }
}

impl LeaseSession {
    /// An election to take part in under the shared lease, with one candidate at a time. A second campaign waits up to
    /// a TTL for the first candidate to leave, then fails.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election, InvalidName> {
        let LeaseSession { source, holder, timings, meter } = self.clone();
        Ok(source.election(Settings { name: name.as_ref().parse()?, holder, timings, meter }))
    }
}

impl<C: Share> SharedLease<C> {
    pub(crate) fn new(coordinator: Arc<C>, timings: Timings) -> Self {
        let (state, granting, left) = (Mutex::default(), tokio::sync::Mutex::default(), Notify::new());
        SharedLease { shared: Arc::new(SessionState { coordinator, state, granting, left }), timings }
    }

    /// The renewal to wait for if one is due for this candidate; otherwise its deadline.
    fn due(&self, candidate: &Candidate, patience: Patience) -> Result<Result<BootInstant, Renewal>, Error> {
        let mut state = self.shared.state();
        let deadline = match state.members.get(&candidate.election) {
            Some(Member::In(member, deadline)) if member.lease == candidate.lease => *deadline,
            _ => return Err(Error::Gone),
        };
        // Recently renewed together with the others.
        if deadline - candidate.ttl + self.timings.renewal() / 2 > BootInstant::now() {
            return Ok(Ok(deadline));
        }
        let Some(lease) = state.lease else { return Err(Error::Gone) };
        let renewal = state.renewal.get_or_insert_with(|| {
            let (sender, receiver) = watch::channel(None);
            tokio::spawn(self.shared.clone().renew(lease, patience, sender));
            receiver
        });
        Ok(Err(renewal.clone()))
    }
}

impl<C: Share> SessionState<C> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews for all members that exist at its start.
    async fn renew(self: Arc<Self>, lease: Lease, patience: Patience, answer: watch::Sender<Option<Arc<Renewed>>>) {
        let members = self.state().members.values().filter_map(Member::candidate).cloned().collect::<Vec<_>>();
        let renewed = self.coordinator.renew_all(&lease, &members, patience).await;
        let mut state = self.state();
        state.renewal = None;
        if renewed == Err(Error::Gone) {
            state.forget(lease);
        }
        let renewed: Renewed = renewed.map(|each| members.into_iter().map(|it| it.election).zip(each).collect());
        for (election, renewed) in renewed.iter().flatten() {
            let Ok(renewed) = *renewed else { continue };
            if let Some(Member::In(_, deadline)) = state.members.get_mut(election) {
                *deadline = renewed;
            }
            if let Some(known) = state.lease.as_mut().filter(|known| known.id == lease.id) {
                known.deadline = renewed;
            }
        }
        answer.send_replace(Some(Arc::new(renewed)));
    }

    /// The current lease, or a new one.
    async fn lease(&self, ttl: Duration, patience: Patience) -> Result<Lease, Error> {
        let _granting = self.granting.lock().await;
        // Never reuse a lease that has expired by this clock: members that lost leadership with it must not return
        // under its token.
        let known = self.state().lease;
        if let Some(lease) = known.filter(|lease| !lease.deadline.remaining().is_zero()) {
            return Ok(lease);
        }
        let lease = self.coordinator.grant(ttl, patience).await?;
        self.state().lease = Some(lease);
        Ok(lease)
    }

    /// Waits until this process has no candidate in the election, and reserves the place.
    async fn reserve(&self, election: &ElectionName) {
        loop {
            let mut left = pin!(self.left.notified());
            left.as_mut().enable();
            if let Entry::Vacant(place) = self.state().members.entry(election.clone()) {
                place.insert(Member::Entering);
                return;
            }
            left.await;
        }
    }

    /// Retries until the place is certainly given up, because renewals for the others keep the lease alive. Must not be
    /// canceled.
    async fn leave_with_retries(self: Arc<Self>, candidate: Candidate, patience: Patience) {
        while let Err(Error::Unreachable { .. }) = self.leave(&candidate, patience).await {
            sleep(PAUSE).await;
        }
    }

    async fn leave(&self, candidate: &Candidate, patience: Patience) -> Result<(), Error> {
        let left = self.coordinator.leave(candidate, patience).await;
        if let Err(error @ Error::Unreachable { .. }) = left {
            return Err(error);
        }
        let unused = {
            let mut state = self.state();
            state.members.remove(&candidate.election);
            if state.members.is_empty() { state.lease.take() } else { None }
        };
        self.left.notify_waiters();
        match unused {
            Some(lease) => self.coordinator.revoke(&lease, patience).await,
            None => left,
        }
    }

    /// Records that the candidate leads under its token; its lease is then renewed.
    fn takes_turn(&self, candidate: &Candidate, turn: &Turn) {
        if let Some(Member::In(member, deadline)) = self.state().members.get_mut(&candidate.election) {
            member.token = turn.token.get();
            *deadline = turn.deadline.unwrap_or(*deadline);
        }
    }
}

impl State {
    fn forget(&mut self, lease: Lease) {
        self.lease = self.lease.filter(|known| known.id != lease.id);
    }
}

impl Member {
    fn candidate(&self) -> Option<&Candidate> {
        match self {
            Member::In(candidate, _) => Some(candidate),
            Member::Entering | Member::Leaving => None,
        }
    }
}

impl<C: Share> Sealed for SharedLease<C> {}

impl<C: Share> Coordinator for SharedLease<C> {
    async fn enrol(
        &self,
        election: &ElectionName,
        holder: &str,
        ttl: Duration,
        patience: Patience,
    ) -> Result<(Candidate, BootInstant), Error> {
        let shared = &self.shared;
        if timeout(patience.limit, shared.reserve(election)).await.is_err() {
            let reason = format!("the session already has a candidate in the election {election}");
            return Err(Error::Refused { reason });
        }
        let lease = match shared.lease(ttl, patience).await {
            Ok(lease) => lease,
            Err(error) => {
                shared.state().members.remove(election);
                shared.left.notify_waiters();
                return Err(error);
            }
        };
        let entered = shared.coordinator.enter(election, holder, &lease, patience).await;
        match &entered {
            Ok((candidate, deadline)) => {
                let member = Member::In(candidate.clone(), *deadline);
                shared.state().members.insert(election.clone(), member);
            }
            Err(error) => {
                if *error == Error::Gone {
                    shared.state().forget(lease);
                }
                debug!(%election, %error, "removing a place that the candidate may have taken");
                let (election, holder, ttl) = (election.clone(), holder.to_owned(), lease.ttl);
                let candidate = Candidate { election, holder, lease: lease.id, token: 0, ttl };
                tokio::spawn(shared.clone().leave_with_retries(candidate, patience));
            }
        }
        entered
    }

    async fn renew(&self, candidate: &Candidate, patience: Patience) -> Result<BootInstant, Error> {
        loop {
            let mut renewal = match self.due(candidate, patience)? {
                Ok(deadline) => return Ok(deadline),
                Err(renewal) => renewal,
            };
            let renewed = renewal.wait_for(Option::is_some).await.ok().and_then(|renewed| renewed.clone());
            match renewed.as_deref() {
                Some(Ok(each)) => {
                    if let Some(renewed) = each.get(&candidate.election) {
                        return renewed.clone();
                    }
                    // The member joined during the renewal, and needs another one.
                }
                Some(Err(error)) => return Err(error.clone()),
                None => return Err(Error::Gone),
            }
        }
    }

    async fn try_turn(&self, candidate: &Candidate, patience: Patience) -> Result<Option<Turn>, Error> {
        let turn = self.shared.coordinator.try_turn(candidate, patience).await?;
        Ok(turn.inspect(|turn| self.shared.takes_turn(candidate, turn)))
    }

    async fn await_turn(&self, candidate: &Candidate, patience: Patience) -> Result<Turn, Error> {
        let turn = self.shared.coordinator.await_turn(candidate, patience).await?;
        self.shared.takes_turn(candidate, &turn);
        Ok(turn)
    }

    async fn await_end(&self, candidate: &Candidate, patience: Patience) -> Lost {
        self.shared.coordinator.await_end(candidate, patience).await
    }

    async fn proclaim(&self, candidate: &Candidate, value: Vec<u8>, patience: Patience) -> Result<(), Error> {
        self.shared.coordinator.proclaim(candidate, value, patience).await
    }

    async fn withdraw(&self, candidate: &Candidate, patience: Patience) -> Result<(), Error> {
        self.shared.state().members.insert(candidate.election.clone(), Member::Leaving);
        let left = self.shared.leave(candidate, patience).await;
        if let Err(Error::Unreachable { .. }) = left {
            tokio::spawn(self.shared.clone().leave_with_retries(candidate.clone(), patience));
        }
        left
    }

    fn observe(self: &Arc<Self>, election: &ElectionName) -> Observer {
        self.shared.coordinator.observe(election)
    }
}
