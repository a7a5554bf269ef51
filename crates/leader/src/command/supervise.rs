//! Supervises the command: one loop over all events. A command that reads the terminal becomes its foreground group only when it
//! tries to read, that is when the kernel stops it: in a pipeline into a pager, the pager's group must keep the terminal.
//!
//! Must never wait outside that loop, so that the end of the lease always wakes it, nor take the terminal from another group.

use super::family::{Family, Recipients};
use super::guard::Guard;
use super::{Access, CommandError, CommandOutcome, Signals, Terms};
use crate::Leadership;
use crate::clock::{BootInstant, sleep_until};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use std::ffi::OsString;
use std::fs::File;
use std::future::pending;
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// Polling interval for events that the kernel does not report: the end of a process that is not a child, and a change
/// of the terminal's owner.
const LOOK: Duration = Duration::from_millis(50);

/// The command was notified to end, or has ended and left other processes.
#[derive(Clone, Copy)]
struct Ending {
    /// Leadership is lost or about to be.
    lost: bool,
    /// The command had not ended by itself at that time: it was killed, or was still running when the loss was noticed.
    deposed: bool,
    /// Time of the next SIGKILL.
    kill_at: BootInstant,
    killed: bool,
}

impl Ending {
    /// After a command that ended by itself, ends only its group: it may leave other processes on purpose. After a
    /// deposed leader, ends all.
    fn recipients(self) -> Recipients {
        if self.lost { Recipients::Everyone } else { Recipients::Group }
    }
}

struct Supervisor<'a> {
    leadership: &'a Leadership,
    terms: Terms,
    family: Family,
    ending: Option<Ending>,
    /// A process reads a terminal that is not ours to hand over.
    awaits_terminal: bool,
}

/// Runs the command (program and arguments) with the token in its environment until the command or leadership ends.
/// Returns when no process of its group is alive. Call it on the main thread, because the kernel kills the command when
/// the calling thread ends.
///
/// Not cancel-safe: when dropped, and after an error, it kills the whole group but does not wait for its end.
pub async fn run(
    leadership: &Leadership,
    command: &[OsString],
    terms: Terms,
    access: &Access,
    signals: &mut Signals,
) -> Result<CommandOutcome, CommandError> {
    // Listen before starting a child: with SIGCHLD ignored, its status would be lost.
    let failed = |error| CommandError::Start("listening for the end of processes", error);
    let mut children = signal(SignalKind::child()).map_err(failed)?;
    let mut notified = leadership.state().deadline;
    let guard = Guard::start(leadership, access).await?;
    if leadership.check().is_err() {
        return Ok(CommandOutcome::Lost);
    }
    let family = Family::start(guard, leadership, command)?;
    family.guard.set_deadline(notified).await;
    let mut supervisor = Supervisor { leadership, terms, family, ending: None, awaits_terminal: false };
    while !supervisor.is_gone()? {
        tokio::select! {
            biased;
            () = leadership.running_out(terms.ttl / 3), if !supervisor.is_lost() => {
                // After a suspension, the command may have ended by itself long ago.
                if !supervisor.is_gone()? {
                    supervisor.depose()?;
                }
            }
            () = supervisor.time_to_kill() => supervisor.kill()?,
            deadline = supervisor.notify_guard(notified) => notified = deadline,
            signal = signals.next() => supervisor.pass_on(signal)?,
            _ = children.recv() => {}
            () = supervisor.family.guard.has_reported(), if !supervisor.family.is_unguarded() => {}
            () = sleep(LOOK), if supervisor.ending.is_some() || supervisor.awaits_terminal => {}
        }
    }
    supervisor.finish().await
}

/// The deadline as soon as it differs from `known`. Never returns once leadership is lost and no renewal can follow.
/// Cancel-safe.
async fn renewed(leadership: &Leadership, known: BootInstant) -> BootInstant {
    let mut state = leadership.subscribe();
    let renewed = state.wait_for(|state| state.deadline != known).await.map(|state| state.deadline);
    match renewed {
        Ok(deadline) => deadline,
        Err(_) => pending().await,
    }
}

