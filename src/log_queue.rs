//! The log's queue to standard error: bounded, with a thread that writes the lines.
//!
//! Owns the count of dropped lines. Must never make a caller wait for the reader of standard error, which may have
//! stopped reading.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Bounds of the queue. A line that does not fit is dropped.
const MOST_LINES: usize = 10_000;
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// Minimum time between reports of dropped lines while the queue is never empty.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);
/// At exit, the process waits for the queue as long as a line is written within this time.
const LAST_LINES: Duration = Duration::from_secs(5);

/// Lines of this process that were dropped, or could not be written.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Number of lines that will never reach standard error.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// A queue and its thread. Clones share both.
#[derive(Clone)]
pub(crate) struct LogQueue(Arc<QueueState>);

#[derive(Default)]
struct QueueState {
    state: Mutex<State>,
    /// Signaled when a line is added.
    filled: Condvar,
    /// Signaled when a line has been written.
    written: Condvar,
    writer: OnceLock<ThreadId>,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Total size of these lines and the one being written.
    bytes: usize,
    /// True while the thread is writing a line.
    is_writing: bool,
    /// Number of lines that the thread has finished.
    finished: u64,
    /// Lines dropped since the last report.
    dropped: u64,
}

impl LogQueue {
    /// Starts a queue and a thread that writes it to `output`. The thread calls `report` with the number of dropped
    /// lines once writing works again; lines that it logs there are never dropped.
    ///
    /// # Errors
    /// The system cannot start the thread.
    pub(crate) fn start(mut output: impl Output, report: fn(u64)) -> io::Result<Self> {
        let shared = Arc::new(QueueState::default());
        let its = shared.clone();
        thread::Builder::new().name("log".into()).spawn(move || its.write_all(&mut output, report))?;
        Ok(LogQueue(shared))
    }

    /// Waits until all lines have been written, unless writing makes no progress.
    pub(crate) fn flush(&self) {
        let mut state = self.0.state.lock();
        while state.is_writing || !state.lines.is_empty() {
            let finished = state.finished;
            let waited = self.0.written.wait_for(&mut state, LAST_LINES);
            if waited.timed_out() && state.finished == finished {
                return;
            }
        }
    }
}

/// Flushes the queue when dropped, including during a panic.
#[must_use = "the last lines of the process are lost unless this is kept until its end"]
pub(crate) struct FlushOnDrop(pub(crate) LogQueue);

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// Each call writes one line, as the log's formatter does.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl QueueState {
    fn push(&self, line: &[u8]) {
        let is_report = self.writer.get() == Some(&thread::current().id());
        let mut state = self.state.lock();
        if !is_report && (state.lines.len() >= MOST_LINES || state.bytes + line.len() > MOST_BYTES) {
            return state.drop_line();
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_owned());
        self.filled.notify_one();
    }

    fn write_all(&self, output: &mut impl Output, report: fn(u64)) {
        self.writer.get_or_init(|| thread::current().id());
        let mut reported: Option<Instant> = None;
        let mut state = self.state.lock();
        loop {
            let Some(line) = state.lines.pop_front() else {
                self.filled.wait(&mut state);
                continue;
            };
            state.is_writing = true;
            let written = MutexGuard::unlocked(&mut state, || output.write_line(&line));
            state.bytes -= line.len();
            if written.is_err() {
                state.drop_line();
            } else if state.dropped > 0
                && (state.lines.is_empty() || reported.is_none_or(|last| last.elapsed() >= BETWEEN_REPORTS))
            {
                reported = Some(Instant::now());
                let dropped = std::mem::take(&mut state.dropped);
                MutexGuard::unlocked(&mut state, || report(dropped));
            }
            state.is_writing = false;
            state.finished += 1;
            self.written.notify_all();
        }
    }
}

impl State {
    fn drop_line(&mut self) {
        self.dropped += 1;
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Destination of log lines.
pub(crate) trait Output: Send + 'static {
    /// Returns when the whole line has been written, without a time limit.
    fn write_line(&mut self, line: &[u8]) -> io::Result<()>;
}

/// A file, pipe or terminal.
pub(crate) struct LogFile {
    file: File,
    /// True if the last line was written in part, because the file system is full.
    is_within_line: bool,
}

impl From<File> for LogFile {
    fn from(file: File) -> Self {
        LogFile { file, is_within_line: false }
    }
}

impl Output for LogFile {
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_within_line {
            self.write(b"\n")?;
        }
        self.write(line)
    }
}

