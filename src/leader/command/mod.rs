//! A command that runs while leadership lasts, and not longer.
//!
//! Owns the command's whole process group: starting it, passing signals on, ending it, and knowing
//! when it is gone. Must never return while a process of the group lives: the caller gives the lease
//! up next, and the successor's work begins.
//!
//! Four things see to that, and each covers what the others cannot:
//! `supervise` ends the group while this process runs; `guard` when it is killed or stands still, and gives up the lease
//! of one that was killed;
//! the kernel ends the command itself with this process (`start`); and `processes` looks at what
//! really lives before it is called gone.

mod family;
mod guard;
pub(crate) mod processes;
mod signals;
mod start;
mod supervise;
mod terminal;

pub use guard::{GUARD_COMMAND, LeaseArguments, keep_guard};
pub use signals::Signals;
pub use start::{START_COMMAND, check_program, exit_code_of, exit_code_of_signal, replace_this_process};
pub use supervise::run;

use nix::errno::Errno;
use procfs::ProcError;
use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// How much time a command has to end.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// TTL of the lease. The command receives SIGTERM when a third of it is left.
    pub ttl: Duration,
    /// From SIGTERM to SIGKILL where the lease's end does not say when.
    pub kill_after: Duration,
}

/// How to reach the coordinator: variables of the environment, and those that must not be there. The guard gets them, to
/// give the lease up; other users do not see them, as they see a command line.
pub type Access = Vec<(&'static str, Option<OsString>)>;

/// How it ended.
#[derive(Debug)]
pub enum CommandOutcome {
    /// The command ended by itself.
    Ended(ExitStatus),
    /// Leadership ran out or was lost, and the command was ended.
    Lost,
}

/// Why a command could not be run, or not be watched.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A process could not be started.
    #[error("cannot start {0}: {1}")]
    Start(&'static str, io::Error),
    /// The processes cannot be seen: what lives cannot be told.
    #[error("cannot look at the processes in /proc: {0}")]
    Look(#[from] ProcError),
    /// The system refused something that this needs.
    #[error("cannot {0}: {1}")]
    System(&'static str, Errno),
}
