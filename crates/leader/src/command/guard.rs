//! The guard: a process that kills the command's group if `fencegate lead` cannot, and then releases the lease.
//!
//! It is the first member and the leader of the group, so the group's ID is not reused while the guard lives. Its input
//! is
//! - the pipe on standard input, which closes when `fencegate lead` ends for any reason;
//! - the lease's deadline, which `fencegate lead` writes to that pipe at each change.
//!
//! It reports
//! - that the command was running at the deadline, so that the SIGKILL is known to be the guard's;
//! - that the terminal asked the group to suspend.
//!
//! Must never
//! - write to the command's output;
//! - be ended by a signal for the command;
//! - release the lease while another process of the group lives.

use super::{Access, CommandError, processes};
use crate::clock::BootInstant;
use crate::coordinator::Candidate;
use crate::{ElectionName, Leadership};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{Pid, getpgrp, getpid, read, write};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

/// Internal subcommand that runs this binary as the guard.
pub const GUARD_COMMAND: &str = "lead-guard";

/// Time limit for the guard's start. No command runs yet, and a termination signal may be pending.
const START: Duration = Duration::from_secs(5);
/// Time limit for the group's processes to end after SIGKILL if the lease is to be released, and the interval between
/// checks.
const END: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);
/// Length of a message to the guard: the deadline in nanoseconds since boot, and the command's process ID (0 before it
/// starts). Short enough for an atomic write to a pipe.
const MESSAGE: usize = 2 * size_of::<u64>();

/// Report: the guard is ready.
const READY: u8 = b'.';
/// Report: the command was running at the deadline and is being killed.
const OVERRAN: u8 = b'!';
/// Report: the group received SIGTSTP.
const SUSPENDED: u8 = b'z';

/// Handle of the guard in `fencegate lead`. Dropping it kills the group.
pub(super) struct Guard {
    /// Process ID of the guard, and ID of the group.
    pub(super) pid: Pid,
    /// The command, once started. The guard reports if it kills the command.
    pub(super) command: Option<Pid>,
    orders: pipe::Sender,
    reports: pipe::Receiver,
}

impl Guard {
    /// Starts the guard and returns when only SIGKILL can end it. Not cancel-safe: the guard may remain as a zombie
    /// process.
    pub(super) async fn start(leadership: &Leadership, access: &Access) -> Result<Self, CommandError> {
        let failed = |error| CommandError::Start("the guard", error);
        let mut program = this_program(GUARD_COMMAND);
        for (name, value) in access {
            match value {
                Some(value) => program.env(name, value),
                None => program.env_remove(name),
            };
        }
        let mut child = program
            .args(LeaseArguments::of(leadership).to_flags())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(orders), Some(reports)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let orders = pipe::Sender::from_owned_fd(OwnedFd::from(orders)).map_err(failed)?;
        let mut reports = pipe::Receiver::from_owned_fd(OwnedFd::from(reports)).map_err(failed)?;
        let ready = timeout(START, reports.read_u8()).await;
        ready.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
        let guard = Guard { pid: Pid::from_raw(child.id().cast_signed()), command: None, orders, reports };
        // A lock of the state that is held while waiting would delay the renewals.
        let deadline = leadership.state().deadline;
        guard.set_deadline(deadline).await;
        Ok(guard)
    }

