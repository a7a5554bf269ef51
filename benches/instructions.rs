//! Instructions that the proxy executes in fixed conversations, counted by callgrind and compared with a baseline.
//!
//! Owns the conversations and benches/instructions.txt. Counts the whole program, with a real server. The counts are
//! repeatable, because each message from a client or the server arrives only when the proxy is idle. Must never use a
//! baseline of another compiler without reporting it.
//!
//! Usage: make instructions [WRITE=--write]   (replaces the baseline)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::{BufMut, BytesMut};
use fencegate::stage::Stage;
use fencegate_wire::frame::{Header, put_frame};
use fencegate_wire::message::{put_execute, put_parse, put_query, put_sync, put_terminate};
use fencegate_wire::tag::{backend, frontend};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{fs, thread};

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
const BINARY: &str = env!("CARGO_BIN_EXE_fencegate");

/// Permitted relative difference from the baseline.
const TOLERANCE: f64 = 0.03;

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.accounts]}\n";
const SCHEMA: &str = "CREATE TABLE accounts (id int PRIMARY KEY, balance int);
    INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 100) g; ANALYZE accounts";

/// The result is the lowest of this many counts, because a timer or a wake-up only adds instructions. If the result is
/// still too high, up to `MOST_BATCHES` counts.
const BATCHES: usize = 4;
const MOST_BATCHES: usize = 20;
const TRANSACTIONS: i32 = 1000;
const LOGINS: i32 = 30;
const TAKEOVERS: i64 = 40;

fn main() -> ExitCode {
    let writes = std::env::args().any(|argument| argument == "--write");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let callgrind = Callgrind::new();
    let stage = runtime.block_on(Stage::start(&callgrind.program, POLICIES)).unwrap_or_else(|error| panic!("{error}"));
    callgrind.relay(stage.folder().join(".s.PGSQL.5432"));
    let compiler = compiler();
    let counted = count(&stage, &callgrind, writes);
    if writes {
        let lines: String = counted.iter().fold(String::new(), |mut lines, (name, count)| {
            writeln!(lines, "{name}: {count:.0}").unwrap();
            lines
        });
        fs::write(BASELINE, format!("{compiler}\n{lines}")).unwrap();
    }
    compare(&compiler, &counted)
}

/// Instructions of the conversation in the baseline.
fn before(name: &str) -> f64 {
    let baseline = fs::read_to_string(BASELINE).expect("benches/instructions.txt");
    let line = baseline.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("no {name} in {BASELINE}")).parse().expect("a number")
}

/// Instructions of each conversation.
fn count(stage: &Stage, callgrind: &Callgrind, writes: bool) -> Vec<(&'static str, f64)> {
    let folder = stage.folder();
    Session::open(&folder.join(".s.PGSQL.5432"), None, "").query(SCHEMA);
    let (socket, process) = (folder.join(".s.PGSQL.6432"), callgrind.process());
    let open = |options| Session::open(&socket, Some(process.clone()), options);
    let mut counted = Vec::new();
    let mut take = |name, of: i32, conversation: &mut dyn FnMut()| {
        // Do not count the first run, which also fills pages and caches and reads a catalog.
        conversation();
        callgrind.count();
        let (mut least, most) = (f64::INFINITY, before(name) * (1.0 + TOLERANCE));
        for batch in 0..MOST_BATCHES {
            if batch >= BATCHES && (writes || least <= most) {
                break;
            }
            conversation();
            least = least.min(callgrind.count() / f64::from(of));
        }
        counted.push((name, least));
    };
    // The relay stands between the proxy and the server, so a login includes the check that no pooler does.
    // Keep another session open: the first session of a database has its catalog read.
    let beside = open("");
    take("a login", LOGINS, &mut || (0..LOGINS).for_each(|_| open("").close()));
    beside.close();

    let mut session = open("-c lease.fence=1");
    session.query("UPDATE accounts SET balance = 0");
    let texts = ["SELECT balance FROM accounts WHERE id = $1", "UPDATE accounts SET balance = 1 WHERE id = $1"];
    for (statement, text) in ["r", "w"].into_iter().zip(texts) {
        session.prepare(statement, text);
    }
    for (name, statement) in [("a prepared read", "r"), ("a prepared write", "w")] {
        take(name, TRANSACTIONS, &mut || (0..TRANSACTIONS).for_each(|id| session.execute(statement, id)));
    }
    // Literals of three digits: all texts of a batch differ, but have one shape.
    let mut value = 99;
    for (name, text) in [("a simple read", texts[0]), ("a simple write", texts[1])] {
        take(name, TRANSACTIONS, &mut || {
            for _ in 0..TRANSACTIONS {
                value = (value + 1) % 100_000;
                session.query(&text.replace("$1", &format!("{value:05}")));
            }
        });
    }
    session.close();

    let mut leaders = [open(""), open("")];
    let mut token = 1;
    take("a takeover", TAKEOVERS as i32, &mut || {
        for _ in 0..TAKEOVERS {
            token += 1;
            let leader = &mut leaders[token as usize % 2];
            leader.query(&format!("SET lease.fence = {token}"));
            leader.query("UPDATE accounts SET balance = 2 WHERE id = 1");
        }
    });
    leaders.into_iter().for_each(Session::close);
    counted
}

