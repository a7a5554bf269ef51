//! One candidate, from its place in the queue to the end of its leadership: the task behind a campaign.
//!
//! Owns the order of events at the end: first it publishes the loss, then it releases the lease. Must never return a
//! leadership whose deadline has passed, nor keep a place after its caller has gone.

use super::LeaderError;
use super::coordinator::{Candidate, Coordinator, CoordinatorError, Turn};
use super::election::Election;
use super::keeper::keep;
use super::leadership::{KeeperRequest, KeeperState, Leadership};
use super::loss::Loss;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

/// Pause before a candidate that has lost its place takes a new one: the first pause, and the maximum. Another client
/// may delete every place immediately.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Sends the result of the campaign to its caller. None: another candidate leads, and this one does not wait.
type Won = oneshot::Sender<Result<Option<Leadership>, LeaderError>>;

/// Whether a candidate waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    ForTurn,
    NotAtAll,
}

/// How waiting ended.
enum Waited {
    /// This candidate leads, under this token.
    Ours(i64),
    /// Another candidate leads, and this one does not wait.
    Taken,
    /// The candidate has lost its place, and may take a new one.
    Lost,
    /// The caller of the campaign has gone.
    Abandoned,
    Failed(CoordinatorError),
}

/// Campaigns, sends the result to `won`, and keeps the lease until leadership ends. Must not be canceled: it ends
/// shortly after `won` or the leadership is dropped.
pub(super) async fn run<C: Coordinator>(election: Election<C>, waiting: Waiting, mut won: Won) {
    let mut pause = PAUSE.0;
    loop {
        let began = Instant::now();
        let Some(again) = stand(&election, waiting, won).await else { return };
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
async fn stand<C: Coordinator>(election: &Election<C>, waiting: Waiting, mut won: Won) -> Option<Won> {
    let Election { coordinator, name, holder, timings, .. } = election;
    // Do not cancel this step half-way: the key may already exist.
    let (candidate, deadline) = match coordinator.enrol(name, holder, timings.ttl(), timings.patience()).await {
        Ok(enrolled) => enrolled,
        Err(CoordinatorError::Gone) => return Some(won),
        Err(error) => {
            drop(won.send(Err(error.into())));
            return None;
        }
    };
    let (keeper_state, _) = watch::channel(KeeperState::new(deadline));
    match wait(election, waiting, &candidate, &keeper_state, &mut won).await {
        Waited::Ours(token) => lead(election, &Candidate { token, ..candidate }, &keeper_state, won).await,
        Waited::Lost => {
            drop(tokio::spawn(withdraw(election.clone(), candidate)));
            return Some(won);
        }
        Waited::Abandoned => drop(withdraw(election.clone(), candidate).await),
        Waited::Taken => {
            // Withdraw before answering, because the caller may end its process.
            drop(withdraw(election.clone(), candidate).await);
            drop(won.send(Ok(None)));
        }
        Waited::Failed(error) => {
            drop(won.send(Err(error.into())));
            drop(withdraw(election.clone(), candidate).await);
        }
    }
    None
}

async fn wait<C: Coordinator>(
    election: &Election<C>,
    waiting: Waiting,
    candidate: &Candidate,
    keeper_state: &watch::Sender<KeeperState>,
    won: &mut Won,
) -> Waited {
    let Election { coordinator, timings, meter, .. } = election;
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
            Loss::Unreachable { reason } => {
                return Waited::Failed(CoordinatorError::Unreachable { limit: timings.ttl(), reason });
            }
            Loss::Refused { reason } => return Waited::Failed(CoordinatorError::Refused { reason }),
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
        Err(CoordinatorError::Gone) => Waited::Lost,
        Err(error) => Waited::Failed(error),
    }
}

async fn lead<C: Coordinator>(
    election: &Election<C>,
    candidate: &Candidate,
    keeper_state: &watch::Sender<KeeperState>,
    won: Won,
) {
    let Candidate { token, lease, .. } = *candidate;
    let (name, holder) = (election.name.clone(), election.holder.clone());
    let (requests, inbox) = mpsc::channel(1);
    info!(election = %name, holder, token, "lease_acquired");
    if let Some(meter) = &election.meter {
        meter.leads(&election.name);
    }
    // Without a caller it is dropped, which ends the leadership.
    let keeper_states = keeper_state.subscribe();
    drop(won.send(Ok(Some(Leadership {
        token,
        election: name,
        holder: holder.clone(),
        lease,
        keeper_state: keeper_states,
        requests,
    }))));

    let (loss, resigned) = until_lost(election, candidate, keeper_state, inbox).await;
    // Publish the loss first: writing the log may take long.
    keeper_state.send_modify(|keeper_state| keeper_state.lost = Some(loss.clone()));
    if let Some(meter) = &election.meter {
        meter.lost(&election.name, &loss);
    }
    match &loss {
        Loss::Resigned => info!(election = %election.name, holder, token, reason = loss.label(), "lease_lost"),
        _ => warn!(election = %election.name, holder, token, reason = loss.label(), detail = %loss, "lease_lost"),
    }
    let withdrawn = withdraw(election.clone(), candidate.clone()).await;
    if let Some(answer) = resigned {
        drop(answer.send(withdrawn.map_err(LeaderError::from)));
    }
}

/// Returns why leadership ended, and where to report that it was released.
async fn until_lost<C: Coordinator>(
    election: &Election<C>,
    candidate: &Candidate,
    keeper_state: &watch::Sender<KeeperState>,
    mut inbox: mpsc::Receiver<KeeperRequest>,
) -> (Loss, Option<oneshot::Sender<Result<(), LeaderError>>>) {
    let Election { coordinator, timings, meter, .. } = election;
    let mut kept = pin!(keep(&**coordinator, candidate, timings, keeper_state, meter.as_deref()));
    let mut end = pin!(coordinator.await_end(candidate, timings.patience()));
    loop {
        tokio::select! {
            biased;
            loss = &mut kept => return (loss, None),
            // After a suspension the coordinator may report the loss before the deadline is seen.
            loss = &mut end => return (if is_over(keeper_state) { Loss::Expired } else { loss }, None),
            request = inbox.recv() => match request {
                Some(KeeperRequest::Proclaim(value, answer)) => {
                    drop(tokio::spawn(proclaim(election.clone(), candidate.clone(), value, answer)));
                }
                Some(KeeperRequest::Resign(answer)) => {
                    return (keeper_state.borrow().loss_by_resigning(candidate.ttl), Some(answer));
                }
                // The last handle of the leadership was dropped.
                None => return (keeper_state.borrow().loss_by_resigning(candidate.ttl), None),
            },
        }
    }
}

async fn proclaim<C: Coordinator>(
    Election { coordinator, timings, .. }: Election<C>,
    candidate: Candidate,
    value: Vec<u8>,
    answer: oneshot::Sender<Result<(), LeaderError>>,
) {
    match coordinator.proclaim(&candidate, value, timings.patience()).await {
        // Without a response the caller waits for the reason of the loss.
        Err(CoordinatorError::Gone) => {}
        proclaimed => drop(answer.send(proclaimed.map_err(LeaderError::from))),
    }
}

async fn withdraw<C: Coordinator>(election: Election<C>, candidate: Candidate) -> Result<(), CoordinatorError> {
    let withdrawn = election.coordinator.withdraw(&candidate, election.timings.patience()).await;
    if let Err(error) = &withdrawn {
        debug!(election = %election.name, token = candidate.token, %error, "the lease could not be released");
    }
    withdrawn
}

fn is_over(keeper_state: &watch::Sender<KeeperState>) -> bool {
    keeper_state.borrow().deadline.remaining().is_zero()
}

#[cfg(test)]
mod tests {
    use super::super::coordinator::{Observe, Turn};
    use super::super::timing::Timings;
    use super::*;
    use crate::clock::BootInstant;
    use crate::{ElectionName, Leader, Patience};
    use std::future::pending;
    use std::sync::Arc;
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
        async fn next(&mut self) -> Result<Option<Leader>, CoordinatorError> {
            pending().await
        }
    }

    impl Coordinator for TakesAway {
        type Observer = Nobody;

        async fn enrol(
            &self,
            election: &ElectionName,
            holder: &str,
            ttl: Duration,
            _: Patience,
        ) -> Result<(Candidate, BootInstant), CoordinatorError> {
            self.given.fetch_add(1, Relaxed);
            // Simulates the time of a response.
            sleep(Duration::from_millis(1)).await;
            if self.at_once {
                return Err(CoordinatorError::Gone);
            }
            let (election, holder) = (election.clone(), holder.to_owned());
            Ok((Candidate { election, holder, lease: 1, token: 1, ttl }, BootInstant::now() + ttl))
        }

        async fn renew(&self, _: &Candidate, _: Patience) -> Result<BootInstant, CoordinatorError> {
            Err(CoordinatorError::Gone)
        }

        async fn try_turn(&self, _: &Candidate, _: Patience) -> Result<Option<Turn>, CoordinatorError> {
            Err(CoordinatorError::Gone)
        }

        async fn await_turn(&self, _: &Candidate, _: Patience) -> Result<Turn, CoordinatorError> {
            Err(CoordinatorError::Gone)
        }

        async fn await_end(&self, _: &Candidate, _: Patience) -> Loss {
            Loss::Revoked
        }

        async fn proclaim(&self, _: &Candidate, _: Vec<u8>, _: Patience) -> Result<(), CoordinatorError> {
            Err(CoordinatorError::Gone)
        }

        async fn withdraw(&self, _: &Candidate, _: Patience) -> Result<(), CoordinatorError> {
            Ok(())
        }

        fn observe(self: &Arc<Self>, _: &ElectionName) -> Nobody {
            Nobody
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lost_places_are_retaken_at_growing_intervals() {
        for at_once in [false, true] {
            let coordinator = Arc::new(TakesAway { at_once, ..TakesAway::default() });
            let timings = Timings::new(Duration::from_secs(10)).unwrap();
            let election = Election::new(coordinator.clone(), "e".parse().unwrap(), "h", timings);
            let (won, outcome) = oneshot::channel();
            let candidacy = tokio::spawn(run(election, Waiting::ForTurn, won));
            sleep(Duration::from_secs(60)).await;
            let given = coordinator.given.load(Relaxed);
            assert!((10..30).contains(&given), "{given} places in a minute");
            drop(outcome);
            candidacy.await.unwrap();
            assert_eq!(coordinator.given.load(Relaxed), given, "none without a caller");
        }
    }
}
