//! The terminal that `fencegate lead` was started from, for a command that wants to read it.
//!
//! The command's group gets it when it asks, that is when the kernel stops it for want of it: in a pipeline into a
//! pager, the pager's group must keep it. Must never take it from another group.

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use std::fs::File;
use std::thread;

/// Gives the terminal to `group`, if it is ours to give; false if not.
pub(super) fn hand_over(group: Pid) -> bool {
    pass(getpgrp(), group)
}

/// Takes it back at the end, if `group` has it.
pub(super) fn take_back(group: Pid) {
    pass(group, getpgrp());
}

fn pass(from: Pid, to: Pid) -> bool {
    // Fails without a terminal.
    let Ok(terminal) = File::open("/dev/tty") else { return false };
    if tcgetpgrp(&terminal) != Ok(from) {
        return false;
    }
    // To one in the background the kernel answers with SIGTTOU, unless it is blocked: in a thread of its own, because
    // what is started by this one would inherit that.
    let passing = thread::Builder::new().spawn(move || {
        SigSet::from(Signal::SIGTTOU).thread_block()?;
        tcsetpgrp(&terminal, to)
    });
    passing.is_ok_and(|passing| matches!(passing.join(), Ok(Ok(()))))
}
