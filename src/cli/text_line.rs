//! The fields of a human-readable log line: `name=value`, with text in double quotes.
//!
//! Owns quoting. Must never let a value look like another field or split the line.

use std::fmt::{self, Debug, Display};
use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

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
