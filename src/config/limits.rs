//! Limits on clients and times.
//!
//! Owns the format of numbers and times.

use super::sources::Texts;
use super::{ConfigError, SettingError};
use std::num::NonZeroUsize;
use std::time::Duration;

/// Maximum of the connection limits.
const MOST_CONNECTIONS: usize = 1_000_000;
/// Maximum number of session threads.
const MOST_WORKERS: usize = 1024;
/// Maximum of most time settings.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum idle time before the kernel probes, in seconds (`MAX_TCP_KEEPIDLE`).
const LONGEST_SILENCE: Duration = Duration::from_secs(32_400);

/// Limits on clients. A reload applies only to later events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of concurrent clients.
    pub connections: NonZeroUsize,
    /// Maximum number of concurrent sessions per user.
    pub connections_per_user: Option<NonZeroUsize>,
    /// Maximum number of concurrent sessions per database.
    pub connections_per_database: Option<NonZeroUsize>,
    /// Maximum number of concurrent sessions per address.
    pub connections_per_address: Option<NonZeroUsize>,
    /// Limit on TLS, the startup packet and authentication.
    pub startup: Duration,
    /// Time for which a new session waits for a server that may serve it.
    pub connect_wait: Duration,
    /// Limit on idle time outside a transaction; None: no limit.
    pub idle: Option<Duration>,
    /// Limit on open transactions after SIGTERM.
    pub shutdown: Duration,
    /// Limit on the sessions that remain after a successor has taken over.
    pub drain: Duration,
    /// Idle time before TCP probes a peer, in whole seconds; None: the system's setting.
    pub keepalive: Option<Duration>,
}

/// Reads the limits.
/// Errors: the first invalid limit.
pub(super) fn read(texts: &Texts) -> Result<Limits, ConfigError> {
    let off_at_zero = |time: Duration| (!time.is_zero()).then_some(time);
    let keepalive = |text: &str| match time(text, LONGEST_SILENCE)? {
        time if time.is_zero() || time >= Duration::from_secs(1) => Ok(off_at_zero(time)),
        _ => Err(SettingError::UnderASecond(text.to_owned())),
    };
    let startup = |text: &str| match time(text, LONGEST)? {
        time if time.is_zero() => Err(SettingError::Zero),
        time => Ok(time),
    };
    Ok(Limits {
        connections: texts.require("max_connections", connections)?,
        connections_per_user: texts.read_one("max_connections_per_user", connections)?,
        connections_per_database: texts.read_one("max_connections_per_database", connections)?,
        connections_per_address: texts.read_one("max_connections_per_address", connections)?,
        startup: texts.require("startup_timeout", startup)?,
        connect_wait: texts.require("connect_wait", |text| time(text, LONGEST))?,
        idle: off_at_zero(texts.require("idle_timeout", |text| time(text, LONGEST))?),
        shutdown: texts.require("shutdown_timeout", |text| time(text, LONGEST))?,
        drain: texts.require("drain_timeout", |text| time(text, LONGEST))?,
        keepalive: texts.require("keepalive", keepalive)?,
    })
}

fn connections(text: &str) -> Result<NonZeroUsize, SettingError> {
    number(text, MOST_CONNECTIONS)
}

/// Number of session threads.
pub(super) fn workers(text: &str) -> Result<NonZeroUsize, SettingError> {
    number(text, MOST_WORKERS)
}

/// Default number of session threads: one per core.
pub(super) fn usual_workers() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST_WORKERS)
}

fn number(text: &str, most: usize) -> Result<NonZeroUsize, SettingError> {
    let number = text.parse().ok().filter(|number: &NonZeroUsize| number.get() <= most);
    number.ok_or_else(|| SettingError::NotANumber { text: text.to_owned(), most })
}

/// Parses a time of at most one day: a whole number and its unit, as in postgresql.conf (`500ms`, `60s`, `5min`, `1h`).
/// The default unit is seconds.
///
/// # Errors
/// The text is not a time, or the time is longer than a day.
pub fn duration(text: &str) -> Result<Duration, SettingError> {
    time(text, LONGEST)
}

/// Like [`duration`], with another maximum.
fn time(text: &str, longest: Duration) -> Result<Duration, SettingError> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let number = digits.parse::<u64>().ok().filter(|_| milliseconds > 0);
    let number = number.ok_or_else(|| SettingError::NotATime(text.to_owned()))?;
    let time = Duration::from_millis(number.saturating_mul(milliseconds));
    if time > longest { Err(SettingError::TooLong { text: text.to_owned(), longest }) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let read = |text| time(text, LONGEST).ok();
        for (text, milliseconds) in [("0", 0), ("60", 60_000), ("500ms", 500), ("5min", 300_000), ("24h", 86_400_000)] {
            assert_eq!(read(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "1.5s", "-1", "1d", "25h", "99999999999999999999", "18446744073709551615h", "1 s"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_of_connections_are_bounded() {
        assert_eq!(connections("1000").map(NonZeroUsize::get), Ok(1000));
        for text in ["0", "-1", "1000001", "many", ""] {
            connections(text).unwrap_err();
        }
    }
}
