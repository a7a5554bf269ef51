//! The clock for lease deadlines, which continues while the machine is suspended; and the TTL and renewal interval of a
//! lease.
//!
//! The clocks of tokio and std (CLOCK_MONOTONIC) stop during a suspension: after an hour with a closed lid, a leader on
//! a laptop would consider its lease valid. Must never accept timings that lose leadership to a single lost message.

use crate::Patience;
use nix::time::{ClockId, clock_gettime};
use std::ops::{Add, Sub};
use std::pin::pin;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::Notify;

/// tokio's timers ignore suspensions. This is the maximum delay in noticing a deadline that passed in one.
const SLICE: Duration = Duration::from_millis(100);
/// Shorter suspensions are ignored: they delay timers by no more than their own length.
const NOTICED: Duration = Duration::from_millis(1);

/// Wakes all sleepers after a suspension. One thread checks for all of them, because a process may have 10,000 leases.
/// None if the system refused to start the thread.
static RESUMED: LazyLock<Option<Notify>> = LazyLock::new(|| {
    let started = std::thread::Builder::new().name("suspension".to_owned()).spawn(watch_suspension);
    started.is_ok().then(Notify::new)
});

fn watch_suspension() {
    let mut known = suspended();
    loop {
        std::thread::sleep(SLICE);
        let suspended = suspended();
        if suspended > known + NOTICED {
            known = suspended;
            RESUMED.iter().for_each(Notify::notify_waiters);
        }
    }
}

/// Total suspension since boot. Too low if the thread is interrupted between the two clock readings.
fn suspended() -> Duration {
    let with_suspension = BootInstant::now().since_boot();
    let without = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or(with_suspension);
    with_suspension.saturating_sub(without)
}

/// An instant of CLOCK_BOOTTIME (clock_gettime(2)), in nanoseconds. Meaningless on another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// The current instant.
    ///
    /// # Panics
    /// If the system lacks this clock: Linux before 2.6.39.
    #[allow(clippy::expect_used)]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME");
        BootInstant(Duration::from(now))
    }

    /// Time until this instant; zero if it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    /// Time since boot.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// The instant this long after boot.
    pub fn at(since_boot: Duration) -> Self {
        BootInstant(since_boot)
    }
}

impl Add<Duration> for BootInstant {
    type Output = BootInstant;

    fn add(self, duration: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = BootInstant;

    fn sub(self, duration: Duration) -> BootInstant {
        BootInstant(self.0.saturating_sub(duration))
    }
}

/// Returns at that instant, or about 100 ms after the end of a suspension in which it passed. Cancel-safe.
pub async fn sleep_until(instant: BootInstant) {
    loop {
        let Some(resumed) = &*RESUMED else { return sleep_in_slices(instant).await };
        let mut resumed = pin!(resumed.notified());
        // Register before reading the clock, so that no later suspension is missed.
        resumed.as_mut().enable();
        let remaining = instant.remaining();
        if remaining.is_zero() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(remaining) => {}
            () = resumed => {}
        }
    }
}

async fn sleep_in_slices(instant: BootInstant) {
    loop {
        let remaining = instant.remaining();
        if remaining.is_zero() {
            return;
        }
        tokio::time::sleep(remaining.min(SLICE)).await;
    }
}

/// The shortest TTL that etcd grants with its default election timeout.
const SHORTEST_TTL: Duration = Duration::from_secs(2);
/// With a longer TTL, a crashed leader would block its successors for too long.
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// Below the response time of a member, every request would go to all members.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(10);

/// Validated timings of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timings {
    ttl: Duration,
    renewal: Duration,
    attempt: Duration,
}

/// Why a combination is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum InvalidTimings {
    /// The TTL is too short, too long, or has fractions of a second.
    #[error(
        "a TTL of {0:?} is invalid: it must be whole seconds from {SHORTEST_TTL:?} (etcd's minimum) to {LONGEST_TTL:?}"
    )]
    Ttl(Duration),
    /// The attempt limit is too short.
    #[error("{0:?} is too short for one attempt: the minimum is {SHORTEST_ATTEMPT:?}")]
    Attempt(Duration),
    /// Renewals would follow each other faster than they may take.
    #[error("a renewal every {renewal:?} is too frequent, because one attempt may take {attempt:?}")]
    Renewal { renewal: Duration, attempt: Duration },
    /// No time remains for a second attempt.
    #[error(
        "a renewal every {renewal:?} with {attempt:?} per attempt leaves no time for a second attempt before the last \
         third of a TTL of {ttl:?}: one lost message would end leadership; renew more often, or give an attempt less time"
    )]
    NoRetry { ttl: Duration, renewal: Duration, attempt: Duration },
}

