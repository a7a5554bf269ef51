//! `fencegate timeline`: draws leaders, tokens, writes and rejections.
//!
//! Owns reading log lines; docs/reference/events.md has the schema of the events. Must never trust a line: input is
//! bounded, and lines of other programs are skipped.

mod event;

pub use event::{Events, MOST_EVENTS};

/// The picture; None if there is no event to show.
pub fn draw(events: Events) -> Option<String> {
    let (list, left_out) = events.into_sorted();
    crate::picture::file(&list, left_out)
}

#[cfg(test)]
mod tests;
