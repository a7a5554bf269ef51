//! The machine's processes, from /proc.
//!
//! Must never consider a process gone that can still act, such as one that waits in the kernel or has lost only its
//! first thread.

use nix::unistd::Pid;
use procfs::process::{self, Stat};
use procfs::{ProcError, ProcResult};
use std::collections::HashSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// A process, as /proc shows it.
pub struct Process {
    /// Its ID.
    pub pid: Pid,
    /// ID of its parent.
    pub parent: Pid,
    /// Its process group.
    pub group: Pid,
    /// The process has ended and only its status remains.
    pub ended: bool,
}

/// All visible processes. A process that has just ended or is hidden is not an error.
pub fn all() -> ProcResult<Vec<Process>> {
    let mut processes = Vec::new();
    for process in process::all_processes()? {
        match process.and_then(|process| process.stat()) {
            Ok(stat) => processes.push(Process::from(&stat)),
            // The process has ended, or is another user's and hidden (hidepid of proc(5)).
            Err(ProcError::NotFound(_) | ProcError::PermissionDenied(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(processes)
}

/// True unless the process has certainly ended.
pub fn lives(pid: Pid) -> bool {
    match process::Process::new(pid.as_raw()).and_then(|process| process.stat()) {
        Ok(stat) => !Process::from(&stat).ended,
        Err(error) => !matches!(error, ProcError::NotFound(_)),
    }
}

impl From<&Stat> for Process {
    fn from(stat: &Stat) -> Self {
        let [pid, parent, group] = [stat.pid, stat.ppid, stat.pgrp].map(Pid::from_raw);
        Process { pid, parent, group, ended: matches!(stat.state, 'Z' | 'X') && stat.num_threads <= 1 }
    }
}

/// The children of `root`, their children, and so on.
pub fn descendants(processes: &[Process], root: Pid) -> HashSet<Pid> {
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
    use procfs::FromRead;

    fn process(pid: i32, parent: i32, group: i32, ended: bool) -> Process {
        let [pid, parent, group] = [pid, parent, group].map(Pid::from_raw);
        Process { pid, parent, group, ended }
    }

    /// Parses /proc data of a process with this name, state and number of threads.
    fn read(name: &str, state: char, threads: u32) -> Process {
        let rest = format!("5 6 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 100{}", " 0".repeat(30));
        Process::from(&Stat::from_read(format!("9 ({name}) {state} {rest}").as_bytes()).unwrap())
    }

    #[test]
    fn a_process_with_any_name_is_parsed() {
        for name in ["sh", "a b", ") Z 1 1", "(x)"] {
            assert_eq!(read(name, 'S', 1), process(9, 5, 6, false), "{name}");
        }
    }

    #[test]
    fn a_process_has_ended_once_all_its_threads_have() {
        for (state, threads, ended) in [('Z', 1, true), ('X', 1, true), ('Z', 2, false), ('D', 1, false)] {
            assert_eq!(read("sh", state, threads).ended, ended, "{state} {threads}");
        }
    }

    #[test]
    fn all_includes_this_process() {
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
