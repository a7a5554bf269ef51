//! The proxy under test: `fencegate proxy` in front of a throwaway server.

use super::guardian::{Folder, Port, Program};
use super::postgres::Postgres;
use super::programs::forget_settings;
use super::wait::{DEADLINE, wait_for, wait_until};
use super::wire::Address;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub const BINARY: &str = env!("CARGO_BIN_EXE_fencegate");

/// The program under test, with only the settings that a test gives it.
pub fn fencegate() -> Command {
    let mut command = Command::new(BINARY);
    forget_settings(&mut command);
    command
}

/// A bash script that runs a program with its standard error on a named pipe.
pub const TO_PIPE: &str = r#"exec 3<>"$0"; exec "$@" 2>&3"#;

/// Policies that fence no table.
pub const NO_POLICIES: &str = "version: 1\nresources: []\n";

/// Settings that differ between proxies.
#[derive(Clone)]
pub struct ProxyOptions {
    policies: String,
    arguments: Vec<String>,
    control: Option<String>,
    settings: Option<String>,
    upstream: Option<String>,
    upstream_by_socket: bool,
    requires_passwords: bool,
    environment: Vec<String>,
    umask: Option<&'static str>,
    log: Option<PathBuf>,
    under: Vec<String>,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self {
            policies: NO_POLICIES.into(),
            arguments: Vec::new(),
            control: None,
            settings: None,
            upstream: None,
            upstream_by_socket: false,
            requires_passwords: false,
            environment: Vec::new(),
            umask: None,
            log: None,
            under: Vec::new(),
        }
    }
}

impl ProxyOptions {
    /// The text of the only policy file.
    pub fn policies(mut self, yaml: &str) -> Self {
        self.policies = yaml.into();
        self
    }

    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.into()));
        self
    }

    /// An environment variable of the proxy.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// The proxy's umask, in octal.
    pub fn umask(mut self, umask: &'static str) -> Self {
        self.umask = Some(umask);
        self
    }

    /// Sends the proxy's standard error to this file or named pipe. The proxy also keeps it open for reading, so that a
    /// write to a full pipe blocks.
    pub fn log_to(mut self, pipe: &Path) -> Self {
        self.log = Some(pipe.to_owned());
        self
    }

    /// Starts the proxy with this command, which appends the proxy's own and keeps its process id.
    pub fn under(mut self, command: Vec<String>) -> Self {
        self.under = command;
        self
    }

    /// The address and role of the control connection, instead of the server's superuser.
    pub fn control(mut self, url: &str) -> Self {
        self.control = Some(url.into());
        self
    }

    /// The text of the settings file, which must set `upstream` and `control`: no flag does.
    pub fn settings(mut self, yaml: &str) -> Self {
        self.settings = Some(yaml.into());
        self
    }

    /// The address for sessions, instead of the server's.
    pub fn upstream(mut self, url: &str) -> Self {
        self.upstream = Some(url.into());
        self
    }

    /// Connects the proxy to the server through the server's Unix socket.
    pub fn upstream_by_socket(mut self) -> Self {
        self.upstream_by_socket = true;
        self
    }

    /// Keeps the default of `allow_unauthenticated`. Otherwise the server may accept all clients of this machine
    /// without authentication, as most tests need.
    pub fn requires_passwords(mut self) -> Self {
        self.requires_passwords = true;
        self
    }
}

/// A running proxy; killed and removed when dropped.
pub struct Proxy {
    program: Program,
    folder: Folder,
    port: Port,
    _user: Arc<()>,
}

impl Proxy {
    pub fn start(postgres: &Postgres, policies: &str, arguments: &[&str]) -> Self {
        Self::start_with(postgres, &ProxyOptions::default().policies(policies).arguments(arguments))
    }

    /// Starts a proxy on a TCP port and a Unix socket, and returns when it accepts connections on both.
    pub fn start_with(postgres: &Postgres, options: &ProxyOptions) -> Self {
        let folder = Folder::new("proxy");
        let port = Port::claim();
        fs::create_dir(folder.join("policies")).unwrap();
        fs::create_dir(folder.join("socket")).unwrap();
        fs::write(folder.join("policies/policies.yaml"), &options.policies).unwrap();
        if let Some(settings) = &options.settings {
            fs::write(folder.join("fencegate.yaml"), settings).unwrap();
        }
        let command = command(postgres, options, &folder, port.number());
        let program = Program::start(&command, &folder.join("log"), "KILL");
        let mut proxy = Self { program, folder, port, _user: postgres.user() };
        proxy.wait_until_ready();
        proxy
    }

