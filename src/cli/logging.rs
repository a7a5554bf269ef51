//! The log: to standard error, for people or for machines.
//!
//! Must never fail the caller: standard error may be closed. Nor, with [`Delivery::GoesOn`], block it: a pager that is not
//! scrolled does not read.

use super::json_line::JsonLine;
use clap::ValueEnum;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// How many lines wait for a reader; those that come after them are lost.
const WAITING_LINES: usize = 1000;
/// How long the end of the program waits for a reader of the last lines.
const LAST_LINES: Duration = Duration::from_millis(200);

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Format {
    /// A line for people
    #[default]
    Text,
    /// A JSON object in every line
    Json,
}

/// Whether callers wait for standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// A line is written before the caller goes on.
    Waits,
    /// The caller goes on at once; lines may be lost while the output is not read.
    GoesOn,
}

/// Starts the log of the process, of the level that RUST_LOG says, otherwise info. Later calls do nothing.
/// What is returned is to be finished at the end.
pub(super) fn start(format: Format, delivery: Delivery) -> Option<LogQueue> {
    let level = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    let queue = if delivery == Delivery::GoesOn { LogQueue::start() } else { None };
    let writer = match (queue.clone(), standard_error()) {
        (Some(queue), _) => BoxMakeWriter::new(move || queue.clone()),
        (None, Ok(file)) => BoxMakeWriter::new(Mutex::new(file)),
        (None, Err(_)) => BoxMakeWriter::new(io::stderr),
    };
    // An error of standard error would be reported there, with a panic where that fails too.
    let log = tracing_subscriber::fmt().with_env_filter(level).with_writer(writer).log_internal_errors(false);
    // The only error is that a log has been started before.
    let _ = match format {
        Format::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        Format::Json => log.event_format(JsonLine).try_init(),
    };
    queue
}

/// Standard error by a descriptor of its own: while it reads a text, the parser puts a pipe of its own in the usual place, and
/// what is written there meanwhile is lost.
fn standard_error() -> io::Result<File> {
    io::stderr().as_fd().try_clone_to_owned().map(File::from)
}

enum Message {
    Line(Vec<u8>),
    /// Closed when all before it has been written.
    Mark {
        _reached: Sender<()>,
    },
}

/// The lines on their way to standard error.
#[derive(Clone)]
pub(super) struct LogQueue(SyncSender<Message>);

impl LogQueue {
    /// None where there can be no thread for it.
    fn start() -> Option<Self> {
        let (lines, waiting) = sync_channel(WAITING_LINES);
        let write = move || write_all(&waiting);
        thread::Builder::new().name("log".into()).spawn(write).ok().map(|_| LogQueue(lines))
    }

    /// Returns when all lines have been written, or nobody reads them.
    pub(super) fn finish(&self) {
        let (reached, end) = channel();
        if self.0.try_send(Message::Mark { _reached: reached }).is_ok() {
            let _ = end.recv_timeout(LAST_LINES);
        }
    }
}

impl Write for LogQueue {
    /// One line, as the log gives it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.0.try_send(Message::Line(line.to_owned()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(lines: &Receiver<Message>) {
    for message in lines {
        if let Message::Line(line) = message {
            // There is nowhere else to say that it failed.
            let _ = io::stderr().write_all(&line);
        }
    }
}
