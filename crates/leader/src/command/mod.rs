//! A command that runs only while leadership lasts.
//!
//! Owns the command's process group: starting it, forwarding signals, ending it, and confirming that it has ended. Must
//! never return while a process of the group is alive, because the caller then releases the lease and the successor
//! starts work.
//!
//! Four mechanisms ensure this; each covers cases that the others cannot:
//! - `supervise` ends the group while this process runs;
//! - `guard` ends it if this process is killed or suspended, and releases the lease of a killed process;
//! - the kernel kills the command when this process ends (`start`);
//! - `processes` checks for live processes before the group is considered gone.
//!
//! Must never handle a signal that is ignored at start (nohup, a background job of a script): the caller wants the program to
//! survive that signal.

mod family;
mod guard;
pub mod processes;
mod start;
mod supervise;

pub use guard::{GUARD_COMMAND, LeaseArguments, keep_guard};
pub use start::{START_COMMAND, check_program, exit_code_of, exit_code_of_signal, replace_this_process};
pub use supervise::run;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use procfs::ProcError;
use procfs::process::Process;
use std::ffi::OsString;
use std::future::poll_fn;
use std::io;
use std::process::ExitStatus;
use std::task::Poll;
use std::time::Duration;
use tokio::signal::unix::{self, SignalKind};

/// Time limits for ending a command.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// TTL of the lease. The command receives SIGTERM when a third of it remains.
    pub ttl: Duration,
    /// Time from SIGTERM to SIGKILL, unless the end of the lease determines it.
    pub kill_after: Duration,
}

/// Environment variables with the coordinator's address and credentials; None: the variable must not be set. The guard
/// needs them to release the lease. Other users cannot read the environment, unlike a command line.
pub type Access = Vec<(&'static str, Option<OsString>)>;

/// How the command ended.
#[derive(Debug)]
pub enum CommandOutcome {
    /// The command ended by itself.
    Ended(ExitStatus),
    /// Leadership expired or was lost, and the command was ended.
    Lost,
}

/// Why a command could not be run or supervised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// A process could not be started.
    #[error("cannot start {0}: {1}")]
    Start(&'static str, io::Error),
    /// The process list cannot be read, so live processes cannot be identified.
    #[error("cannot read the processes in /proc: {0}")]
    Look(#[from] ProcError),
    /// A system call failed.
    #[error("cannot {0}: {1}")]
    System(&'static str, Errno),
}

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