    fn wait_until_ready(&mut self) {
        let ready = || {
            if let Some(status) = self.program.exit_status() {
                panic!("the proxy ended with {status}:\n{}", self.log());
            }
            let tcp = TcpStream::connect(("127.0.0.1", self.port.number())).ok()?;
            tcp.shutdown(Shutdown::Write).ok()?;
            // The file exists shortly before the proxy listens on it.
            let unix = UnixStream::connect(self.find_socket()?).ok()?;
            unix.shutdown(Shutdown::Write).ok()?;
            // Once the proxy has closed both connections, they take no place from later clients.
            [&mut &tcp as &mut dyn Read, &mut &unix].into_iter().all(|it| it.read(&mut [0]).is_ok()).then_some(())
        };
        wait_for("the proxy listens", DEADLINE, ready);
    }

    pub fn address(&self) -> Address {
        Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number())))
    }

    pub fn socket(&self) -> Address {
        Address::Unix(self.find_socket().expect("the proxy listens on a Unix socket"))
    }

    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Replaces the policy file; `sighup` makes the proxy read it.
    pub fn write_policies(&self, yaml: &str) {
        // Write under a name that the proxy skips, so that the proxy never reads half a file.
        let unfinished = self.folder.join("policies/.unfinished");
        fs::write(&unfinished, yaml).unwrap();
        fs::rename(&unfinished, self.folder.join("policies/policies.yaml")).unwrap();
    }

    /// Replaces the settings file; `sighup` makes the proxy read it.
    pub fn write_settings(&self, yaml: &str) {
        fs::write(self.folder.join("fencegate.yaml"), yaml).unwrap();
    }

    /// The directory of its policies.
    pub fn policies(&self) -> PathBuf {
        self.folder.join("policies")
    }

    /// Removes the whole directory of policies.
    pub fn remove_policies(&self) {
        fs::remove_dir_all(self.folder.join("policies")).unwrap();
    }

    /// Replaces the settings file, and returns when the reload has succeeded or failed.
    pub fn reload_with(&mut self, settings: &str) {
        let ended = |log: &str| ["policies_loaded", "reload_failed"].map(|it| log.matches(it).count());
        let before = ended(&self.log());
        self.write_settings(settings);
        self.sighup();
        wait_until("the reload has ended", DEADLINE, || ended(&self.log()) != before);
    }

    pub fn sighup(&mut self) {
        self.program.signal("HUP");
    }

    /// Requests a graceful shutdown, and returns the exit code.
    pub fn terminate(&mut self) -> i32 {
        self.program.signal("TERM");
        self.program.wait()
    }

    /// Waits until the proxy has ended, and returns its exit code.
    pub fn wait(&mut self) -> i32 {
        self.program.wait()
    }

    /// Returns true if the file of the Unix socket exists.
    pub fn has_socket(&self) -> bool {
        self.find_socket().is_some()
    }

    /// Kills the proxy without a clean shutdown.
    pub fn kill9(&mut self) {
        self.program.signal("KILL");
        self.program.wait();
    }

    /// Sends a signal. `STOP` suspends the proxy, as an overloaded or paused machine would; `CONT` resumes it.
    pub fn signal(&mut self, name: &str) {
        self.program.signal(name);
    }

    /// Suspends the proxy, and returns when every thread has stopped.
    pub fn pause(&mut self) {
        self.program.pause();
    }

    /// The log, including everything logged so far.
    pub fn log(&self) -> String {
        wait_until("the log's thread has nothing to write", DEADLINE, || self.has_written_log());
        String::from_utf8_lossy(&fs::read(self.folder.join("log")).unwrap_or_default()).into_owned()
    }

    /// A thread writes the log from a queue. The thread sleeps only while the queue is empty, because writing to the
    /// file does not block.
    fn has_written_log(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let status = |it: fs::DirEntry| fs::read_to_string(it.path().join("status")).unwrap_or_default();
        threads
            .map(status)
            .filter(|it| it.starts_with("Name:\tlog\n"))
            .all(|it| !["\nState:\tR", "\nState:\tD"].iter().any(|state| it.contains(state)))
    }

    /// Waits until the log contains `text`.
    pub fn wait_for_log(&self, text: &str, deadline: Duration) {
        wait_until(format!("the proxy's log contains {text:?}"), deadline, || self.log().contains(text));
    }

    /// Its peak memory, in KiB.
    pub fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Its current memory, in KiB.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Its address space, in bytes.
    pub fn address_space(&self) -> u64 {
        self.status("VmSize:") * 1024
    }

    /// A value from /proc/PID/status, in KiB.
    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of that name");
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Processor time, in hundredths of a second.
    pub fn processor_time(&self) -> u64 {
        const USER_AND_SYSTEM: std::ops::Range<usize> = 11..13;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // The program's name, in parentheses, may contain spaces.
        let (_, numbers) = stat.rsplit_once(')').expect("a name");
        let numbers: Vec<_> = numbers.split_whitespace().collect();
        numbers[USER_AND_SYSTEM].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    /// How often the threads with this name have waited.
    pub fn waits_of_threads(&self, name: &str) -> u64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().map(|entry| entry.unwrap().path());
        let of_name = threads.filter(|thread| fs::read_to_string(thread.join("comm")).unwrap().trim_end() == name);
        let waits = |thread: PathBuf| -> u64 {
            let status = fs::read_to_string(thread.join("status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.expect("a count").trim().parse().unwrap()
        };
        let waits: Vec<_> = of_name.map(waits).collect();
        assert!(!waits.is_empty(), "no thread is named {name}");
        waits.iter().sum()
    }

    /// Number of open files and sockets.
    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    fn find_socket(&self) -> Option<PathBuf> {
        let is_socket = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()?.strip_prefix(".s.PGSQL.")?.parse::<u16>().ok()).is_some()
        };
        fs::read_dir(self.folder.join("socket")).unwrap().map(|entry| entry.unwrap().path()).find(is_socket)
    }
}

