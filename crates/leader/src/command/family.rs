//! The command's processes: signaling them, and finding those that are alive.
//!
//! Must never signal a group whose ID may have been reused: the guard leads the group, and is not reaped before the
//! group is empty.

use super::CommandError;
use super::START_COMMAND;
use super::guard::{Guard, this_program};
use super::processes::{self, Process};
use crate::{Leadership, Token};
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpid};
use std::collections::HashSet;
use std::ffi::OsString;
use std::mem;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus};
use std::time::Duration;
use tokio::time::sleep;

/// Interval between checks of killed processes.
const LOOK: Duration = Duration::from_millis(5);

/// Processes to signal or to wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Recipients {
    /// The command and its process group.
    Group,
    /// All descendants, including those that have left the group, such as children of timeout(1).
    Everyone,
}

/// A command, its descendants, and the guard of its group.
pub(super) struct Family {
    pub(super) guard: Guard,
    command: Child,
    status: Option<ExitStatus>,
    guard_ended: bool,
    /// True if the guard found the command running at the deadline.
    overran: bool,
    /// True if the guard reported SIGTSTP to the group and the report has not been handled.
    suspended: bool,
    /// Children that this process already had, from a shell that called exec.
    strangers: HashSet<Pid>,
}

impl Family {
    /// Starts the command in the guard's group. From then on, this process adopts the command's orphans. On failure the
    /// guard is ended too.
    pub(super) fn start(mut guard: Guard, leadership: &Leadership, command: &[OsString]) -> Result<Self, CommandError> {
        // Otherwise process 1 adopts orphans, and in a container it may not reap them.
        set_child_subreaper(true).map_err(|error| CommandError::System("adopt orphans", error))?;
        let mut strangers = processes::descendants(&processes::all()?, getpid());
        strangers.remove(&guard.pid);
        let command = this_program(START_COMMAND)
            .arg(getpid().to_string())
            .arg("--")
            .args(command)
            .env("FENCE_TOKEN", leadership.token().to_string())
            .env("FENCE_ELECTION", leadership.election().as_str())
            .env("FENCE_HOLDER", leadership.holder())
            .env("PGOPTIONS", session_options(std::env::var_os("PGOPTIONS"), leadership.token()))
            .process_group(guard.pid.as_raw())
            .spawn()
            .map_err(|error| CommandError::Start("the command", error))?;
        guard.command = Some(Pid::from_raw(command.id().cast_signed()));
        Ok(Family { guard, command, status: None, guard_ended: false, overran: false, suspended: false, strangers })
    }

    /// True if the group no longer has a guard.
    pub(super) fn is_unguarded(&self) -> bool {
        self.guard_ended
    }

    /// Exit status of the command, once it has been reaped.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// True if the guard has killed the command at the deadline or is about to, so the SIGKILL was not from a third
    /// party.
    pub(super) fn is_killed_by_guard(&self) -> bool {
        self.overran && self.status.is_none_or(|status| status.signal() == Some(Signal::SIGKILL as i32))
    }

    /// Sends a signal. A process that has ended or may not be signaled is not an error: `living` finds those that
    /// remain.
    pub(super) fn signal(&self, signal: Signal, recipients: Recipients) -> Result<(), CommandError> {
        if !self.guard_ended {
            let _ = killpg(self.guard.pid, signal);
        }
        let has_got_it = |process: &Process| process.group == self.guard.pid && !self.guard_ended;
        for process in self.living(recipients)?.iter().filter(|process| !has_got_it(process)) {
            let _ = kill(process.pid, signal);
        }
        Ok(())
    }

    /// Processes that are still alive, without the guard.
    pub(super) fn living(&self, recipients: Recipients) -> Result<Vec<Process>, CommandError> {
        let mut processes = processes::all()?;
        processes.retain(|process| !self.strangers.contains(&process.pid));
        let descendants = processes::descendants(&processes, getpid());
        processes.retain(|process| {
            let is_meant = match recipients {
                Recipients::Group => process.pid == self.command_id(),
                Recipients::Everyone => descendants.contains(&process.pid),
            };
            (is_meant || process.group == self.guard.pid) && process.pid != self.guard.pid && !process.ended
        });
        Ok(processes)
    }

    /// The signal that has stopped the command or processes of its group since the last call.
    pub(super) fn stopped(&mut self) -> Option<Signal> {
        let suspended = mem::take(&mut self.suspended).then_some(Signal::SIGTSTP);
        let stopped = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
        match waitid(Id::Pid(self.command_id()), stopped) {
            Ok(WaitStatus::Stopped(_, signal)) if self.status.is_none() => suspended.or(Some(signal)),
            _ => suspended,
        }
    }

    /// Reaps all children that have ended, including adopted orphans, and reads the guard's reports.
    pub(super) fn reap(&mut self) -> Result<(), CommandError> {
        let ran = self.status.is_none();
        while let Some(child) = next_ended()? {
            if child == self.command_id() {
                let failed = |error| CommandError::Start("waiting for the command", error);
                self.status = self.command.try_wait().map_err(failed)?;
            } else {
                self.guard_ended |= child == self.guard.pid;
                let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
            }
        }
        // Read the reports after the command's status: the guard writes its report before it kills the command.
        let reports = self.guard.take_reports();
        self.overran |= ran && reports.overran;
        self.suspended |= reports.suspended;
        Ok(())
    }

    /// Kills the rest of the group, including the guard, and returns when none of its processes is alive. Not
    /// cancel-safe: a process may still be alive.
    pub(super) async fn kill_all(mut self) -> Result<(), CommandError> {
        // Signals the group as a whole, so that no process escapes by forking, as it could between single kills.
        self.signal(Signal::SIGKILL, Recipients::Group)?;
        while !self.living(Recipients::Group)?.is_empty() {
            sleep(LOOK).await;
        }
        // Reap the guard last, because it reserves the group's ID.
        if !self.guard_ended {
            let _ = waitpid(self.guard.pid, None);
        }
        self.reap()
    }

    fn command_id(&self) -> Pid {
        Pid::from_raw(self.command.id().cast_signed())
    }
}

/// A child that has ended and is not yet reaped.
fn next_ended() -> Result<Option<Pid>, CommandError> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::All, look) {
        Ok(status) => Ok(status.pid()),
        Err(Errno::ECHILD) => Ok(None),
        // nix has no name for a real-time signal that ended the process; /proc identifies the process.
        Err(Errno::EINVAL) => {
            let processes = processes::all()?;
            let ended = processes.iter().find(|process| process.parent == getpid() && process.ended);
            Ok(ended.map(|process| process.pid))
        }
        Err(error) => Err(CommandError::System("wait for processes", error)),
    }
}

/// Options for the session of a PostgreSQL client: the existing ones, and the token.
fn session_options(given: Option<OsString>, token: Token) -> OsString {
    let mut options = given.filter(|given| !given.is_empty()).map_or_else(OsString::new, |mut given| {
        given.push(" ");
        given
    });
    options.push(format!("-c lease.fence={token}"));
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_appended_to_the_options_of_the_session() {
        assert_eq!(session_options(None, Token(47)), "-c lease.fence=47");
        assert_eq!(session_options(Some("".into()), Token(47)), "-c lease.fence=47");
        assert_eq!(session_options(Some("-c work_mem=1MB".into()), Token(47)), "-c work_mem=1MB -c lease.fence=47");
    }
}