/// Prints the comparison. Fails if the baseline is from the same compiler and a count differs too much.
fn compare(compiler: &str, counted: &[(&str, f64)]) -> ExitCode {
    let baseline = fs::read_to_string(BASELINE).expect("benches/instructions.txt");
    let baselines_compiler = baseline.lines().next().expect("the compiler");
    let is_same = compiler == baselines_compiler;
    println!("{:<20} {:>12} {:>12} {:>8}", "instructions", "before", "now", "");
    let mut too_far = Vec::new();
    for (name, now) in counted {
        let before = before(name);
        println!("{name:<20} {before:>12.0} {now:>12.0} {:>+7.1} %", 100.0 * (now / before - 1.0));
        if (now - before).abs() > before * TOLERANCE {
            too_far.push(*name);
        }
    }
    if !is_same {
        println!("not judged: the baseline is of {baselines_compiler}; this is {compiler}");
    } else if !too_far.is_empty() {
        println!(
            "too far from what it was: {}. Is it meant? Then: make instructions WRITE=--write",
            too_far.join(", ")
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The compiler and its host. Counts depend on both.
fn compiler() -> String {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("-vV").output().expect("rustc");
    let said = String::from_utf8(output.stdout).unwrap();
    let line = |name| said.lines().find_map(|line: &str| line.strip_prefix(name)).expect("rustc -vV");
    format!("rustc {}, {}", line("release: "), line("host: "))
}

/// The program that the stage starts: the proxy under callgrind, on one processor.
struct Callgrind {
    folder: PathBuf,
    program: PathBuf,
}

impl Callgrind {
    fn new() -> Callgrind {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions");
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        // The first processor that this process may use.
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("its processors");
        let processor = allowed.trim().split(['-', ',']).next().unwrap_or_default();
        let program = folder.join("fencegate");
        // Redirect the proxy from the server's socket in the stage's folder to the relay's, which already listens.
        let text = format!(
            "#!/bin/sh\ncase \" $* \" in *' proxy '*)\n    for argument; do\n        shift\n        \
             case $argument in */fencegate-stage-*:5432) argument='{folder}:5432' ;; esac\n        \
             set -- \"$@\" \"$argument\"\n    done\n    cd '{folder}' && echo $$ >process\n    \
             exec taskset -c {processor} valgrind -q --tool=callgrind --callgrind-out-file=counted '{BINARY}' \"$@\"\n\
             esac\nexec '{BINARY}' \"$@\"\n",
            folder = folder.display()
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Callgrind { folder, program }
    }

    /// Relays the proxy's sessions to the server. Delays each answer until the proxy is idle.
    fn relay(&self, server: PathBuf) {
        let listener = UnixListener::bind(self.folder.join(".s.PGSQL.5432")).unwrap();
        let process = self.process();
        thread::spawn(move || {
            for from_proxy in listener.incoming().map(Result::unwrap) {
                let to_server = UnixStream::connect(&server).unwrap();
                let (from_server, to_proxy) = (to_server.try_clone().unwrap(), from_proxy.try_clone().unwrap());
                thread::spawn(move || pass_on(from_proxy, to_server, || ()));
                let process = process.clone();
                thread::spawn(move || pass_on(from_server, to_proxy, || wait_until_asleep(&process)));
            }
        });
    }

    fn process(&self) -> String {
        fs::read_to_string(self.folder.join("process")).unwrap().trim().to_owned()
    }

    /// Instructions since the last call.
    fn count(&self) -> f64 {
        wait_until_asleep(&self.process());
        let mut dump = Command::new("vgdb");
        let asked = dump.arg(format!("--pid={}", self.process())).arg("dump").output().expect("vgdb");
        assert!(asked.status.success(), "{asked:?}");
        let files = fs::read_dir(&self.folder).unwrap().map(|file| file.unwrap().path());
        let is_dump =
            |file: &PathBuf| file.file_stem().is_some_and(|name| name == "counted") && file.extension().is_some();
        let file = files.into_iter().find(is_dump).expect("callgrind writes counted.1, counted.2, …");
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(file).unwrap();
        text.lines().rev().find_map(|line| line.strip_prefix("totals: ")).expect("a total").trim().parse().unwrap()
    }
}

impl Drop for Callgrind {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Copies bytes until one side closes.
fn pass_on(mut from: UnixStream, mut to: UnixStream, before: impl Fn()) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        before();
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    before();
    to.shutdown(Shutdown::Write).ok();
}

/// Waits until all threads of the process are idle. While callgrind switches threads, all may sleep for a moment.
fn wait_until_asleep(process: &str) {
    let is_asleep = || {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return true };
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('S'))
        })
    };
    let mut looks = 0;
    while looks < 3 {
        looks = if is_asleep() { looks + 1 } else { 0 };
        thread::sleep(Duration::from_micros(50));
    }
}

