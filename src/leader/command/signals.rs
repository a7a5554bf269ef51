//! The signals that `fencegate lead` takes, for itself and for the command.
//!
//! Must never take one that it was started to ignore (nohup, a job in the background of a script): its owner said
//! that it is not to end by it.

use nix::sys::signal::Signal;
use procfs::ProcError;
use procfs::process::Process;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind};

/// Signals that ask a program to end, and the one that suspends it from its terminal.
const TAKEN: [Signal; 5] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP];

/// Listens to them from the moment it is made.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Begins to listen.
    pub fn listen() -> Result<Self, ProcError> {
        let ignored = Process::myself()?.stat()?.sigignore;
        let taken = TAKEN.into_iter().filter(|signal| ignored & bit(*signal) == 0);
        let listen = |signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
        Ok(Signals(taken.map(listen).collect::<io::Result<_>>()?))
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

/// In the mask of signals that /proc/PID/stat has.
fn bit(signal: Signal) -> u64 {
    1 << (signal as i32 - 1)
}
