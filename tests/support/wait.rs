//! Waiting for a condition, never for a length of time.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Long enough for a busy two-core machine; what takes longer hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Looks every few milliseconds until `condition` holds, and fails the test when it does not in time.
pub fn wait_until(what: impl Display, deadline: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, deadline, || condition().then_some(()));
}

/// Looks every few milliseconds until there is a value. A look that takes long, such as one that logs in to a server, is
/// followed by as long a pause.
pub fn wait_for<T>(what: impl Display, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let began = Instant::now();
        if let Some(value) = look() {
            return value;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain until {what}");
        thread::sleep(began.elapsed().max(Duration::from_millis(5)));
    }
}

/// As [`wait_until`], for conditions that are asked about.
pub async fn until(what: impl Display, mut condition: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(DEADLINE, looks).await;
    assert!(waited.is_ok(), "waited {DEADLINE:?} in vain until {what}");
}

/// What this machine has been too busy for: a thread that looks at the clock every few milliseconds, and how much later
/// than that it did. What has to happen at a certain time may be late by as much.
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
                // Less is a timer's usual blur.
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