/// A client that sends one message at a time. Its bytes do not depend on any client library.
struct Session {
    socket: UnixStream,
    /// The proxy's process ID.
    process: Option<String>,
    output: BytesMut,
    input: Vec<u8>,
}

impl Session {
    fn open(socket: &Path, process: Option<String>, options: &str) -> Session {
        process.as_deref().map(wait_until_asleep);
        let socket = UnixStream::connect(socket).unwrap();
        // Under callgrind a proxy is fifty times slower, and the machine may be busy.
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut session = Session { socket, process, output: BytesMut::new(), input: Vec::new() };
        let text = format!("user\0postgres\0database\0app\0options\0{options}\0\0");
        session.output.put_i32(text.len() as i32 + 8);
        session.output.put_i32(0x0003_0000);
        session.output.put_slice(text.as_bytes());
        session.exchange();
        session
    }

    fn close(mut self) {
        put_terminate(&mut self.output);
        self.send();
        // The end of the session is counted too.
        let rest = self.socket.read(&mut [0; 16]);
        assert_eq!(rest.unwrap(), 0);
    }

    fn query(&mut self, text: &str) {
        put_query(&mut self.output, &[text.as_bytes()]);
        self.exchange();
    }

    fn prepare(&mut self, name: &str, text: &str) {
        put_parse(&mut self.output, name, text);
        put_sync(&mut self.output);
        self.exchange();
    }

    /// Executes a prepared statement with one text parameter, as libpq does.
    fn execute(&mut self, name: &str, id: i32) {
        let value = format!("{:03}", id % 1000);
        put_frame(&mut self.output, frontend::BIND, |out| {
            out.put_u8(0);
            out.put_slice(name.as_bytes());
            out.put_slice(&[0, 0, 0, 0, 1]);
            out.put_i32(value.len() as i32);
            out.put_slice(value.as_bytes());
            out.put_slice(&[0, 1, 0, 0]);
        });
        put_frame(&mut self.output, frontend::DESCRIBE, |out| out.put_slice(b"P\0"));
        put_execute(&mut self.output, "");
        put_sync(&mut self.output);
        self.exchange();
    }

    /// Sends the output once the proxy is idle.
    fn send(&mut self) {
        self.process.as_deref().map(wait_until_asleep);
        self.socket.write_all(&self.output).unwrap();
        self.output.clear();
    }

    /// Sends the output and reads up to ReadyForQuery.
    fn exchange(&mut self) {
        self.send();
        loop {
            while let Some(header) = Header::from_server(&self.input).unwrap() {
                if self.input.len() < header.frame() {
                    break;
                }
                let frame: Vec<u8> = self.input.drain(..header.frame()).collect();
                assert_ne!(header.tag, backend::ERROR, "{}", String::from_utf8_lossy(&frame));
                if header.tag == backend::READY {
                    return;
                }
            }
            let mut chunk = [0; 4096];
            let read = self.socket.read(&mut chunk).unwrap();
            assert!(read > 0, "the session is over");
            self.input.extend_from_slice(&chunk[..read]);
        }
    }
}