impl Timings {
    /// A lease with this TTL and renewal interval. `attempt` is the time for one member before the next is queried too.
    ///
    /// # Errors
    /// The TTL is not whole seconds from 2 s to 1 h, or a renewal and a second attempt do not fit into its first two
    /// thirds.
    pub(crate) fn new(ttl: Duration, renewal: Duration, attempt: Duration) -> Result<Self, InvalidTimings> {
        if ttl.subsec_nanos() != 0 || !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
            Err(InvalidTimings::Ttl(ttl))
        } else if attempt < SHORTEST_ATTEMPT {
            Err(InvalidTimings::Attempt(attempt))
        } else if renewal < attempt {
            Err(InvalidTimings::Renewal { renewal, attempt })
        } else if renewal.saturating_add(attempt.saturating_mul(2)) > ttl * 2 / 3 {
            Err(InvalidTimings::NoRetry { ttl, renewal, attempt })
        } else {
            Ok(Timings { ttl, renewal, attempt })
        }
    }

    /// Lifetime of the lease after a renewal.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Interval between renewals.
    pub(crate) fn renewal(&self) -> Duration {
        self.renewal
    }

    /// Time for one member before another is queried too.
    pub(crate) fn attempt(&self) -> Duration {
        self.attempt
    }

    /// Limits for a request that the lease does not depend on: a TTL in total.
    pub(crate) fn patience(&self) -> Patience {
        Patience { limit: self.ttl, member: self.attempt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Future, poll_fn};

    #[tokio::test]
    async fn a_sleep_ends_at_its_deadline() {
        let instant = BootInstant::now() + Duration::from_millis(20);
        sleep_until(instant).await;
        assert_eq!(instant.remaining(), Duration::ZERO);
        sleep_until(instant).await;
        let instant = BootInstant::now() + Duration::from_millis(20);
        sleep_in_slices(instant).await;
        assert_eq!(instant.remaining(), Duration::ZERO);
    }

    /// Polls a future to completion and counts the polls.
    async fn polls(sleep: impl Future<Output = ()>) -> usize {
        let (mut polls, mut sleep) = (0, pin!(sleep));
        poll_fn(|context| {
            polls += 1;
            sleep.as_mut().poll(context)
        })
        .await;
        polls
    }

    #[tokio::test]
    async fn a_sleeper_wakes_only_at_its_deadline_and_after_a_suspension() {
        let instant = BootInstant::now() + Duration::from_secs(1);
        // The first poll, the deadline, and once more if the timer is early.
        assert!(polls(sleep_until(instant)).await <= 3);
        let instant = BootInstant::now() + Duration::from_secs(1);
        let woken = polls(async {
            let resumed = async {
                tokio::task::yield_now().await;
                RESUMED.iter().for_each(Notify::notify_waiters);
            };
            tokio::join!(sleep_until(instant), resumed);
        });
        assert!(woken.await >= 3);
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The builder's default timings.
    fn usual(ttl: Duration) -> Result<Timings, InvalidTimings> {
        Timings::new(ttl, ttl / 3, ttl / 9)
    }

    #[test]
    fn every_valid_ttl_has_default_timings() {
        for seconds in [2, 3, 10, 3600] {
            assert!(usual(SECOND * seconds).is_ok(), "{seconds} s");
        }
        for ttl in [Duration::ZERO, SECOND, SECOND * 5 / 2, SECOND * 3601, Duration::MAX] {
            assert_eq!(usual(ttl), Err(InvalidTimings::Ttl(ttl)));
        }
    }

    #[test]
    fn timings_without_room_for_a_retry_are_rejected() {
        let (ttl, renewal) = (SECOND * 9, SECOND * 3);
        assert!(Timings::new(ttl, renewal, SECOND * 3 / 2).is_ok());
        let attempt = SECOND * 8 / 5;
        assert_eq!(Timings::new(ttl, renewal, attempt), Err(InvalidTimings::NoRetry { ttl, renewal, attempt }));
        let attempt = Duration::MAX;
        let renewal = Duration::MAX;
        assert_eq!(Timings::new(ttl, renewal, attempt), Err(InvalidTimings::NoRetry { ttl, renewal, attempt }));
    }

    #[test]
    fn timings_that_would_flood_the_coordinator_are_rejected() {
        let (ttl, attempt) = (SECOND * 9, Duration::from_millis(500));
        let renewal = attempt / 2;
        assert_eq!(Timings::new(ttl, renewal, attempt), Err(InvalidTimings::Renewal { renewal, attempt }));
        let attempt = Duration::from_millis(1);
        assert_eq!(Timings::new(ttl, SECOND, attempt), Err(InvalidTimings::Attempt(attempt)));
    }
}
