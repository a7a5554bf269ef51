//! A flood, and a concurrent client.

use crate::support::{DEADLINE, Stalls, wait_until};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum time of a request by a well-behaved client, except for stalls of the machine. Errors took ten seconds or
/// more, or forever.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Number of threads that flood at the same time.
const THREADS: usize = 4;
/// Minimum interval between the steps of a thread. All threads take 4,000 steps per second, so concurrent tests
/// continue.
const PACE: Duration = Duration::from_millis(1);

/// The state of a flood.
pub struct Flood {
    over: AtomicBool,
    done: AtomicUsize,
}

impl Flood {
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Ends the flood even if the concurrent client panics.
struct Ends<'a>(&'a Flood);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Runs the request that many times during the flood, after the first `first` steps of the flood. Drops the result of a
/// step after `kept` further steps.
pub fn beside<T>(
    what: &str,
    (first, kept): (usize, usize),
    step: impl Fn(&Flood) -> T + Sync,
    times: usize,
    mut request: impl FnMut(),
) {
    let flood = Flood { over: AtomicBool::new(false), done: AtomicUsize::new(0) };
    let run = || {
        let mut held = VecDeque::new();
        while !flood.is_over() {
            let next = Instant::now() + PACE;
            held.push_back(step(&flood));
            flood.done.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            if held.len() > kept.div_ceil(THREADS) {
                held.pop_front();
            }
        }
    };
    std::thread::scope(|scope| {
        let ends = Ends(&flood);
        (0..THREADS).for_each(|_| drop(scope.spawn(run)));
        wait_until(format!("{what}: the flood runs"), DEADLINE, || flood.done() >= first);
        let (before, start) = (flood.done(), Instant::now());
        let stalls = Stalls::watch();
        let took: Vec<Duration> = (0..times).map(|_| timed(&mut request)).collect();
        let rate = (flood.done() - before) as f64 / start.elapsed().as_secs_f64();
        drop(ends);
        judge(&format!("{what} ({rate:.0}/s)"), took, stalls.total());
    });
}

/// Runs the request that many times, and checks the duration of each.
pub fn answered(what: &str, times: usize, mut request: impl FnMut()) {
    let stalls = Stalls::watch();
    let took = (0..times).map(|_| timed(&mut request)).collect();
    judge(what, took, stalls.total());
}

fn timed(request: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    request();
    start.elapsed()
}

fn judge(what: &str, mut took: Vec<Duration>, stalled: Duration) {
    took.sort();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{what}: {} requests, median {median:?}, longest {longest:?}", took.len());
    assert!(longest < PATIENCE + stalled, "{what}: a request took {longest:?}");
}
