//! The signals that `fencegate lead` takes, for itself and for the command.
//!
//! Must never take one that it was started to ignore (nohup, a job in the background of a script): its owner said
//! that it is not to end by it.

use nix::sys::signal::Signal;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind};

/// What asks a program to end, and what suspends it from its terminal.
const TAKEN: [Signal; 5] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP];

/// Listens to them from the moment it is made.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the system refuses, or does not say what is ignored.
    pub fn listen() -> io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
        let taken = TAKEN.into_iter().filter(|signal| ignored & bit(*signal) == 0);
        let listen = |signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
        taken.map(listen).collect::<io::Result<_>>().map(Signals)
    }

    /// The next one that has come. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut come = self.0.iter_mut().filter_map(|(signal, stream)| match stream.poll_recv(context) {
                Poll::Ready(_) => Some(*signal),
                Poll::Pending => None,
            });
            come.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The signals that /proc/PID/status says are ignored, a bit each.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as i32 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read() {
        let mask = ignored("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001007\nSigCgt:\t0000000000004000\n");
        assert_eq!(
            [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].map(|signal| mask & bit(signal) != 0),
            [true, true, false]
        );
    }
}
