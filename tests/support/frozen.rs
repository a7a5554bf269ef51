//! Suspended processes.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Processes of a server, suspended until this is dropped.
pub struct Frozen(Vec<Pid>);

impl Frozen {
    pub fn processes<'a>(pids: impl IntoIterator<Item = &'a str>) -> Self {
        let frozen = Frozen(pids.into_iter().map(|pid| Pid::from_raw(pid.parse().expect("a process"))).collect());
        frozen.signal(Signal::SIGSTOP);
        frozen
    }

    fn signal(&self, signal: Signal) {
        // A process may have ended.
        self.0.iter().for_each(|pid| {
            kill(*pid, signal).ok();
        });
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}
