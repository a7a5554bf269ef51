//! `fencegate timeline`: draws leaders, tokens, writes and rejections.
//!
//! Owns reading events from log lines; docs/reference/events.md has their schema. Must never trust a line: input is bounded, and
//! lines of other programs are skipped.

use crate::picture::{Event, Kind, Micros};
use std::collections::HashSet;
use std::io::{self, BufRead, Read};

/// The picture; None if there is no event to show.
pub fn draw(events: Events) -> Option<String> {
    let (list, left_out) = events.into_sorted();
    crate::picture::file(&list, left_out)
}

/// Maximum number of stored events. Later ones are only counted.
pub const MOST_EVENTS: usize = 20_000;
/// Maximum length of an event's line, in bytes. Longer lines are from other programs.
const LONGEST_LINE: u64 = 16 * 1024;

fn parsed(line: &[u8]) -> Option<Event> {
    let mut event: Event = serde_json::from_slice(line).ok()?;
    event.at = micros(&event.timestamp)?;
    Some(event)
}

/// The events read so far.
#[derive(Debug, Default)]
pub struct Events {
    list: Vec<Event>,
    /// Open sessions that have written.
    writing: HashSet<(u64, String)>,
    left_out: usize,
}

impl Events {
    /// Adds the events of a log. Events read before an error are kept.
    ///
    /// # Errors
    /// The log cannot be read to its end.
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
        if let Some(event) = parsed(line) {
            // Ignore sessions that have not written: their number is unlimited, and they are not shown.
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

    /// The events by time, and the number of omitted ones.
    fn into_sorted(mut self) -> (Vec<Event>, usize) {
        self.list.sort_by_key(|event| event.at);
        (self.list, self.left_out)
    }
}

/// Parses `2026-01-31T12:00:00.123456Z`, with any number of decimals.
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

/// Parses three numbers with these numbers of digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next().filter(|it| it.len() == digits && it.bytes().all(|it| it.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days from 1970 to a day of the Gregorian calendar. The computation starts years in March, so that the leap day is
/// the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let since_march = (month + 9) % 12;
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (since_march * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests;
