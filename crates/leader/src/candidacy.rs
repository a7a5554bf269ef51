//! One candidate, from its place in the queue to the end of its leadership: the task behind a campaign.
//!
//! Owns the order of events at the end: first it publishes the loss, then it releases the lease. Must never return a
//! leadership whose deadline has passed, nor keep a place after its caller has gone.

use crate::clock::sleep_until;
use crate::coordinator::{Candidate, Coordinator, Turn};
use crate::keeper::keep;
use crate::leadership::{Leadership, Request, State};
use crate::timing::Timings;
use crate::{ElectionName, Error, Lost, Meter, Token};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::BootInstant;
    use crate::coordinator::Sealed;
    use crate::observer::Observe;
    use crate::{Leader, Observer, Patience};
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A coordinator that deletes each place as soon as it is taken.
    #[derive(Default)]
    struct TakesAway {
        given: AtomicUsize,
        /// Delete the place even before it is returned.
        at_once: bool,
    }

    struct Nobody;

    impl Observe for Nobody {
        async fn next(&mut self) -> Result<Option<Leader>, Error> {
            pending().await
        }
    }

    impl Sealed for TakesAway {}

    impl Coordinator for TakesAway {
        async fn enrol(
            &self,
            election: &ElectionName,
            holder: &str,
            ttl: Duration,
            _: Patience,
        ) -> Result<(Candidate, BootInstant), Error> {
            self.given.fetch_add(1, Relaxed);
            // Simulates the time of a response.
            sleep(Duration::from_millis(1)).await;
            if self.at_once {
                return Err(Error::Gone);
            }
            let (election, holder) = (election.clone(), holder.to_owned());
            Ok((Candidate { election, holder, lease: 1, token: 1, ttl }, BootInstant::now() + ttl))
        }

        async fn renew(&self, _: &Candidate, _: Patience) -> Result<BootInstant, Error> {
            Err(Error::Gone)
        }

        async fn try_turn(&self, _: &Candidate, _: Patience) -> Result<Option<Turn>, Error> {
            Err(Error::Gone)
        }

        async fn await_turn(&self, _: &Candidate, _: Patience) -> Result<Turn, Error> {
            Err(Error::Gone)
        }

        async fn await_end(&self, _: &Candidate, _: Patience) -> Lost {
            Lost::Revoked
        }

        async fn proclaim(&self, _: &Candidate, _: Vec<u8>, _: Patience) -> Result<(), Error> {
            Err(Error::Gone)
        }

        async fn withdraw(&self, _: &Candidate, _: Patience) -> Result<(), Error> {
            Ok(())
        }

        fn observe(self: &Arc<Self>, _: &ElectionName) -> Observer {
            Observer::new(Nobody)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lost_places_are_retaken_at_growing_intervals() {
        for at_once in [false, true] {
            let coordinator = Arc::new(TakesAway { at_once, ..TakesAway::default() });
            let timings =
                Timings::new(Duration::from_secs(10), Duration::from_secs(3), Duration::from_secs(1)).unwrap();
            let settings = Settings { name: "e".parse().unwrap(), holder: "h".into(), timings, meter: None };
            let campaign = Arc::new(Campaign { coordinator: coordinator.clone(), settings });
            let (won, outcome) = oneshot::channel();
            let candidacy = tokio::spawn(run(campaign, Waiting::ForTurn, won));
            sleep(Duration::from_secs(60)).await;
            let given = coordinator.given.load(Relaxed);
            assert!((10..30).contains(&given), "{given} places in a minute");
            drop(outcome);
            candidacy.await.unwrap();
            assert_eq!(coordinator.given.load(Relaxed), given, "none without a caller");
        }
    }
}
