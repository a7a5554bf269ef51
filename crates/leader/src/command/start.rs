//! Turns this binary into the command: the steps in the new process before exec.
//!
//! Runs as a separate process, because code between fork and exec must be async-signal-safe. Must never outlive the
//! process that started it, nor print to standard output.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, Pid, access, getppid};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

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