    /// Sets the deadline of the group. Cancel-safe: it sends the whole message or nothing.
    pub(super) async fn set_deadline(&self, deadline: BootInstant) {
        let order = Order { deadline: deadline.since_boot(), command: self.command }.to_bytes();
        loop {
            // A guard that has ended reads nothing; SIGCHLD reports its end.
            if self.orders.writable().await.is_err() {
                return;
            }
            match self.orders.try_write(&order) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }

    /// Returns when there are reports to [take](Self::take_reports), or the guard has ended. Cancel-safe.
    pub(super) async fn has_reported(&self) {
        // Reading the reports would return the same error.
        let _ = self.reports.readable().await;
    }

    /// The guard's reports since the last call.
    pub(super) fn take_reports(&self) -> Reports {
        let mut bytes = [0; 64];
        // Read directly: the guard writes a report before it kills a process, but tokio may not have noticed the report
        // yet.
        let noticed = read(self.reports.as_fd(), &mut bytes).unwrap_or(0);
        // Then read through tokio, which records that the pipe is empty.
        let length = noticed + self.reports.try_read(&mut bytes[noticed..]).unwrap_or(0);
        let has = |report| bytes[..length].contains(&report);
        Reports { overran: has(OVERRAN), suspended: has(SUSPENDED) }
    }
}

pub(super) struct Reports {
    /// True if the command was running at the guard's deadline, so the guard kills it.
    pub(super) overran: bool,
    /// True if the group has received SIGTSTP. The state of its processes does not show this reliably: a shell that
    /// starts a program by vfork(2) waits, and is not stopped, while its child is.
    pub(super) suspended: bool,
}

/// The lease, as passed to the guard. It contains no secret.
#[derive(clap::Args, Clone, Debug)]
pub struct LeaseArguments {
    #[arg(long)]
    election: ElectionName,
    #[arg(long)]
    token: i64,
    #[arg(long, allow_negative_numbers = true)]
    lease: i64,
}

impl LeaseArguments {
    fn of(leadership: &Leadership) -> Self {
        let Leadership { election, token, lease, .. } = leadership;
        LeaseArguments { election: election.clone(), token: token.get(), lease: *lease }
    }

    fn to_flags(&self) -> [String; 3] {
        let LeaseArguments { election, token, lease } = self;
        [format!("--election={election}"), format!("--token={token}"), format!("--lease={lease}")]
    }

