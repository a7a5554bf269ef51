//! Waiting for a condition, never for a length of time.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Long enough for a busy two-core machine; what takes longer hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Looks every few milliseconds until `condition` holds, and fails the test when it does not in time.
pub fn wait_until(what: impl Display, deadline: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, deadline, || condition().then_some(()));
}

/// Looks every few milliseconds until there is a value.
pub fn wait_for<T>(what: impl Display, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
