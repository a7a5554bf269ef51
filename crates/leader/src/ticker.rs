//! Ticks at round times of the wall clock.
//!
//! Owns which tick is due. Must never return the same tick twice, even if the clock changes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;

/// Interval between checks of the clock, which may be set.
const SLICE: Duration = Duration::from_millis(500);

/// One tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Due time: a multiple of the period since the Unix epoch.
    pub at: SystemTime,
    /// Number of ticks that were missed between the last one and this one.
    pub skipped: u64,
}

/// Ticks at multiples of a period since the Unix epoch, so that all machines and successive leaders have the same
/// ticks.
#[derive(Clone, Debug)]
pub struct Ticker {
    /// Period in nanoseconds.
    period: u128,
    /// Number of the last returned tick, since the epoch.
    last: u128,
}

impl Ticker {
    /// Starts with the next round time. Periods below 1 ms count as 1 ms.
    pub fn new(period: Duration) -> Self {
        Self::after(period, SystemTime::now())
    }

    /// Continues after a tick that was already taken, for example by a predecessor. The first tick reports those missed
    /// since; it returns immediately if any was.
    pub fn after(period: Duration, last: SystemTime) -> Self {
        let period = period.max(Duration::from_millis(1)).as_nanos();
        Ticker { period, last: since_epoch(last) / period }
    }

    /// Returns the next tick; if several are due, the latest. Waits for a clock that was set back; notices one that was
    /// set forward within a second. Cancel-safe.
    pub async fn tick(&mut self) -> Tick {
        loop {
            match self.due(since_epoch(SystemTime::now())) {
                Ok(tick) => return tick,
                Err(wait) => sleep(wait.min(SLICE)).await,
            }
        }
    }

    /// The tick that is due at this time, or the time to wait for one.
    fn due(&mut self, now: u128) -> Result<Tick, Duration> {
        let number = now / self.period;
        if number <= self.last {
            return Err(duration((self.last + 1) * self.period - now));
        }
        let skipped = u64::try_from(number - self.last - 1).unwrap_or(u64::MAX);
        self.last = number;
        Ok(Tick { at: UNIX_EPOCH + duration(number * self.period), skipped })
    }
}

/// Nanoseconds since the epoch; 0 for earlier times.
fn since_epoch(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

fn duration(nanoseconds: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let seconds = u64::try_from(nanoseconds / SECOND).unwrap_or(u64::MAX);
    Duration::from_secs(seconds) + Duration::from_nanos((nanoseconds % SECOND) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + SECOND * u32::try_from(seconds).unwrap()
    }

    /// The tick that is due `seconds` after the epoch.
    fn due(ticker: &mut Ticker, seconds: f64) -> Result<Tick, Duration> {
        ticker.due(Duration::from_secs_f64(seconds).as_nanos())
    }

    #[test]
    fn ticks_come_in_order_at_multiples_of_the_period() {
        let mut ticker = Ticker::after(SECOND * 10, at(1003));
        assert_eq!(due(&mut ticker, 1003.0), Err(SECOND * 7));
        assert_eq!(due(&mut ticker, 1010.0), Ok(Tick { at: at(1010), skipped: 0 }));
        assert_eq!(due(&mut ticker, 1010.0), Err(SECOND * 10));
        assert_eq!(due(&mut ticker, 1020.5), Ok(Tick { at: at(1020), skipped: 0 }));
        assert_eq!(due(&mut ticker, 1021.0), Err(SECOND * 9));
    }

    #[test]
    fn a_late_tick_is_the_latest_and_counts_skipped_ones() {
        let mut ticker = Ticker::after(SECOND * 10, at(1000));
        assert_eq!(due(&mut ticker, 1045.0), Ok(Tick { at: at(1040), skipped: 3 }));
        assert_eq!(due(&mut ticker, 1050.0), Ok(Tick { at: at(1050), skipped: 0 }));
    }

    #[test]
    fn a_clock_set_back_repeats_no_tick() {
        let mut ticker = Ticker::after(SECOND * 10, at(1000));
        assert!(due(&mut ticker, 1010.0).is_ok());
        assert_eq!(due(&mut ticker, 995.0), Err(SECOND * 25));
        assert_eq!(due(&mut ticker, 1010.0), Err(SECOND * 10));
        assert_eq!(due(&mut ticker, 1020.0), Ok(Tick { at: at(1020), skipped: 0 }));
    }

    #[test]
    fn every_period_and_time_is_accepted() {
        let mut longest = Ticker::new(Duration::MAX);
        assert!(longest.due(since_epoch(SystemTime::now())).is_err());
        assert_eq!(Ticker::after(Duration::ZERO, at(1)).period, 1_000_000);
        assert_eq!(Ticker::after(SECOND, UNIX_EPOCH - SECOND).last, 0);
    }

    #[tokio::test]
    async fn real_ticks_are_on_time() {
        let period = Duration::from_millis(20);
        let mut ticker = Ticker::new(period);
        let (first, second) = (ticker.tick().await, ticker.tick().await);
        assert_eq!(since_epoch(first.at) % period.as_nanos(), 0);
        let between = second.at.duration_since(first.at).unwrap();
        assert_eq!(between, period * u32::try_from(second.skipped + 1).unwrap());
        assert!(SystemTime::now() >= second.at);
    }
}
