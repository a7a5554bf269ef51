//! Waiting for conditions, never for fixed times.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Long enough for a busy two-core machine. Anything slower hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Checks `condition` every few milliseconds until it holds, and fails the test at the deadline.
pub fn wait_until(what: impl Display, deadline: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, deadline, || condition().then_some(()));
}

/// Calls `look` every few milliseconds until it returns a value. A slow call, such as a login to a server, is followed
/// by a pause of the same length.
pub fn wait_for<T>(what: impl Display, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let began = Instant::now();
        if let Some(value) = look() {
            return value;
        }
        assert!(start.elapsed() < deadline, "timed out after {deadline:?} waiting until {what}");
        thread::sleep(began.elapsed().max(Duration::from_millis(5)));
    }
}

/// Like [`wait_until`], for asynchronous conditions.
pub async fn until(what: impl Display, mut condition: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(DEADLINE, looks).await;
    assert!(waited.is_ok(), "timed out after {DEADLINE:?} waiting until {what}");
}

/// Measures how much this machine has stalled: a thread checks the clock every few milliseconds and adds up its delays.
/// Time limits in tests allow for this total.
pub struct Stalls {
    over: Arc<AtomicBool>,
    watch: JoinHandle<Duration>,
}

impl Stalls {
    pub fn watch() -> Self {
        const STEP: Duration = Duration::from_millis(5);
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let watch = thread::spawn(move || {
            let mut total = Duration::ZERO;
            while !is_over.load(Ordering::SeqCst) {
                let start = Instant::now();
                thread::sleep(STEP);
                // Smaller delays are normal for a timer.
                total += Some(start.elapsed() - STEP).filter(|late| *late > STEP).unwrap_or_default();
            }
            total
        });
        Self { over, watch }
    }

    pub fn total(self) -> Duration {
        self.over.store(true, Ordering::SeqCst);
        self.watch.join().unwrap()
    }
}
