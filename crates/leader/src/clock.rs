//! The clock for lease deadlines: it continues while the machine is suspended.
//!
//! The clocks of tokio and std (CLOCK_MONOTONIC) stop then: a leader on a laptop that was closed for an hour would
//! resume and consider its lease valid.

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
}
