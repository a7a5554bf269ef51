//! What /proc says about the processes of the machine.
//!
//! Must never take a process for gone that can still do something: neither one that waits in the kernel, nor one
//! whose first thread alone has ended.

use nix::unistd::Pid;
use std::collections::HashSet;
use std::{fs, io};

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) parent: Pid,
    pub(crate) group: Pid,
    /// It has ended, and only its status is left.
    pub(crate) ended: bool,
}

/// Every process that is visible.
///
/// # Errors
/// When /proc cannot be read. A process that ends meanwhile, or is hidden from us, is no error.
pub(crate) fn all() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // The name of a program need not be UTF-8.
        match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => processes.extend(parse(Pid::from_raw(pid), &String::from_utf8_lossy(&stat))),
            Err(error) if has_ended(&error) => {}
            // Hidden from us (hidepid of proc(5)): another user's.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(processes)
}

/// True unless this process has ended, also where that cannot be told.
pub(super) fn lives(pid: Pid) -> bool {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse(pid, &String::from_utf8_lossy(&stat)).is_none_or(|process| !process.ended),
        Err(error) => !has_ended(&error),
    }
}

/// ENOENT before the file is opened, ESRCH (3) after.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32)
}

/// The fields of proc_pid_stat(5).
fn parse(pid: Pid, stat: &str) -> Option<Process> {
    // The program's name, in parentheses, may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    let (parent, group, threads) = (number(1)?, number(2)?, number(17)?);
    let ended = matches!(fields[0], "Z" | "X") && threads <= 1;
    Some(Process { pid, parent: Pid::from_raw(parent), group: Pid::from_raw(group), ended })
}

/// The children of `root`, their children, and so on.
pub(super) fn descendants(processes: &[Process], root: Pid) -> HashSet<Pid> {
    let mut found = HashSet::new();
    loop {
        let before = found.len();
        let is_next = |process: &&Process| process.parent == root || found.contains(&process.parent);
        let next: Vec<Pid> = processes.iter().filter(is_next).map(|process| process.pid).collect();
        found.extend(next);
        if found.len() == before {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32, ended: bool) -> Process {
        let [pid, parent, group] = [pid, parent, group].map(Pid::from_raw);
        Process { pid, parent, group, ended }
    }

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let tail = "5 6 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100";
        for name in ["sh", "a b", ") Z 1 1", "(x)"] {
            let stat = format!("9 ({name}) S {tail}");
            assert_eq!(parse(Pid::from_raw(9), &stat), Some(process(9, 5, 6, false)), "{name}");
        }
        assert_eq!(parse(Pid::from_raw(9), &format!("9 (sh) Z {tail}")), Some(process(9, 5, 6, true)));
        assert_eq!(parse(Pid::from_raw(9), "9 (sh) S 5"), None);
    }

    #[test]
    fn a_process_whose_first_thread_alone_has_ended_lives() {
        let stat = "9 (sh) Z 5 6 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 2 0 100";
        assert_eq!(parse(Pid::from_raw(9), stat), Some(process(9, 5, 6, false)));
    }

    #[test]
    fn this_process_is_among_them() {
        let me = nix::unistd::getpid();
        let found = all().unwrap().into_iter().find(|process| process.pid == me).unwrap();
        assert_eq!((found.group, found.ended), (nix::unistd::getpgrp(), false));
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let processes =
            [process(5, 4, 5, false), process(4, 3, 4, true), process(3, 2, 3, false), process(9, 1, 9, false)];
        assert_eq!(descendants(&processes, Pid::from_raw(2)), [3, 4, 5].map(Pid::from_raw).into());
    }
}
