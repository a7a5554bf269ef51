//! `fencegate timeline`: who led under which token, what was written and what was rejected, as a picture.
//!
//! Owns the way from lines of logs to SVG; the schema of the events is in docs/operations.md. Must never take a line for more
//! than a claim: what it reads is bounded, what it shows is escaped, and what is no event of ours is skipped.

mod chart;
mod event;
mod history;
mod scale;
mod svg;

pub use event::{Events, MOST_EVENTS};

/// The picture; None where nothing of what it shows has happened.
pub fn draw(events: Events) -> Option<String> {
    let (list, left_out) = events.into_sorted();
    let history = history::History::new(list)?;
    Some(chart::chart(&history, left_out))
}

#[cfg(test)]
mod tests;
