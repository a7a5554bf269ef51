//! The log: to standard error, for people (`name=value`, with text in double quotes) or for machines (JSON: an object with
//! `timestamp`, `level`, `event`, `target`, then the fields of the event).
//!
//! Owns the format of a line. Must never
//! - fail or block its caller: standard error may be closed, or a pipe that is not read;
//! - write invalid JSON, split a line, or let a value look like another field.

use crate::log_queue::{FlushOnDrop, LogFile, LogQueue};
use clap::ValueEnum;
use serde::Serialize;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::env;
use std::fmt::{self, Debug, Display, Write};
use std::fs::File;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::panic;
use std::sync::OnceLock;
use std::thread;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Log format.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Format {
    /// Human-readable lines
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Waits until all lines are written or can no longer be written.
pub(super) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// Starts the process's log at the level in RUST_LOG, or `info`. Later calls do nothing. The returned guard writes the
/// last lines when dropped; None if there is no queue, because callers then write directly.
pub(super) fn start(format: Format) -> Option<FlushOnDrop> {
    let levels = levels(&env::var("RUST_LOG").unwrap_or_default());
    let report = |dropped| tracing::warn!(dropped, "log_lines_dropped");
    let queue = standard_error().and_then(|output| LogQueue::start(output, report)).ok();
    let queue = queue.map(|queue| QUEUE.get_or_init(|| queue).clone());
    let writer = match queue.clone() {
        Some(queue) => BoxMakeWriter::new(move || queue.clone()),
        None => BoxMakeWriter::new(io::stderr),
    };
    // Reporting an error of standard error there would panic if that fails too.
    let log = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(writer).log_internal_errors(false);
    // The only possible error is that a log has already been started.
    let _ = match format {
        Format::Text => {
            log.with_ansi(io::stderr().is_terminal()).fmt_fields(TextFields).finish().with(levels).try_init()
        }
        Format::Json => log.event_format(JsonLine).finish().with(levels).try_init(),
    };
    panic::set_hook(Box::new(log_panic));
    queue.map(FlushOnDrop)
}

/// Parses RUST_LOG: a level, or levels by target (`fencegate=debug,hyper=warn`). Returns `info` if it is unset or
/// invalid. The program has no spans, so it needs no filter of spans.
fn levels(given: &str) -> Targets {
    let usual = Targets::new().with_default(Level::INFO);
    match given.replace(' ', "").trim_matches(',') {
        "" => usual,
        given => given.parse().unwrap_or_else(|error| {
            let _ = writeln!(io::stderr(), "fencegate: RUST_LOG is ignored: {error}");
            usual
        }),
    }
}

/// Replaces the standard hook, which writes to standard error directly and could block the panicking thread.
fn log_panic(panic: &panic::PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(thread = thread::current().name(), error = %panic, backtrace, "panicked");
}

/// Duplicates standard error. While the parser reads a text, it redirects the usual descriptor into a pipe of its own;
/// lines written there would be lost.
fn standard_error() -> io::Result<LogFile> {
    io::stderr().as_fd().try_clone_to_owned().map(|it| File::from(it).into())
}

/// Only events of this crate have names.
const OURS: &str = env!("CARGO_CRATE_NAME");

/// Omits spans: this program has none.
pub(super) struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let metadata = event.metadata();
        let (level, target) = (json(&metadata.level().to_string()), json(metadata.target()));
        let is_ours = is_ours(metadata.target());
        let key = if is_ours && is_name(&fields.message) { "event" } else { "message" };
        let (timestamp, message) = (json(&timestamp), json(&fields.message));
        write!(writer, "{{\"timestamp\":{timestamp},\"level\":{level},\"{key}\":{message},\"target\":{target}")?;
        writeln!(writer, "{}}}", fields.rest)
    }
}

/// Returns true if the target is a module of the program or of its crates, which are called `fencegate_…`.
fn is_ours(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or_default();
    name.strip_prefix(OURS).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// Distinguishes event names from sentences.
fn is_name(message: &str) -> bool {
    message.starts_with(|c: char| c.is_ascii_lowercase()) && message.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// Fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    /// The other fields, each as `,"name":value`.
    rest: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Serialize) {
        let (name, value) = (json(field.name()), json(&value));
        // Writing to a String cannot fail.
        let _ = write!(self.rest, ",{name}:{value}");
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Serializing a text or a number cannot fail.
fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

pub(super) struct TextFields;

impl<'writer> FormatFields<'writer> for TextFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = Line { writer, is_first: true, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'writer> {
    writer: Writer<'writer>,
    is_first: bool,
    result: fmt::Result,
}

impl Line<'_> {
    fn separate(&mut self) -> fmt::Result {
        if std::mem::take(&mut self.is_first) { Ok(()) } else { self.writer.write_char(' ') }
    }

    fn add(&mut self, field: &Field, value: impl Display) {
        let name = field.name();
        let add = |line: &mut Self| {
            line.separate()?;
            // Italic, and dim.
            match line.writer.has_ansi_escapes() {
                true => write!(line.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
                false => write!(line.writer, "{name}={value}"),
            }
        };
        self.result = self.result.and_then(|()| add(self));
    }
}

impl Visit for Line<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != "message" {
            return self.add(field, format_args!("{value:?}"));
        }
        let add = |line: &mut Self| {
            line.separate()?;
            value.chars().try_for_each(|character| match character.is_control() {
                true => write!(line.writer, "{}", character.escape_default()),
                false => line.writer.write_char(character),
            })
        };
        self.result = self.result.and_then(|()| add(self));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    #[test]
    fn levels_are_set_by_target() {
        for (given, info, debug) in [
            ("", true, false),
            ("warn", false, false),
            ("debug", true, true),
            ("fencegate=debug, hyper=warn,", true, true),
            ("hyper=debug", false, false),
            ("fencegate=many", true, false),
        ] {
            let enabled = [Level::INFO, Level::DEBUG].map(|level| levels(given).would_enable("fencegate::net", &level));
            assert_eq!(enabled, [info, debug], "{given}");
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(is_colored: bool, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().fmt_fields(TextFields).without_time().with_target(false);
        let subscriber = subscriber.with_ansi(is_colored).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, log);
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn text_is_quoted_and_numbers_are_not() {
        let log = || {
            let (error, election) = (io::Error::other("no \"such\"\nfile x=1"), "/a");
            tracing::info!(token = 5, %election, %error, forced = true, nearest = None::<&str>, "leader_observed");
        };
        let expected = r#" INFO leader_observed token=5 election="/a" error="no \"such\"\nfile x=1" forced=true"#;
        assert_eq!(logged(false, log), format!("{expected}\n"));
        assert!(logged(true, log).contains("\x1b[3mtoken\x1b[0m\x1b[2m=\x1b[0m5 "), "{}", logged(true, log));
    }

    #[test]
    fn a_message_stays_on_one_line() {
        assert_eq!(logged(false, || tracing::info!("one\n\x1b[31mtwo{}", 'é')), " INFO one\\n\\u{1b}[31mtwoé\n");
    }
}
