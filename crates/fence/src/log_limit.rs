//! Limits the rate of log lines, by kind, and logs the number of suppressed lines.
//!
//! Must never suppress a line without logging the count, at the latest when the window ends.

use crate::background::Background;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Maximum number of lines of a kind in one window.
const MOST_LINES: u64 = 10;
/// Limit for lines that every session logs once. Operators want all of them, except when very many sessions start and
/// end.
const MOST_SESSIONS: u64 = 100;
/// A window begins with its first line.
const WINDOW: Duration = Duration::from_secs(1);

/// Lines share a limit if they have the same event and resource. The number of keys is a small multiple of the number
/// of resources in the policies.
type EventKind = (&'static str, String);

/// The rates of the lines in the log.
#[derive(Debug)]
pub struct LogLimit {
    /// The windows that are open.
    windows: Mutex<HashMap<EventKind, Window>>,
    background: Background,
}

#[derive(Debug)]
struct Window {
    ends: Instant,
    most: u64,
    lines: u64,
}

impl LogLimit {
    /// Without open windows. Their ends are logged in the background.
    pub fn new(background: Background) -> Arc<Self> {
        Arc::new(LogLimit { windows: Mutex::default(), background })
    }

    /// Returns true if a line of this kind may be logged. Otherwise counts it, and logs the count when the window ends.
    pub fn allows(self: &Arc<Self>, event: &'static str, resource: &str) -> bool {
        self.allows_some(event, resource, MOST_LINES)
    }

    /// Like [`Self::allows`], for an event that every session logs once.
    pub fn allows_sessions(self: &Arc<Self>, event: &'static str) -> bool {
        self.allows_some(event, "", MOST_SESSIONS)
    }

    fn allows_some(self: &Arc<Self>, event: &'static str, resource: &str, most: u64) -> bool {
        let now = Instant::now();
        let mut windows = self.windows.lock();
        let window = windows.entry((event, resource.to_owned())).or_insert(Window { ends: now, most, lines: 0 });
        if window.lines <= most && window.ends <= now {
            *window = Window { ends: now + WINDOW, most, lines: 0 };
        }
        window.lines += 1;
        if window.lines == most + 1 {
            self.background.spawn(self.clone().close(window.ends, (event, resource.to_owned())));
        }
        window.lines <= most
    }

    /// Logs the number of suppressed lines immediately, because the process ends.
    pub fn finish(&self) {
        let windows = std::mem::take(&mut *self.windows.lock());
        windows.iter().for_each(|(kind, window)| log_left_out(kind, window));
    }

    /// Cancel-safe, except that the next call of [`Self::finish`] logs the remaining counts.
    async fn close(self: Arc<Self>, ends: Instant, kind: EventKind) {
        sleep_until(ends).await;
        let window = self.windows.lock().remove(&kind);
        if let Some(window) = window {
            log_left_out(&kind, &window);
        }
    }
}

fn log_left_out((kind, resource): &EventKind, window: &Window) {
    let left_out = window.lines.saturating_sub(window.most);
    if left_out > 0 {
        tracing::warn!(kind, resource, left_out, "lines_left_out");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ten_lines_per_resource_pass_in_a_window() {
        let limit = LogLimit::new(Background::current());
        let passed = |resource| (0..25).filter(|_| limit.allows("stale", resource)).count();
        assert_eq!((passed("one"), passed("other"), passed("one")), (10, 10, 0));
        while !limit.windows.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(passed("one"), 10, "the counts have been logged");
    }

    #[tokio::test]
    async fn a_window_without_dropped_lines_ends() {
        let limit = LogLimit::new(Background::current());
        for _ in 0..4 {
            assert!((0..10).all(|_| limit.allows("stale", "r")));
            limit.windows.lock().values_mut().for_each(|window| window.ends = Instant::now());
        }
    }
}
