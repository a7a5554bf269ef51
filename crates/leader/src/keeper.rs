//! Keeping a lease alive.
//!
//! Owns the deadline of the lease. Must never extend it by a renewal that was answered after the previous deadline.

use super::clock::{BootInstant, sleep_until};
use super::coordinator::{Candidate, Coordinator, CoordinatorError};
use super::leadership::KeeperState;
use super::loss::Loss;
use super::meter::Meter;
use super::timing::Timings;
use crate::Patience;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::debug;

/// Renewals end this long before the deadline, so that the reason of their failure is known in time. A keeper without a
/// reason at the deadline has been suspended itself.
const LAST_WORD: Duration = Duration::from_millis(100);

/// Renews the lease and publishes its deadline. Returns when the lease is over, at the deadline at the latest, with the
/// reason.
///
/// Not cancel-safe: renewals stop.
pub(super) async fn keep<C: Coordinator>(
    coordinator: &C,
    candidate: &Candidate,
    timings: &Timings,
    keeper_state: &watch::Sender<KeeperState>,
    meter: Option<&dyn Meter>,
) -> Loss {
    let mut next = next_renewal(deadline(keeper_state), candidate, timings);
    loop {
        let deadline = deadline(keeper_state);
        sleep_until(next.min(deadline)).await;
        let left = deadline.remaining();
        if left <= LAST_WORD {
            sleep_until(deadline).await;
            return over(keeper_state);
        }
        let patience = Patience { limit: left - LAST_WORD, member: timings.attempt() };
        let asked = Instant::now();
        note(keeper_state, |state| state.is_renewing = true);
        let answer = tokio::select! {
            biased;
            () = sleep_until(deadline) => return over(keeper_state),
            answer = coordinator.renew(candidate, patience) => answer,
        };
        if let Some(meter) = meter {
            meter.renewed(asked.elapsed());
        }
        if deadline.remaining().is_zero() {
            return over(keeper_state);
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
            Err(CoordinatorError::Gone) => return Loss::Revoked,
            Err(error) => {
                note(keeper_state, |state| state.failure = Some(error));
                next = BootInstant::now() + timings.attempt();
            }
        }
    }
}

fn deadline(keeper_state: &watch::Sender<KeeperState>) -> BootInstant {
    keeper_state.borrow().deadline
}

/// Counted from the time at which the last renewal was sent.
fn next_renewal(deadline: BootInstant, candidate: &Candidate, timings: &Timings) -> BootInstant {
    deadline - candidate.ttl + timings.renewal()
}

/// Changes the state without waking its watchers.
fn note(keeper_state: &watch::Sender<KeeperState>, change: impl FnOnce(&mut KeeperState)) {
    keeper_state.send_if_modified(|keeper_state| {
        change(keeper_state);
        false
    });
}

fn over(keeper_state: &watch::Sender<KeeperState>) -> Loss {
    keeper_state.borrow().failure.clone().map_or(Loss::Expired, Loss::from)
}

#[cfg(test)]
#[cfg(feature = "etcd")]
mod tests {
    use super::*;
    use crate::etcd::{Etcd, EtcdSettings};

    /// Keeps a lease with this remaining time, with an unreachable coordinator.
    async fn keep_unanswered(left: Duration) -> Loss {
        // The port of the discard service: nothing listens there.
        let members = vec!["http://127.0.0.1:9".into()];
        let etcd = Etcd::new(&EtcdSettings { members, ..EtcdSettings::default() }).unwrap();
        let timings = Timings::new(Duration::from_secs(2)).unwrap();
        let candidate =
            Candidate { election: "e".parse().unwrap(), holder: "h".into(), lease: 1, token: 1, ttl: timings.ttl() };
        let (keeper_state, _) = watch::channel(KeeperState::new(BootInstant::now() + left));
        // Blocks the thread, as if the process were stopped.
        std::thread::sleep(Duration::from_millis(50));
        keep(&*etcd, &candidate, &timings, &keeper_state, None).await
    }

    #[tokio::test]
    async fn a_suspension_past_the_deadline_expires_the_lease() {
        assert_eq!(keep_unanswered(Duration::from_millis(20)).await, Loss::Expired);
    }

    #[tokio::test]
    async fn a_refused_waiter_receives_the_reason() {
        let loss = keep_unanswered(Duration::from_millis(500)).await;
        assert!(matches!(&loss, Loss::Unreachable { reason } if reason.contains("127.0.0.1:9")), "{loss}");
    }
}
