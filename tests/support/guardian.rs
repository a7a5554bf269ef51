//! Owns the processes, folders and ports of a test, and cleans up even if the test process is killed.
//!
//! A killed process runs no destructors. A shell, the guardian, therefore reads from a pipe which processes this
//! process starts and which folders it creates. When the pipe closes, the guardian ends the processes and removes the
//! folders that are left.

use super::programs::forget_settings;
use super::wait::{DEADLINE, wait_for, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{PipeWriter, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The guardian's input. Never closed: end-of-file tells the guardian that this process has ended.
static GUARDIAN: LazyLock<PipeWriter> = LazyLock::new(|| {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    // Do not wait for the guardian, which outlives this process.
    drop(shell(include_str!("guardian.sh")).stdin(reader).spawn().expect("sh starts"));
    writer
});

/// Each line must be short enough for one atomic write, so that lines of several threads do not mix.
fn tell_guardian(line: &str) {
    (&*GUARDIAN).write_all(format!("{line}\n").as_bytes()).expect("the guardian reads");
}

/// A running server.
pub struct Program {
    child: Child,
    /// The guardian's name for the process, because a process id may be reused.
    number: u32,
    stop_signal: &'static str,
    log: PathBuf,
}

impl Program {
    /// Starts `command` with its output appended to `log`. `stop_signal` ends it immediately, without a clean shutdown.
    pub fn start<S: AsRef<OsStr>>(command: &[S], log: &Path, stop_signal: &'static str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let output = File::options().append(true).create(true).open(log).unwrap();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        // The shell announces the program to the guardian before it starts it.
        let child = shell(r#"echo "start $1 $$ $2" >&0; shift 2; exec "$@" </dev/null"#)
            .args([&number.to_string(), stop_signal])
            .args(command)
            .stdin(GUARDIAN.try_clone().unwrap())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .expect("sh starts");
        Self { child, number, stop_signal, log: log.to_owned() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit code, or 128 + the signal, if the process has ended.
    pub fn exit_status(&mut self) -> Option<i32> {
        let status = self.child.try_wait().unwrap()?;
        status.code().or_else(|| Some(128 + status.signal()?))
    }

    pub fn wait(&mut self) -> i32 {
        self.wait_within(DEADLINE)
    }

    /// Like [`Self::wait`], for a program that needs more time.
    pub fn wait_within(&mut self, limit: Duration) -> i32 {
        let what = End { pid: self.pid(), log: self.log.clone() };
        wait_for(what, limit, || self.exit_status())
    }

    /// Sends a signal, named as in `kill -s`. Ignores a process that has ended.
    pub fn signal(&mut self, name: &str) {
        if self.exit_status().is_none() {
            let signal: Signal = format!("SIG{name}").parse().expect("the name of a signal");
            let _ = kill(Pid::from_raw(self.pid() as i32), signal);
        }
    }

    /// Suspends the process, and returns when every thread has stopped. Until then, a thread may still answer.
    pub fn pause(&mut self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.pid());
        let stopped = |task: &Path| {
            let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        };
        wait_until("every thread has stopped", DEADLINE, || {
            fs::read_dir(&tasks).unwrap().all(|task| stopped(&task.unwrap().path()))
        });
    }
}

/// Reads the log only when a timeout is reported: until then the log grows.
struct End {
    pid: u32,
    log: PathBuf,
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = fs::read(&self.log).unwrap_or_default();
        write!(formatter, "process {} ends; its log:\n{}", self.pid, String::from_utf8_lossy(&log))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.signal(self.stop_signal);
        // No assertion: a panic during unwinding would abort the clean-up of the other tests.
        let _ = self.child.wait();
        tell_guardian(&format!("end {}", self.number));
    }
}

/// A temporary folder that all users may enter, because the server runs as another user.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(what: &str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        // Short, because the path of a Unix socket is limited to 107 bytes.
        let path = std::env::temp_dir().join(format!("fencegate-{what}-{}-{number}", std::process::id()));
        tell_guardian(&format!("folder {}", path.display()));
        // A process with the same id may have left the folder if its guardian was killed as well.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The guardian removes files that a process still writes there.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A TCP port of the loopback interface that no other test, in this process or another, will choose.
///
/// The port itself cannot stay bound, because the server that uses it may stop and start again. Instead, the UDP port
/// of the same number stays bound. All ports are below the range that the kernel uses for outgoing connections.
pub struct Port {
    number: u16,
    _claim: UdpSocket,
}

impl Port {
    pub fn claim() -> Self {
        const FIRST: u32 = 12_000;
        const COUNT: u32 = 20_000;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let offset = std::process::id().wrapping_mul(97);
        for _ in 0..COUNT {
            let number = FIRST + offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
            let number = u16::try_from(number).unwrap();
            let Ok(claim) = UdpSocket::bind(("127.0.0.1", number)) else { continue };
            // Do not listen on the port to test it: the child of another thread inherits all open files, and would keep
            // the port in use until it executes its program.
            if TcpStream::connect(("127.0.0.1", number)).is_err() {
                return Self { number, _claim: claim };
            }
        }
        panic!("no port is free");
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// A shell in its own process group, so that a Ctrl-C for the tests does not reach it.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    forget_settings(&mut command);
    command.arg("-c").arg(script).arg("guardian").process_group(0);
    command
}
