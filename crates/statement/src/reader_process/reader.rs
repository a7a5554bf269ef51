//! The process itself: reads texts from standard input, and writes their analyses to standard output.
//!
//! Must never exceed its limits: the kernel ends it then.

use crate::{Encoding, LONGEST_TREE, Lexing, ServerEncoding, encoded, read_text, stack};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

/// The subcommand, not for people, as which this binary reads texts for another process.
pub const READER_COMMAND: &str = "read-texts";

/// Memory limit in bytes, without the stack for deep trees.
const MEMORY: u64 = 64 << 20;

/// The stack of the main thread is not counted there.
const STACK: u64 = 8 << 20;

/// The limit of processor time for one text.
const PROCESSOR_TIME: Duration = Duration::from_secs(1);

/// Idle time in milliseconds after which the process ends.
const IDLE_MS: u16 = 10_000;

/// It ends after a text for which it has grown by more than this, in KiB, so that the memory is given back.
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
    let memory = MEMORY + stack::SIZE as u64;
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
        let answer = encoded::encode(&read_text(&text, lexing, with_rows))?;
        let goes_on = grown()? - at_start < MOST_KEPT;
        output.write_all(&[&[u8::from(goes_on)][..], &(answer.len() as u32).to_be_bytes(), &answer].concat())?;
        output.flush()?;
        if !goes_on {
            return Ok(());
        }
    }
}

/// The most that it ever held, in KiB.
fn grown() -> io::Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.max_rss())
}

/// The next text, and how it is to be read; None at the end.
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