fn command(postgres: &Postgres, options: &ProxyOptions, folder: &Folder, port: u16) -> Vec<String> {
    let text = |path: &Path| path.display().to_string();
    let upstream = match &options.upstream {
        Some(url) => url.clone(),
        None if options.upstream_by_socket => upstream_folder(postgres, folder),
        None => postgres.url(),
    };
    let mut command = Vec::new();
    if let Some(umask) = options.umask {
        command.extend(["sh".into(), "-c".into(), format!("umask {umask}; exec \"$@\""), "sh".into()]);
    }
    if let Some(pipe) = &options.log {
        command.extend(["bash", "-c", TO_PIPE].map(str::to_owned));
        command.push(text(pipe));
    }
    if !options.environment.is_empty() {
        command.push("env".to_owned());
        command.extend(options.environment.iter().cloned());
    }
    command.extend(options.under.iter().cloned());
    command.extend([BINARY.to_owned(), "proxy".into()]);
    command.extend(["--listen".into(), format!("127.0.0.1:{port}")]);
    command.extend(["--listen".into(), text(&folder.join("socket"))]);
    if options.settings.is_some() {
        command.extend(["--config".into(), text(&folder.join("fencegate.yaml"))]);
    } else {
        command.extend(["--upstream".into(), upstream]);
        command.extend(["--control".into(), options.control.clone().unwrap_or_else(|| postgres.control_url())]);
    }
    command.extend(["--policies".into(), text(&folder.join("policies"))]);
    if !options.requires_passwords {
        command.extend(["--allow-unauthenticated", "unix,127.0.0.0/8"].map(str::to_owned));
    }
    command.extend(options.arguments.iter().cloned());
    command
}

/// A folder that has the server's socket under the name for the default port, as `--upstream DIR` expects.
fn upstream_folder(postgres: &Postgres, folder: &Folder) -> String {
    let Address::Unix(socket) = postgres.socket() else { unreachable!() };
    let upstream = folder.join("upstream");
    fs::create_dir(&upstream).unwrap();
    std::os::unix::fs::symlink(socket, upstream.join(".s.PGSQL.5432")).unwrap();
    upstream.display().to_string()
}
