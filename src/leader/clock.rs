//! The clock by which a lease is believed in: it goes on while the machine is suspended.
//!
//! tokio's and std's clocks (CLOCK_MONOTONIC) stand still then: a leader on a laptop that was
//! closed for an hour would wake up with its lease as fresh as before.

use nix::time::{ClockId, clock_gettime};
use std::ops::{Add, Sub};
use std::time::Duration;

/// tokio's timers do not see a suspension: this is how late a point that passed in one is noticed, at most.
const SLICE: Duration = Duration::from_millis(100);

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

/// Returns at that point; where it passed while the machine was suspended, at most 100 ms after that. Cancel-safe.
pub async fn sleep_until(instant: BootInstant) {
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

    #[tokio::test]
    async fn a_point_in_time_is_reached_and_not_before() {
        let instant = BootInstant::now() + Duration::from_millis(20);
        sleep_until(instant).await;
        assert_eq!(instant.remaining(), Duration::ZERO);
        sleep_until(instant).await;
    }
}
