//! Keeping a lease alive.
//!
//! Owns the deadline of the lease. Must never
//! - extend it by a renewal that was answered after the previous deadline;
//! - report only at the deadline that the lease was not renewed: the work needs time to stop.

use crate::clock::{BootInstant, sleep_until};
use crate::coordinator::{Candidate, Coordinator};
use crate::leadership::State;
use crate::timing::Timings;
use crate::{Error, Lost, Meter, Patience};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::debug;

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
        let asked = Instant::now();
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

#[cfg(test)]
#[cfg(feature = "etcd")]
mod tests {
    use super::*;
    use crate::etcd::{Etcd, EtcdSettings};

    /// Keeps a lease with this remaining time, with an unreachable coordinator.
    async fn keep_unanswered(left: Duration) -> Lost {
        // The port of the discard service: nothing listens there.
        let members = vec!["http://127.0.0.1:9".into()];
        let etcd = Etcd::new(&EtcdSettings { members, ..EtcdSettings::default() }).unwrap();
        let timings =
            Timings::new(Duration::from_secs(2), Duration::from_millis(600), Duration::from_millis(200)).unwrap();
        let candidate =
            Candidate { election: "e".parse().unwrap(), holder: "h".into(), lease: 1, token: 1, ttl: timings.ttl() };
        let (keeper_state, _) = watch::channel(State::new(BootInstant::now() + left));
        // Blocks the thread, as if the process were stopped.
        std::thread::sleep(Duration::from_millis(50));
        keep(&*etcd, &candidate, &timings, &keeper_state, None).await
    }

    #[tokio::test]
    async fn a_suspension_past_the_deadline_expires_the_lease() {
        assert_eq!(keep_unanswered(Duration::from_millis(20)).await, Lost::Expired);
    }

    #[tokio::test]
    async fn a_refused_waiter_receives_the_reason() {
        let loss = keep_unanswered(Duration::from_millis(500)).await;
        assert!(matches!(&loss, Lost::Unreachable { reason } if reason.contains("127.0.0.1:9")), "{loss}");
    }
}