impl LogFile {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.is_within_line = bytes[length - 1] != b'\n';
                    bytes = &bytes[length..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A program that shares the open file, such as the command of `lead`, has made it non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Writes one line for each permit.
    struct Reader(Mutex<Receiver<()>>, Sender<String>);

    impl Output for Reader {
        fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
            self.0.lock().recv().map_err(io::Error::other)?;
            self.1.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)
        }
    }

    fn start(report: fn(u64)) -> (LogQueue, Sender<()>, Receiver<String>) {
        let ((permit, permits), (line, lines)) = (channel(), channel());
        (LogQueue::start(Reader(Mutex::new(permits), line), report).unwrap(), permit, lines)
    }

    fn log(queue: &LogQueue, line: &str) {
        queue.clone().write_all(line.as_bytes()).unwrap();
    }

    fn dropped(queue: &LogQueue) -> u64 {
        queue.0.state.lock().dropped
    }

    #[test]
    fn lines_beyond_the_bound_are_dropped_and_counted() {
        let (queue, permit, lines) = start(|_| {});
        // Wait until one line is being written, so that the queue has room for exactly this many.
        log(&queue, "0");
        while !queue.0.state.lock().is_writing {
            thread::yield_now();
        }
        (0..MOST_LINES + 3).for_each(|number| log(&queue, &number.to_string()));
        assert_eq!(dropped(&queue), 3);
        assert!(dropped_lines() >= 3);
        (0..=MOST_LINES).for_each(|_| permit.send(()).unwrap());
        queue.flush();
        assert_eq!(lines.try_iter().count(), MOST_LINES + 1);
        assert_eq!(dropped(&queue), 0, "they have been reported");
    }

    #[test]
    fn bytes_beyond_the_bound_are_dropped() {
        let (queue, permit, lines) = start(|_| {});
        let line = "x".repeat(MOST_BYTES / 4);
        (0..6).for_each(|_| log(&queue, &line));
        assert_eq!(dropped(&queue), 2);
        (0..4).for_each(|_| permit.send(()).unwrap());
        queue.flush();
        assert_eq!(lines.try_iter().count(), 4);
        assert_eq!(queue.0.state.lock().bytes, 0);
    }

    #[test]
    fn dropped_lines_are_reported_once_writing_works_again() {
        static REPORTED: AtomicU64 = AtomicU64::new(0);
        let (queue, permit, _lines) = start(|dropped| _ = REPORTED.fetch_add(dropped, Ordering::SeqCst));
        let line = "x".repeat(MOST_BYTES);
        (0..5).for_each(|_| log(&queue, &line));
        assert_eq!((dropped(&queue), REPORTED.load(Ordering::SeqCst)), (4, 0));
        permit.send(()).unwrap();
        queue.flush();
        assert_eq!((dropped(&queue), REPORTED.load(Ordering::SeqCst)), (0, 4));
    }

    #[test]
    fn a_panic_loses_no_line() {
        let (queue, permit, lines) = start(|_| {});
        let panicked = thread::spawn(move || {
            let _flush = FlushOnDrop(queue.clone());
            log(&queue, "last");
            std::panic::resume_unwind(Box::new(()));
        });
        permit.send(()).unwrap();
        assert!(panicked.join().is_err());
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["last"]);
    }

    #[test]
    fn a_line_that_cannot_be_written_counts_as_dropped() {
        let (queue, permit, lines) = start(|_| {});
        drop((permit, lines));
        log(&queue, "nobody reads this");
        queue.flush();
        assert_eq!(dropped(&queue), 1);
    }

    #[test]
    fn a_descriptor_that_was_made_non_blocking_receives_everything() {
        let (output, mut reader) = UnixStream::pair().unwrap();
        output.set_nonblocking(true).unwrap();
        let queue = LogQueue::start(LogFile::from(File::from(std::os::fd::OwnedFd::from(output))), |_| {}).unwrap();
        let line = "x".repeat(MOST_BYTES / 2);
        log(&queue, &line);
        let mut received = vec![0; line.len()];
        reader.read_exact(&mut received).unwrap();
        queue.flush();
        assert_eq!(dropped(&queue), 0);
    }
}
