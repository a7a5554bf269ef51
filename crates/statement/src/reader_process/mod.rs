//! Parses a text in a separate process. If the parser exceeds its limits on time, memory or stack, only that process
//! ends.
//!
//! Owns the processes: they start on demand and end when they are idle. Must never guess without a response: the text
//! then counts as too complex.

mod reader;

pub use reader::{READER_COMMAND, read_for_another};

use crate::{Lexing, Script, Unreadable, encoded};
use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

/// The most readers at the same time, which callers must keep to; that many are kept for the next text.
pub const READERS: usize = 3;

/// Its processor time is limited; so long it may take on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum length of a response. [`crate::analyze`] bounds the content of a script below it.
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

/// Reads a text of up to `LONGEST_TREE` bytes in another process; None where that came to no end. Blocks.
pub fn read(text: &[u8], lexing: Lexing, with_rows: bool) -> Option<Result<Script, Unreadable>> {
    let request = request(text, lexing, with_rows);
    let idle = || IDLE.lock();
    let kept = idle().pop();
    // One that was kept may have ended meanwhile, for want of texts.
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

/// Without other processes much is refused: that is told, once.
fn start() -> io::Result<ReaderProcess> {
    static TOLD: Once = Once::new();
    ReaderProcess::start().inspect_err(|error| TOLD.call_once(|| tracing::warn!(%error, "reader_not_started")))
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
            // It gets no secrets, and no signal from a terminal.
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
        let answer = encoded::decode(&answer).ok_or(io::ErrorKind::InvalidData)?;
        Ok(((goes_on == 1).then_some(self), answer))
    }

    fn read_exact(&mut self, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => buffer = &mut buffer[length..],
                // A signal, such as the one that has policies loaded again.
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