    /// The candidate whose lease the guard releases.
    pub fn candidate(self) -> Candidate {
        let LeaseArguments { election, token, lease } = self;
        Candidate { election, holder: String::new(), lease, token, ttl: Duration::ZERO }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    /// Time since boot.
    deadline: Duration,
    command: Option<Pid>,
}

impl Order {
    fn to_bytes(self) -> [u8; MESSAGE] {
        let deadline = u64::try_from(self.deadline.as_nanos()).unwrap_or(u64::MAX);
        let command = self.command.map_or(0, |pid| pid.as_raw().cast_unsigned().into());
        let mut bytes = [0; MESSAGE];
        let (first, second) = bytes.split_at_mut(MESSAGE / 2);
        first.copy_from_slice(&u64::to_ne_bytes(deadline));
        second.copy_from_slice(&u64::to_ne_bytes(command));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (first, second) = bytes.split_at_checked(MESSAGE / 2)?;
        let [deadline, command] = [first, second].map(|half| half.try_into().map(u64::from_ne_bytes));
        let command = i32::try_from(command.ok()?).ok()?;
        let command = (command != 0).then(|| Pid::from_raw(command));
        Some(Order { deadline: Duration::from_nanos(deadline.ok()?), command })
    }
}

/// Starts this binary even if its file has been replaced.
pub(super) fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("fencegate").arg(subcommand);
    command
}

/// Main function of the guard. If `fencegate lead` has gone and no other process of the group is alive, it releases the
/// lease. Does not return if it kills the group, because it is a member.
pub fn keep_guard(give_up: impl FnOnce()) -> ExitCode {
    if getpgrp() != getpid() {
        eprintln!("fencegate: `{GUARD_COMMAND}` is only for use by `fencegate lead`");
        return ExitCode::from(2);
    }
    if let Ok(End::Abandoned(command)) = guard_until_the_end()
        && clear(getpgrp(), command)
    {
        give_up();
    }
    // On any error, kill the group: it must not run without a guard.
    let _ = killpg(getpgrp(), Signal::SIGKILL);
    ExitCode::FAILURE
}

/// Why the group must be killed.
enum End {
    /// `fencegate lead` has ended. Holds the command, if it was started.
    Abandoned(Option<Pid>),
    Deadline,
}

/// Returns when the group must be killed.
fn guard_until_the_end() -> nix::Result<End> {
    // The guard ignores signals to the group. Blocking them is sufficient, because the guard has one thread.
    SigSet::all().thread_block()?;
    let suspends = SignalFd::with_flags(&SigSet::from(Signal::SIGTSTP), SfdFlags::SFD_CLOEXEC)?;
    // The reader of the reports may be suspended.
    fcntl(io::stdout(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    write(io::stdout(), &[READY])?;
    // Continues while the machine is suspended, and fires when it resumes.
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
    let input = io::stdin();
    let mut command = None;
    loop {
        let mut sources =
            [input.as_fd(), timer.as_fd(), suspends.as_fd()].map(|source| PollFd::new(source, PollFlags::POLLIN));
        poll(&mut sources, PollTimeout::NONE)?;
        let [ordered, rang, suspended] = sources.map(|source| source.any() == Some(true));
        // Read orders first: a newer deadline may be pending along with the expired one.
        if ordered {
            let Some(order) = read_order(input.as_fd())? else { return Ok(End::Abandoned(command)) };
            command = order.command;
            set(&timer, order.deadline)?;
        } else if rang {
            // If the command has already ended, the guard did not kill it.
            if command.is_none_or(processes::lives) {
                write(io::stdout(), &[OVERRAN])?;
            }
            return Ok(End::Deadline);
        } else if suspended {
            suspends.read_signal()?;
            // The pipe may be full of the same report.
            let _ = write(io::stdout(), &[SUSPENDED]);
        }
    }
}

/// Kills the command and all other processes of the group one by one, because the guard must live on. Returns true once
/// none is alive, false on timeout.
fn clear(group: Pid, command: Option<Pid>) -> bool {
    let end = BootInstant::now() + END;
    let mut clear = false;
    while !end.remaining().is_zero() {
        let Ok(mut living) = processes::all() else { return false };
        living.retain(|process| process.group == group || Some(process.pid) == command);
        living.retain(|process| process.pid != getpid() && !process.ended);
        for process in &living {
            let _ = kill(process.pid, Signal::SIGKILL);
        }
        // A new process has a higher ID and appears in the same scan that finds its parent, unless process IDs wrap
        // around. They cannot wrap twice between two scans, so require two.
        if std::mem::replace(&mut clear, living.is_empty()) && clear {
            return true;
        }
        sleep(LOOK);
    }
    false
}

/// The last order in the pipe; None if the writer has gone.
fn read_order(input: impl AsFd) -> nix::Result<Option<Order>> {
    let mut buffer = [0; 512 * MESSAGE];
    let length = read(input, &mut buffer)?;
    Ok(buffer[..length].rchunks_exact(MESSAGE).next().and_then(Order::from_bytes))
}

fn set(timer: &TimerFd, deadline: Duration) -> nix::Result<()> {
    // Zero would disarm the timer.
    let deadline = TimeSpec::from_duration(deadline.max(Duration::from_nanos(1)));
    timer.set(Expiration::OneShot(deadline), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_clear_without_live_members() {
        let child = |group| Command::new("sleep").arg("1000").process_group(group).spawn().unwrap();
        let mut members = vec![child(0)];
        let group = Pid::from_raw(members[0].id().cast_signed());
        members.push(child(group.as_raw()));
        let command = child(0);
        assert!(clear(group, Some(Pid::from_raw(command.id().cast_signed()))));
        members.push(command);
        for mut member in members {
            assert!(member.try_wait().unwrap().is_some(), "the member has been killed");
        }
    }

    #[test]
    fn an_order_survives_serialization() {
        for command in [None, Some(Pid::from_raw(1)), Some(Pid::from_raw(i32::MAX))] {
            let order = Order { deadline: Duration::from_nanos(1 << 60), command };
            assert_eq!(Order::from_bytes(&order.to_bytes()), Some(order));
        }
        assert_eq!(Order::from_bytes(&[]), None);
    }
}
