//! One candidate, from its place in the queue to the end of its leadership: the task behind a campaign, and the renewals of its
//! lease.
//!
//! Owns the deadline of the lease, and the order of events at the end: first it publishes the loss, then it releases the lease.
//! Must never
//! - return a leadership whose deadline has passed, nor keep a place after its caller has gone;
//! - extend the deadline by a renewal that was answered after the previous deadline;
//! - report only at the deadline that the lease was not renewed: the work needs time to stop.

use crate::clock::{BootInstant, Timings, sleep_until};
use crate::coordinator::{Candidate, Coordinator, Turn};
use crate::leadership::{Leadership, Request, State};
use crate::{ElectionName, Error, Lost, Patience, Token};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

/// Pause before a candidate that has lost its place takes a new one: the first pause, and the maximum. Another client
/// may delete every place immediately.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Sends the result of the campaign to its caller. None: another candidate leads, and this one does not wait.
pub(crate) type Won = oneshot::Sender<Result<Option<Leadership>, Error>>;

/// The settings of a candidate.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) name: ElectionName,
    pub(crate) holder: String,
    pub(crate) timings: Timings,
    /// Receives metrics, if set.
    pub(crate) meter: Option<Arc<dyn Meter>>,
}

/// An election on a coordinator.
pub(crate) struct Campaign<C> {
    pub(crate) coordinator: Arc<C>,
    pub(crate) settings: Settings,
}

/// Whether a candidate waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    ForTurn,
    NotAtAll,
}

/// How waiting ended.
enum Waited {
    /// This candidate leads, under this token.
    Ours(Token),
    /// Another candidate leads, and this one does not wait.
    Taken,
    /// The candidate has lost its place, and may take a new one.
    Lost,
    /// The caller of the campaign has gone.
    Abandoned,
    Failed(Error),
}

