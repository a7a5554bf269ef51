//! Parses a text in a separate process. If the parser exceeds its limits on time, memory or stack, only that process
//! ends.
//!
//! Owns the processes: they start on demand and end when they are idle. Must never guess without a response: the text
//! then counts as too complex.
//! Must never decode a different response than the encoded one: an unknown name makes the response invalid.

use crate::{Encoding, LONGEST_TREE, Lexing, Script, ServerEncoding, Unreadable, cost, read_text};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

/// Maximum number of readers at the same time, which callers must respect, and of idle readers that are kept.
pub const READERS: usize = 3;

/// Time limit for a response. It exceeds the limit of processor time because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum length of a response. [`crate::analyze()`] bounds the content of a script below it.
const LONGEST_ANSWER: usize = 64 << 20;

/// The program that knows the subcommand [`READER_COMMAND`].
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Readers that wait for a text.
static IDLE: Mutex<Vec<ReaderProcess>> = Mutex::new(Vec::new());

/// Sets the `fencegate` binary that parses expensive texts. Until it is set, such texts count as too complex. Only the
/// first call has an effect.
pub fn set_program(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// Reads a text of up to `LONGEST_TREE` bytes in another process. None if it did not finish. Blocks.
pub fn read(text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Result<Script, Unreadable>> {
    let request = request(text, lexing, with_rows);
    let idle = || IDLE.lock();
    let kept = idle().pop();
    // A kept reader may have ended because it was idle.
    let answered = kept.and_then(|reader| reader.ask(&request).ok()).map_or_else(|| start()?.ask(&request), Ok);
    match answered {
        Ok((reader, answer)) => {
            let mut idle = idle();
            let has_room = idle.len() < READERS;
            idle.extend(reader.filter(|_| has_room));
            Some(answer)
        }
        Err(error) => {
            tracing::debug!(%error, "text_not_read");
            None
        }
    }
}

/// Starts a reader. Without readers the proxy refuses many texts, so it logs the first failure.
fn start() -> io::Result<ReaderProcess> {
    static LOGGED: Once = Once::new();
    ReaderProcess::start().inspect_err(|error| LOGGED.call_once(|| tracing::warn!(%error, "reader_not_started")))
}

/// The length of the text, the settings for parsing it, and the text.
fn request(text: &[u8], lexing: Lexing, with_rows: bool) -> Vec<u8> {
    let Lexing { standard_conforming_strings, encoding, server, release } = lexing;
    let how = [u8::from(standard_conforming_strings), encoding as u8, server as u8, release, u8::from(with_rows)];
    [&(text.len() as u32).to_be_bytes()[..], &how, text].concat()
}

/// A process that reads texts, one after the other. Dropping it ends it.
struct ReaderProcess {
    child: Child,
    stream: UnixStream,
}

impl ReaderProcess {
    fn start() -> io::Result<Self> {
        let program = PROGRAM.get().ok_or(io::ErrorKind::NotFound)?;
        let (stream, theirs) = UnixStream::pair()?;
        let child = Command::new(program)
            .arg0("fencegate")
            .arg(READER_COMMAND)
            // The reader gets no environment, which may contain secrets, and no signals from a terminal.
            .env_clear()
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::null())
            .spawn()?;
        Ok(ReaderProcess { child, stream })
    }

    /// Sends a text and returns the response, and the process itself if it can be reused.
    fn ask(mut self, request: &[u8]) -> io::Result<(Option<Self>, Result<Script, Unreadable>)> {
        let deadline = Instant::now() + PATIENCE;
        self.stream.set_write_timeout(Some(PATIENCE))?;
        self.stream.write_all(request)?;
        let mut head = [0; 5];
        self.read_exact(&mut head, deadline)?;
        let [goes_on, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        if length > LONGEST_ANSWER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut answer = vec![0; length];
        self.read_exact(&mut answer, deadline)?;
        let answer = decode(&answer).ok_or(io::ErrorKind::InvalidData)?;
        Ok(((goes_on == 1).then_some(self), answer))
    }

    fn read_exact(&mut self, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => buffer = &mut buffer[length..],
                // A signal arrived, such as the one that reloads policies.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for ReaderProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The internal subcommand with which this binary reads texts for another process.
pub const READER_COMMAND: &str = "read-texts";

/// Memory limit in bytes, without the stack for deep trees.
const MEMORY: u64 = 64 << 20;

/// Stack limit of the main thread, which [`MEMORY`] does not include.
const STACK: u64 = 8 << 20;

/// The limit of processor time for one text.
const PROCESSOR_TIME: Duration = Duration::from_secs(1);

/// Idle time in milliseconds after which the process ends.
const IDLE_MS: u16 = 10_000;

/// Maximum growth of the process for one text, in KiB. Beyond it, the process ends to free the memory.
const MOST_KEPT: i64 = 16 << 10;

/// Main function of the process.
pub fn read_for_another() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let memory = MEMORY + cost::SIZE as u64;
    setrlimit(Resource::RLIMIT_DATA, memory, memory)?;
    let (_, most) = getrlimit(Resource::RLIMIT_STACK)?;
    setrlimit(Resource::RLIMIT_STACK, STACK.min(most), most)?;
    let signal = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 });
    let mut limit = Timer::new(ClockId::CLOCK_PROCESS_CPUTIME_ID, signal)?;
    let at_start = grown()?;
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    loop {
        let standard_input = io::stdin();
        if poll(&mut [PollFd::new(standard_input.as_fd(), PollFlags::POLLIN)], IDLE_MS)? == 0 {
            return Ok(());
        }
        let Some((text, lexing, with_rows)) = next(&mut input)? else { return Ok(()) };
        let time = Expiration::OneShot(TimeSpec::from_duration(PROCESSOR_TIME));
        limit.set(time, TimerSetTimeFlags::empty())?;
        let answer = encode(&read_text(&text, lexing, with_rows))?;
        let goes_on = grown()? - at_start < MOST_KEPT;
        output.write_all(&[&[u8::from(goes_on)][..], &(answer.len() as u32).to_be_bytes(), &answer].concat())?;
        output.flush()?;
        if !goes_on {
            return Ok(());
        }
    }
}

/// Peak memory of the process, in KiB.
fn grown() -> io::Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.max_rss())
}

