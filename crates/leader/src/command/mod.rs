//! A command that runs only while leadership lasts.
//!
//! Owns the command's process group: starting it, forwarding signals, ending it, and confirming that it has ended. Must
//! never return while a process of the group is alive, because the caller then releases the lease and the successor
//! starts work.
//!
//! Four mechanisms ensure this; each covers cases that the others cannot:
//! - `supervise` ends the group while this process runs;
//! - `guard` ends it if this process is killed or suspended, and releases the lease of a killed process;
//! - the kernel kills the command when this process ends (`replace_this_process`);
//! - `processes` checks for live processes before the group is considered gone.
//!
//! Must never handle a signal that is ignored at start (nohup, a background job of a script): the caller wants the
//! program to survive that signal.
//!
//! `replace_this_process` turns this binary into the command: the steps in the new process before exec.
//!
//! It runs as a separate process, because code between fork and exec must be async-signal-safe. Must never outlive the
//! process that started it, nor print to standard output.

mod family;
mod guard;
pub mod processes;
mod supervise;

pub use guard::{GUARD_COMMAND, LeaseArguments, keep_guard};
pub use supervise::run;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, Pid, access, getppid};
use procfs::ProcError;
use procfs::process::Process;
use std::ffi::{OsStr, OsString};
use std::future::poll_fn;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::task::Poll;
use std::time::Duration;
use tokio::signal::unix;
use tokio::signal::unix::SignalKind;

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

/// Internal subcommand that turns this binary into the command.
pub const START_COMMAND: &str = "lead-start";

/// Shells' exit code for a command that exists but cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// Shells' exit code for a command that does not exist.
const NOT_FOUND: u8 = 127;
/// Search path if PATH is not set.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// Ties this process to the life of `parent`, which has started it, and executes the command. Returns only on failure,
/// with the exit code of shells.
pub fn replace_this_process(parent: i32, command: &[OsString]) -> ExitCode {
    // The kernel keeps this setting across exec.
    if let Err(error) = set_pdeathsig(Signal::SIGKILL) {
        eprintln!("fencegate: cannot tie the command to its leader: {error}");
        return ExitCode::FAILURE;
    }
    // The parent may have ended just before the call above.
    if getppid() != Pid::from_raw(parent) {
        return ExitCode::FAILURE;
    }
    let Some((program, arguments)) = command.split_first() else { return ExitCode::FAILURE };
    ExitCode::from(report(program, &Command::new(program).args(arguments).exec()))
}

/// Searches for the program in the same way as exec: a node without it should not lead.
/// On failure it reports the error and returns the exit code of shells.
pub fn check_program(program: &OsStr) -> Result<(), ExitCode> {
    let executable = |path: &Path| access(path, AccessFlags::X_OK).is_ok() && path.is_file();
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let search = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    let candidates = || {
        let folders = std::env::split_paths(&search).filter(|_| !is_path).map(|folder| folder.join(program));
        folders.chain(is_path.then(|| program.into()))
    };
    if candidates().any(|path| executable(&path)) {
        return Ok(());
    }
    let exists = candidates().any(|path| path.exists());
    let kind = if exists { io::ErrorKind::PermissionDenied } else { io::ErrorKind::NotFound };
    Err(ExitCode::from(report(program, &kind.into())))
}

fn report(program: &OsStr, error: &io::Error) -> u8 {
    let program = program.display();
    if error.kind() == io::ErrorKind::NotFound {
        eprintln!("fencegate: {program}: command not found");
        return NOT_FOUND;
    }
    eprintln!("fencegate: {program}: cannot be executed: {error}");
    NOT_EXECUTABLE
}

/// Exit code of a command as in shells: 128 plus the number of the signal that ended it.
pub fn exit_code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Exit code of a program that a signal ended.
pub fn exit_code_of_signal(signal: Signal) -> u8 {
    exit_code_of(ExitStatus::from_raw(signal as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_match_those_of_a_shell() {
        let code = |raw| exit_code_of(ExitStatus::from_raw(raw));
        assert_eq!([code(0), code(3 << 8), code(255 << 8), code(9), code(64)], [0, 3, 255, 137, 192]);
    }

    #[test]
    fn check_program_finds_what_can_be_started() {
        assert!(check_program("sh".as_ref()).is_ok());
        assert!(check_program("/bin/sh".as_ref()).is_ok());
        for missing in ["no-such-program", "/etc/passwd", "/", ""] {
            assert!(check_program(missing.as_ref()).is_err(), "{missing}");
        }
    }
}