/// Campaigns, sends the result to `won`, and keeps the lease until leadership ends. Must not be canceled: it ends
/// shortly after `won` or the leadership is dropped.
pub(crate) async fn run<C: Coordinator>(campaign: Arc<Campaign<C>>, waiting: Waiting, mut won: Won) {
    let mut pause = PAUSE.0;
    loop {
        let began = Instant::now();
        let Some(again) = stand(&campaign, waiting, won).await else { return };
        won = again;
        if began.elapsed() > PAUSE.1 {
            pause = PAUSE.0;
        }
        tokio::select! {
            () = won.closed() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Runs one candidate. Returns `won` if the candidate lost its place before its turn, so that another can follow.
async fn stand<C: Coordinator>(campaign: &Arc<Campaign<C>>, waiting: Waiting, mut won: Won) -> Option<Won> {
    let Settings { name, holder, timings, .. } = &campaign.settings;
    // Do not cancel this step half-way: the key may already exist.
    let (candidate, deadline) = match campaign.coordinator.enrol(name, holder, timings.ttl(), timings.patience()).await
    {
        Ok(enrolled) => enrolled,
        Err(Error::Gone) => return Some(won),
        Err(error) => {
            drop(won.send(Err(error)));
            return None;
        }
    };
    let (keeper_state, _) = watch::channel(State::new(deadline));
    match wait(campaign, waiting, &candidate, &keeper_state, &mut won).await {
        Waited::Ours(token) => lead(campaign, token, candidate, &keeper_state, won).await,
        Waited::Lost => {
            drop(tokio::spawn(withdraw(campaign.clone(), candidate)));
            return Some(won);
        }
        Waited::Abandoned => drop(withdraw(campaign.clone(), candidate).await),
        Waited::Taken => {
            // Withdraw before answering, because the caller may end its process.
            drop(withdraw(campaign.clone(), candidate).await);
            drop(won.send(Ok(None)));
        }
        Waited::Failed(error) => {
            drop(won.send(Err(error)));
            drop(withdraw(campaign.clone(), candidate).await);
        }
    }
    None
}

async fn wait<C: Coordinator>(
    campaign: &Arc<Campaign<C>>,
    waiting: Waiting,
    candidate: &Candidate,
    keeper_state: &watch::Sender<State>,
    won: &mut Won,
) -> Waited {
    let Campaign { coordinator, settings: Settings { timings, meter, .. } } = &**campaign;
    let turn = async {
        match waiting {
            Waiting::ForTurn => coordinator.await_turn(candidate, timings.patience()).await.map(Some),
            Waiting::NotAtAll => coordinator.try_turn(candidate, timings.patience()).await,
        }
    };
    let waited = tokio::select! {
        biased;
        () = won.closed() => return Waited::Abandoned,
        loss = keep(&**coordinator, candidate, timings, keeper_state, meter.as_deref()) => match loss {
            Lost::Unreachable { reason } => {
                return Waited::Failed(Error::Unreachable { limit: timings.ttl(), reason });
            }
            Lost::Refused { reason } => return Waited::Failed(Error::Refused { reason }),
            _ => return Waited::Lost,
        },
        turn = turn => turn,
    };
    match waited {
        Ok(Some(Turn { token, deadline })) => {
            if let Some(deadline) = deadline {
                keeper_state.send_modify(|keeper_state| keeper_state.deadline = deadline);
            }
            if is_over(keeper_state) { Waited::Lost } else { Waited::Ours(token) }
        }
        Ok(None) => Waited::Taken,
        Err(Error::Gone) => Waited::Lost,
        Err(error) => Waited::Failed(error),
    }
}

async fn lead<C: Coordinator>(
    campaign: &Arc<Campaign<C>>,
    token: Token,
    candidate: Candidate,
    keeper_state: &watch::Sender<State>,
    won: Won,
) {
    let candidate = Candidate { token: token.get(), ..candidate };
    let Settings { name: election, holder, meter, .. } = &campaign.settings;
    let (requests, mut inbox) = mpsc::channel(1);
    info!(%election, holder, token = candidate.token, "lease_acquired");
    if let Some(meter) = meter {
        meter.leads(election);
    }
    // Without a caller it is dropped, which ends the leadership.
    let (lease, state) = (candidate.lease, keeper_state.subscribe());
    let leadership = Leadership { token, election: election.clone(), holder: holder.clone(), lease, state, requests };
    drop(won.send(Ok(Some(leadership))));

    let (lost, resigned) = until_lost(campaign, &candidate, keeper_state, &mut inbox).await;
    // Publish the loss first: writing the log may take long.
    keeper_state.send_modify(|keeper_state| keeper_state.lost = Some(lost.clone()));
    if let Some(meter) = meter {
        meter.lost(election, &lost);
    }
    match &lost {
        Lost::Resigned => info!(%election, holder, token = candidate.token, reason = lost.label(), "lease_lost"),
        _ => warn!(%election, holder, token = candidate.token, reason = lost.label(), detail = %lost, "lease_lost"),
    }
    if lost.is_unrenewed() && resigned.is_none() {
        let deadline = keeper_state.borrow().deadline;
        // Until then, the work may go on.
        tokio::select! {
            () = sleep_until(deadline) => {}
            () = until_given_up(&mut inbox) => {}
        }
    }
    drop(inbox);
    let withdrawn = withdraw(campaign.clone(), candidate).await;
    if let Some(answer) = resigned {
        drop(answer.send(withdrawn));
    }
}

/// Returns why leadership ended, and where to report that it was released.
async fn until_lost<C: Coordinator>(
    campaign: &Arc<Campaign<C>>,
    candidate: &Candidate,
    keeper_state: &watch::Sender<State>,
    inbox: &mut mpsc::Receiver<Request>,
) -> (Lost, Option<oneshot::Sender<Result<(), Error>>>) {
    let Campaign { coordinator, settings: Settings { timings, meter, .. } } = &**campaign;
    let mut kept = pin!(keep(&**coordinator, candidate, timings, keeper_state, meter.as_deref()));
    let mut end = pin!(coordinator.await_end(candidate, timings.patience()));
    loop {
        tokio::select! {
            biased;
            lost = &mut kept => return (lost, None),
            // After a suspension the coordinator may report the loss before the deadline is seen.
            lost = &mut end => return (if is_over(keeper_state) { Lost::Expired } else { lost }, None),
            request = inbox.recv() => match request {
                Some(Request::Proclaim(value, answer)) => {
                    drop(tokio::spawn(proclaim(campaign.clone(), candidate.clone(), value, answer)));
                }
                Some(Request::Resign(answer)) => {
                    return (keeper_state.borrow().loss_by_resigning(candidate.ttl), Some(answer));
                }
                // The last handle of the leadership was dropped.
                None => return (keeper_state.borrow().loss_by_resigning(candidate.ttl), None),
            },
        }
    }
}

/// Returns when the lost leadership is resigned or its last handle is dropped. Without a response, its requests report
/// the reason of the loss. Cancel-safe.
async fn until_given_up(inbox: &mut mpsc::Receiver<Request>) {
    while let Some(Request::Proclaim(..)) = inbox.recv().await {}
}

async fn proclaim<C: Coordinator>(
    campaign: Arc<Campaign<C>>,
    candidate: Candidate,
    value: Vec<u8>,
    answer: oneshot::Sender<Result<(), Error>>,
) {
    match campaign.coordinator.proclaim(&candidate, value, campaign.settings.timings.patience()).await {
        // Without a response the caller waits for the reason of the loss.
        Err(Error::Gone) => {}
        proclaimed => drop(answer.send(proclaimed)),
    }
}

async fn withdraw<C: Coordinator>(campaign: Arc<Campaign<C>>, candidate: Candidate) -> Result<(), Error> {
    let Settings { name: election, timings, .. } = &campaign.settings;
    let withdrawn = campaign.coordinator.withdraw(&candidate, timings.patience()).await;
    if let Err(error) = &withdrawn {
        debug!(%election, token = candidate.token, %error, "the lease could not be released");
    }
    withdrawn
}

fn is_over(keeper_state: &watch::Sender<State>) -> bool {
    keeper_state.borrow().remaining().is_zero()
}

/// A loss is announced this long before the deadline.
const NOTICE: Duration = Duration::from_millis(100);
/// Renewals end this long before the announcement, so that it has the reason of their failure. A keeper without a
/// reason has been suspended itself.
const LAST_WORD: Duration = Duration::from_millis(100);

/// Renews the lease and publishes its deadline. Returns the reason when the lease is over: [`NOTICE`] before the
/// deadline at the latest.
///
/// Not cancel-safe: renewals stop.
pub(super) async fn keep<C: Coordinator>(
    coordinator: &C,
    candidate: &Candidate,
    timings: &Timings,
    keeper_state: &watch::Sender<State>,
    meter: Option<&dyn Meter>,
) -> Lost {
    let mut next = next_renewal(deadline(keeper_state), candidate, timings);
    loop {
        let deadline = deadline(keeper_state);
        let end = deadline - NOTICE;
        sleep_until(next.min(end)).await;
        let left = end.remaining();
        if left <= LAST_WORD {
            sleep_until(end).await;
            return keeper_state.borrow().unrenewed();
        }
        let patience = Patience { limit: left - LAST_WORD, member: timings.attempt() };
        let asked = std::time::Instant::now();
        note(keeper_state, |state| state.is_renewing = true);
        let answer = tokio::select! {
            biased;
            () = sleep_until(end) => return keeper_state.borrow().unrenewed(),
            answer = coordinator.renew(candidate, patience) => answer,
        };
        if let Some(meter) = meter {
            meter.renewed(asked.elapsed());
        }
        if end.remaining().is_zero() {
            return keeper_state.borrow().unrenewed();
        }
        note(keeper_state, |state| state.is_renewing = false);
        match answer {
            Ok(renewed) => {
                note(keeper_state, |state| state.failure = None);
                next = next_renewal(renewed, candidate, timings);
                keeper_state.send_modify(|keeper_state| keeper_state.deadline = deadline.max(renewed));
                let Candidate { election, holder, token, .. } = candidate;
                debug!(%election, holder, token, "lease_renewed");
            }
            Err(Error::Gone) => return Lost::Revoked,
            Err(error) => {
                note(keeper_state, |state| state.failure = Some(error));
                next = BootInstant::now() + timings.attempt();
            }
        }
    }
}

fn deadline(keeper_state: &watch::Sender<State>) -> BootInstant {
    keeper_state.borrow().deadline
}

/// Counted from the time at which the last renewal was sent.
fn next_renewal(deadline: BootInstant, candidate: &Candidate, timings: &Timings) -> BootInstant {
    deadline - candidate.ttl + timings.renewal()
}

/// Changes the state without waking its watchers.
fn note(keeper_state: &watch::Sender<State>, change: impl FnOnce(&mut State)) {
    keeper_state.send_if_modified(|keeper_state| {
        change(keeper_state);
        false
    });
}

/// Receives the events of candidates. Must not block: the task that keeps the lease calls it.
pub trait Meter: Send + Sync {
    /// A candidate has entered the election. It does not lead yet.
    fn campaigns(&self, election: &ElectionName);

    /// The candidate has become the leader.
    fn leads(&self, election: &ElectionName);

    /// The candidate no longer leads.
    fn lost(&self, election: &ElectionName, loss: &Lost);

    /// A renewal of the lease, answered or not, took this long.
    fn renewed(&self, took: Duration);
}

#[cfg(test)]
#[cfg(feature = "etcd")]
mod tests;
