//! Events, read from lines of logs.
//!
//! Owns the bounds on what is read. Must never fail because of what a line says: it is skipped.

use serde::Deserialize;
use std::collections::HashSet;
use std::io::{self, BufRead, Read};

/// The most events that are kept; of the later ones only the number is.
pub const MOST_EVENTS: usize = 20_000;
/// A line that is longer is none of ours, in bytes.
const LONGEST_LINE: u64 = 16 * 1024;

/// When, in microseconds since 1970.
pub(super) type Micros = i64;

/// A line of a log, as far as a timeline is concerned: the fields are described in docs/operations.md.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct Event {
    timestamp: String,
    pub(super) event: Kind,
    pub(super) election: Option<String>,
    pub(super) holder: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) database: Option<String>,
    pub(super) resource: Option<String>,
    pub(super) token: Option<i64>,
    pub(super) presented: Option<i64>,
    pub(super) highest: Option<i64>,
    pub(super) session: Option<u64>,
    pub(super) user: Option<String>,
    pub(super) address: Option<String>,
    pub(super) application_name: Option<String>,
    pub(super) statement: Option<String>,
    pub(super) code: Option<String>,
    pub(super) outcome: Option<String>,
    /// When; not in the line.
    #[serde(skip)]
    pub(super) at: Micros,
}

/// The events that are shown.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    LeaseAwaited,
    LeaseAcquired,
    LeaseLost,
    SessionAdmitted,
    SessionEnded,
    SessionCutOff,
    StaleWriteBlocked,
    WriteRejected,
    FenceAdvanced,
    FenceReset,
}

impl Event {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut event: Event = serde_json::from_slice(line).ok()?;
        event.at = micros(&event.timestamp)?;
        Some(event)
    }

    /// Numbers are those of one proxy; the address tells it from that of another one.
    pub(super) fn session(&self) -> (u64, String) {
        (self.session.unwrap_or_default(), self.address.clone().unwrap_or_default())
    }

    /// `2026-01-31 12:00:00`.
    pub(super) fn date_and_time(&self) -> String {
        self.timestamp.chars().take(19).map(|c| if c == 'T' { ' ' } else { c }).collect()
    }
}

/// The events that have been read.
#[derive(Debug, Default)]
pub struct Events {
    list: Vec<Event>,
    /// The sessions that have written, and have not ended.
    writing: HashSet<(u64, String)>,
    left_out: usize,
}

impl Events {
    /// Adds those of a log. What has been read before an error stays.
    ///
    /// # Errors
    /// It cannot be read to its end.
    pub fn read(&mut self, mut log: impl BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if log.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            if line.ends_with(b"\n") || line.len() as u64 != LONGEST_LINE {
                self.add(&line);
            } else {
                log.skip_until(b'\n')?;
            }
        }
    }

    fn add(&mut self, line: &[u8]) {
        if let Some(event) = Event::parse(line) {
            // Of sessions that have not written there may be any number, and nothing is shown.
            let is_shown = match event.event {
                Kind::SessionAdmitted if self.list.len() < MOST_EVENTS => {
                    self.writing.insert(event.session());
                    true
                }
                Kind::SessionEnded => self.writing.remove(&event.session()),
                _ => true,
            };
            if !is_shown {
                return;
            }
            match self.list.len() {
                MOST_EVENTS => self.left_out += 1,
                _ => self.list.push(event),
            }
        }
    }

    /// By time, and how many have been left out.
    pub(super) fn into_sorted(mut self) -> (Vec<Event>, usize) {
        self.list.sort_by_key(|event| event.at);
        (self.list, self.left_out)
    }
}

/// Of `2026-01-31T12:00:00.123456Z`, with any number of decimals.
fn micros(timestamp: &str) -> Option<Micros> {
    let (date, time) = timestamp.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (time, decimals) = time.split_once('.').unwrap_or((time, ""));
    let [hours, minutes, seconds] = numbers(time, ':', [2, 2, 2])?;
    let valid = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !valid || hours > 23 || minutes > 59 || seconds > 60 || !decimals.bytes().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let decimals: String = decimals.chars().chain("000000".chars()).take(6).collect();
    let seconds = ((days(year, month, day) * 24 + hours) * 60 + minutes) * 60 + seconds;
    Some(seconds * 1_000_000 + decimals.parse::<Micros>().ok()?)
}

/// Three numbers of so many digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next().filter(|it| it.len() == digits && it.bytes().all(|it| it.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// From 1970 to a day of the Gregorian calendar. The year is taken to begin in March, so that the leap day is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let since_march = (month + 9) % 12;
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (since_march * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_those_of_the_calendar() {
        let seconds = |timestamp| micros(timestamp).map(|it| it / 1_000_000);
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2000-02-29T12:34:56.789Z"), Some(951_827_696));
        assert_eq!(seconds("2026-11-23T18:15:20.5Z"), Some(1_795_457_720));
        assert_eq!(micros("1970-01-01T00:00:01.0000015Z"), Some(1_000_001));
        let wrong =
            ["", "Z", "T", "2026-11-23", "2026-13-01T00:00:00Z", "2026-11-23T24:00:00Z", "+026-11-23T00:00:00Z"];
        for timestamp in wrong.into_iter().chain(["2026-11-23T18:15:20", "2026-11-23T18:15:20.-5Z"]) {
            assert_eq!(micros(timestamp), None, "{timestamp}");
        }
    }
}