/// The next text, and how to read it. None at the end.
fn next(input: &mut impl Read) -> io::Result<Option<(Vec<u8>, Lexing, bool)>> {
    let mut head = [0; 9];
    match input.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let [a, b, c, d, conforming, encoding, server, release, with_rows] = head;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    let encodings = [Encoding::Utf8, Encoding::AsciiSafe, Encoding::AsciiUnsafe];
    let encoding = encodings.into_iter().find(|it| *it as u8 == encoding).ok_or(io::ErrorKind::InvalidData)?;
    let servers = [ServerEncoding::Utf8, ServerEncoding::SingleByte, ServerEncoding::Other];
    let server = servers.into_iter().find(|it| *it as u8 == server).ok_or(io::ErrorKind::InvalidData)?;
    if length > LONGEST_TREE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    input.read_exact(&mut text)?;
    let lexing = Lexing { standard_conforming_strings: conforming == 1, encoding, server, release };
    Ok(Some((text, lexing, with_rows == 1)))
}

/// Encodes a response.
///
/// # Errors
/// The response has no JSON form.
pub fn encode(read: &Result<Script, Unreadable>) -> io::Result<Vec<u8>> {
    serde_json::to_vec(read).map_err(io::Error::other)
}

/// Decodes a response; `None` if it is invalid.
pub fn decode(answer: &[u8]) -> Option<Result<Script, Unreadable>> {
    serde_json::from_slice(answer).ok()
}