impl Supervisor<'_> {
    /// Handles changes of processes. Returns true if the command has ended and no process is alive.
    fn is_gone(&mut self) -> Result<bool, CommandError> {
        self.family.reap()?;
        if self.family.is_killed_by_guard() {
            self.depose()?;
        }
        self.handle_stop()?;
        let ended = self.family.status().is_some();
        if !ended && !self.family.is_unguarded() {
            return Ok(false);
        }
        let recipients = self.ending.map_or(Recipients::Group, Ending::recipients);
        let gone = ended && self.family.living(recipients)?.is_empty();
        if !gone && self.ending.is_none() {
            if !ended {
                tracing::error!("command_guard_killed");
            }
            self.end(false, BootInstant::now() + self.terms.kill_after)?;
        }
        Ok(gone)
    }

    /// Ends the command because leadership is lost or about to be. Idempotent.
    fn depose(&mut self) -> Result<(), CommandError> {
        if self.is_lost() {
            return Ok(());
        }
        // Copies: writing the log must not delay the renewals.
        let (deadline, lost) = {
            let state = self.leadership.state();
            (state.deadline, state.lost.clone())
        };
        let kill_at = match &lost {
            None if self.family.is_killed_by_guard() => {
                tracing::error!(reason = "this process was suspended past the deadline", "command_killed_by_guard");
                deadline
            }
            None => {
                tracing::error!(left = ?deadline.remaining(), "lease_running_out");
                deadline
            }
            // No time is left.
            Some(lost) if lost.is_unrenewed() => deadline,
            Some(_) => BootInstant::now() + self.terms.kill_after,
        };
        self.end(true, kill_at)
    }

    /// Asks the command to end by `kill_at`. A repeated call can only make that time earlier.
    fn end(&mut self, lost: bool, kill_at: BootInstant) -> Result<(), CommandError> {
        let earlier = self.ending;
        let kill_at = earlier.map_or(kill_at, |earlier| earlier.kill_at.min(kill_at));
        let deposed = lost && (self.family.status().is_none() || self.family.is_killed_by_guard());
        let ending = Ending { lost, deposed, kill_at, killed: false };
        self.ending = Some(ending);
        self.family.signal(Signal::SIGTERM, ending.recipients())?;
        // A stopped process would not receive the signal.
        self.family.signal(Signal::SIGCONT, ending.recipients())
    }

    /// Returns at each time for SIGKILL. Repeated, because processes may start others. Cancel-safe.
    async fn time_to_kill(&self) {
        match self.ending {
            Some(ending) => sleep_until(ending.kill_at).await,
            None => pending().await,
        }
    }

    fn kill(&mut self) -> Result<(), CommandError> {
        let Some(ending) = &mut self.ending else { return Ok(()) };
        if !ending.killed {
            tracing::error!("command_killed");
            ending.killed = true;
        }
        ending.kill_at = BootInstant::now() + LOOK;
        let recipients = ending.recipients();
        self.family.signal(Signal::SIGKILL, recipients)
    }

    /// Sends the guard a deadline other than `notified`: the lease's or the supervisor's. Returns the deadline.
    /// Cancel-safe.
    async fn notify_guard(&self, notified: BootInstant) -> BootInstant {
        let time = match self.ending {
            Some(ending) if ending.killed || ending.lost && ending.kill_at == notified => pending().await,
            Some(ending) if ending.lost => ending.kill_at,
            _ => renewed(self.leadership, notified).await,
        };
        self.family.guard.set_deadline(time).await;
        time
    }

    fn pass_on(&self, signal: Signal) -> Result<(), CommandError> {
        if signal == Signal::SIGTSTP {
            tracing::warn!(reason = "a suspended leader would lose its lease", "suspension_refused");
            return Ok(());
        }
        tracing::info!(signal = signal.as_str(), "signal_forwarded");
        self.family.signal(signal, Recipients::Group)
    }

    /// Continues a leader that its terminal suspended, and hands the terminal to one that reads it. SIGSTOP is left
    /// alone: it was sent on purpose.
    fn handle_stop(&mut self) -> Result<(), CommandError> {
        let goes_on = match self.family.stopped() {
            Some(Signal::SIGTSTP) => {
                tracing::warn!(reason = "a suspended leader would block the others", "command_continued");
                true
            }
            Some(Signal::SIGTTIN | Signal::SIGTTOU) => {
                self.awaits_terminal = true;
                false
            }
            _ => false,
        };
        let has_terminal = self.awaits_terminal && hand_over(self.family.guard.pid);
        if goes_on || has_terminal {
            self.awaits_terminal = false;
            self.family.signal(Signal::SIGCONT, Recipients::Group)?;
        }
        Ok(())
    }

    async fn finish(self) -> Result<CommandOutcome, CommandError> {
        let (status, group) = (self.family.status(), self.family.guard.pid);
        let deposed = self.ending.is_some_and(|ending| ending.deposed);
        self.family.kill_all().await?;
        take_back(group);
        Ok(match status {
            Some(status) if !deposed => CommandOutcome::Ended(status),
            _ => CommandOutcome::Lost,
        })
    }

    fn is_lost(&self) -> bool {
        self.ending.is_some_and(|ending| ending.lost)
    }
}

/// Makes `group` the foreground group if this process is in the foreground. Returns false otherwise.
pub(super) fn hand_over(group: Pid) -> bool {
    pass(getpgrp(), group)
}

/// Takes the terminal back from `group` at the end.
pub(super) fn take_back(group: Pid) {
    pass(group, getpgrp());
}

fn pass(from: Pid, to: Pid) -> bool {
    // Fails without a terminal.
    let Ok(terminal) = File::open("/dev/tty") else { return false };
    if tcgetpgrp(&terminal) != Ok(from) {
        return false;
    }
    // The kernel sends SIGTTOU to a background process that does this, unless the signal is blocked. Block it in a
    // separate thread, because children of this thread would inherit the mask.
    let passing = thread::Builder::new().spawn(move || {
        SigSet::from(Signal::SIGTTOU).thread_block()?;
        tcsetpgrp(&terminal, to)
    });
    passing.is_ok_and(|passing| matches!(passing.join(), Ok(Ok(()))))
}
