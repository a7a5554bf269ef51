//! The guard: a process that kills the command's group when `fencegate lead` cannot.
//!
//! It is the first member and the leader of that group, so the group's id means no other group while it lives.
//! It knows two things: the pipe on its standard input, which closes when `fencegate lead` ends, however it ends;
//! and the lease's deadline, which `fencegate lead` writes there whenever it moves. Must never
//! write to anything that the command writes to, nor be ended by a signal that is meant for the command.

use super::CommandError;
use crate::leader::clock::BootInstant;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{Pid, getpgrp, getpid, read, write};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

/// The subcommand, not for people, as which this binary runs as the guard.
pub const GUARD_COMMAND: &str = "lead-guard";

/// It has this long to be ready: nothing runs yet, and whoever waits may have got a signal.
const START: Duration = Duration::from_secs(5);
/// A deadline on the pipe: ns since the machine was started. Shorter than what a pipe takes at once or not at all.
const MESSAGE: usize = size_of::<u64>();

/// The guard, as `fencegate lead` sees it. Dropping it kills the group.
pub(super) struct Guard {
    /// The group's id, too.
    pub(super) pid: Pid,
    deadlines: pipe::Sender,
}

impl Guard {
    /// Starts it, and returns when nothing but SIGKILL ends it any more. Not cancel-safe: the guard may be left as a
    /// process that has ended and is not reaped.
    ///
    /// # Errors
    /// When it cannot be started, or does not answer.
    pub(super) async fn start(deadline: BootInstant) -> Result<Self, CommandError> {
        let failed = |error| CommandError::Start { what: "the guard", error };
        let mut child = this_program(GUARD_COMMAND)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(deadlines), Some(ready)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let deadlines = pipe::Sender::from_owned_fd(OwnedFd::from(deadlines)).map_err(failed)?;
        let mut ready = pipe::Receiver::from_owned_fd(OwnedFd::from(ready)).map_err(failed)?;
        let ready = timeout(START, ready.read_u8()).await;
        ready.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
        let guard = Guard { pid: Pid::from_raw(child.id().cast_signed()), deadlines };
        guard.tell(deadline).await;
        Ok(guard)
    }

    /// Tells it when to kill the group, unless it is told again. Cancel-safe: told whole or not at all.
    pub(super) async fn tell(&self, deadline: BootInstant) {
        let deadline = u64::try_from(deadline.since_boot().as_nanos()).unwrap_or(u64::MAX);
        loop {
            // A guard that has ended reads nothing; SIGCHLD says so.
            if self.deadlines.writable().await.is_err() {
                return;
            }
            match self.deadlines.try_write(&deadline.to_ne_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }
}

/// This binary again, also where its file has been replaced since it was started.
pub(super) fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("fencegate").arg(subcommand);
    command
}

/// What the process of the guard does. Does not return when the group is to be killed: it is a member.
pub fn keep_guard() -> ExitCode {
    if getpgrp() != getpid() {
        eprintln!("fencegate: `{GUARD_COMMAND}` is started by `fencegate lead` only");
        return ExitCode::from(2);
    }
    // Whatever happens: a group without a guard must not go on.
    let _ = guard_until_the_end();
    let _ = killpg(getpgrp(), Signal::SIGKILL);
    ExitCode::FAILURE
}

/// Returns when the group must die.
fn guard_until_the_end() -> nix::Result<()> {
    // What is sent to the group is not meant for the guard. Blocked is enough: there is one thread.
    SigSet::all().thread_block()?;
    write(io::stdout(), b".")?;
    // Counts while the machine is suspended, and rings when it wakes up.
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
    let input = io::stdin();
    loop {
        let mut sources =
            [PollFd::new(input.as_fd(), PollFlags::POLLIN), PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        poll(&mut sources, PollTimeout::NONE)?;
        // First: a newer deadline may be waiting beside the one that has passed.
        if sources[0].any() == Some(true) {
            match read_deadline(input.as_fd())? {
                Some(deadline) => set(&timer, deadline)?,
                None => return Ok(()),
            }
        } else if sources[1].any() == Some(true) {
            return Ok(());
        }
    }
}

/// The last one written; None when nobody can write any more.
fn read_deadline(input: impl AsFd) -> nix::Result<Option<Duration>> {
    let mut buffer = [0; 512 * MESSAGE];
    let length = read(input, &mut buffer)?;
    let last = buffer[..length].rchunks_exact(MESSAGE).next();
    let last: Option<[u8; MESSAGE]> = last.and_then(|last| last.try_into().ok());
    Ok(last.map(|last| Duration::from_nanos(u64::from_ne_bytes(last))))
}

fn set(timer: &TimerFd, deadline: Duration) -> nix::Result<()> {
    // Zero would mean never.
    let deadline = TimeSpec::from_duration(deadline.max(Duration::from_nanos(1)));
    timer.set(Expiration::OneShot(deadline), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
}
