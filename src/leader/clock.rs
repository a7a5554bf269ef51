//! The clock by which a lease is believed in: it goes on while the machine is suspended.
//!
//! tokio's and std's clocks (CLOCK_MONOTONIC) stand still then: a leader on a laptop that was
//! closed for an hour would wake up with its lease as fresh as before.

use nix::time::{ClockId, clock_gettime};
use std::ops::{Add, Sub};
use std::pin::pin;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::Notify;

/// tokio's timers do not see a suspension: this is how late a point that passed in one is noticed, at most.
const SLICE: Duration = Duration::from_millis(100);
/// Shorter suspensions are ignored: they delay timers by no more than their length.
const NOTICED: Duration = Duration::from_millis(1);

/// Wakes all sleepers after a suspension. One thread checks for all of them: a process may have 10,000 leases. None if the
/// system refused to start the thread.
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

/// How long the machine has been suspended since its start. Too low if the thread is interrupted between the two readings.
fn suspended() -> Duration {
    let with_suspension = BootInstant::now().since_boot();
    let without = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or(with_suspension);
    with_suspension.saturating_sub(without)
}

/// A point in time by CLOCK_BOOTTIME (clock_gettime(2)), to the ns. Means nothing on another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// Now.
    ///
    /// # Panics
    /// Where the system has no such clock: Linux before 2.6.39.
    #[allow(clippy::expect_used)]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME");
        BootInstant(Duration::from(now))
    }

    /// How long until this point; zero when it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    /// Since the machine was started.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// The point this long after the machine was started.
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

/// Returns at that point; where it passed while the machine was suspended, some 100 ms after that. Cancel-safe.
pub async fn sleep_until(instant: BootInstant) {
    loop {
        let Some(resumed) = &*RESUMED else { return sleep_in_slices(instant).await };
        let mut resumed = pin!(resumed.notified());
        // Before the clock is read, so that no later suspension is missed.
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
    async fn a_point_in_time_is_reached_and_not_before() {
        let instant = BootInstant::now() + Duration::from_millis(20);
        sleep_until(instant).await;
        assert_eq!(instant.remaining(), Duration::ZERO);
        sleep_until(instant).await;
        let instant = BootInstant::now() + Duration::from_millis(20);
        sleep_in_slices(instant).await;
        assert_eq!(instant.remaining(), Duration::ZERO);
    }

    /// Polls until it is ready, and counts that.
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
    async fn a_sleeper_is_woken_at_its_deadline_and_after_a_suspension_only() {
        let instant = BootInstant::now() + Duration::from_secs(1);
        // At first and at the deadline; once more where the timer is early.
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
