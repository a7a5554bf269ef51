//! Signals that `fencegate lead` handles for itself and for the command.
//!
//! Must never handle a signal that is ignored at start (nohup, a background job of a script): the caller wants the
//! program to survive that signal.

use nix::sys::signal::Signal;
use procfs::ProcError;
use procfs::process::Process;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind};

/// Termination signals, and the terminal's suspend signal.
const TAKEN: [Signal; 5] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP];

/// Listens to the signals from its creation on.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to listen.
    pub fn listen() -> Result<Self, ProcError> {
        let ignored = Process::myself()?.stat()?.sigignore;
        let taken = TAKEN.into_iter().filter(|signal| ignored & bit(*signal) == 0);
        let listen = |signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
        Ok(Signals(taken.map(listen).collect::<io::Result<_>>()?))
    }

    /// Waits for the next signal. Cancel-safe.
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

/// Bit in the signal masks of /proc/PID/stat.
fn bit(signal: Signal) -> u64 {
    1 << (signal as i32 - 1)
}
