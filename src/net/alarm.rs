//! A single timer for all deadlines of a session.
//!
//! Must never fire too late. May fire too early if a deadline was postponed.

use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is created on first use: most sessions wait for nothing.
#[derive(Default)]
pub struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready at that time, or earlier if an earlier time was requested before.
    pub fn poll_until(&mut self, at: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if at < sleep.deadline() {
            sleep.as_mut().reset(at);
        }
        let rings = sleep.as_mut().poll(context);
        if rings.is_ready() {
            self.0 = None;
        }
        rings
    }
}
