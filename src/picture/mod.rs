//! The picture of a history: leaders with their tokens, first writes and rejections.
//!
//! Owns the conversion of events into SVG, for `fencegate timeline` and for the status page. Must never trust an event:
//! the number of elements is bounded, and text is escaped.

mod chart;
mod event;
mod history;
mod lane;
mod svg;

pub(crate) use chart::STYLE;
pub(crate) use event::{Event, Kind, Micros, micros};

use chart::{Axis, Chart};
use history::History;

/// Width of a picture that is a file. At this width, text is legible on a page and on a phone.
const WIDTH: f64 = 640.0;

/// The picture of these events as a file, or None if there is no event to show. The events are in order; `left_out`
/// more exceeded a limit.
pub(crate) fn file(events: &[Event], left_out: usize) -> Option<String> {
    let history = History::new(events, None)?;
    Some(Chart::new(&history, WIDTH, Axis::Offsets).file(left_out))
}

/// The picture of these events in a window of time that ends now, as an element of a page that has [`STYLE`]. None if
/// there is no event to show. The events are in order; those before the window show the leader at its beginning.
pub(crate) fn element(events: &[Event], window: (Micros, Micros), width: f64, class: &str) -> Option<String> {
    let history = History::new(events, Some(window))?;
    Some(Chart::new(&history, width, Axis::Ages).element(class))
}

#[cfg(test)]
mod tests;
