//! JSON log lines: an object with `timestamp`, `level`, `event`, `target`, then the fields of the event.
//!
//! Owns the format of a line. Must never write invalid JSON or split a line.

use serde::Serialize;
use std::fmt::{self, Debug, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

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
