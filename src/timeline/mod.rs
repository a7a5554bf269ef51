//! `fencegate timeline`: draws leaders, tokens, writes and rejections.
//!
//! Owns the conversion of log lines into SVG; docs/reference/events.md has the schema of the events. Must never trust a line:
//! input is bounded, output is escaped, and lines of other programs are skipped.

mod chart;
mod event;
mod history;
mod scale;
mod svg;

pub use event::{Events, MOST_EVENTS};

/// The picture; None if there is no event to show.
pub fn draw(events: Events) -> Option<String> {
    let (list, left_out) = events.into_sorted();
    let history = history::History::new(list)?;
    Some(chart::chart(&history, left_out))
}

#[cfg(test)]
mod tests;
