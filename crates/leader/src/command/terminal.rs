//! The terminal of `fencegate lead`, for a command that reads it.
//!
//! The command's group becomes the foreground group only when it tries to read, that is when the kernel stops it. In a
//! pipeline into a pager, the pager's group must keep the terminal. Must never take the terminal from another group.

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use std::fs::File;
use std::thread;

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
