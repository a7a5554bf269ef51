//! Lines of a log in JSON.

use crate::support::fenced::Fenced;
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Options, ProxyOptions};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Fields of a line, with numbers as text.
pub type Line = BTreeMap<String, String>;

/// Parses the lines as YAML, because JSON is a subset of YAML.
pub fn lines(log: &str) -> Vec<Line> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Bool(bool),
        Integer(i64),
        Number(f64),
        Text(String),
    }
    let line = |line: &str| {
        let values: BTreeMap<String, Value> =
            serde_saphyr::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}"));
        let text = |(name, value)| match value {
            Value::Bool(value) => (name, value.to_string()),
            Value::Integer(value) => (name, value.to_string()),
            Value::Number(value) => (name, value.to_string()),
            Value::Text(value) => (name, value),
        };
        values.into_iter().map(text).collect()
    };
    // The last line may be incomplete.
    log.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(line).collect()
}

/// All lines of the event.
pub fn events(log: &str, event: &str) -> Vec<Line> {
    lines(log).into_iter().filter(|line| line.get("event").is_some_and(|name| name == event)).collect()
}

/// The first line of the event. Waits for it.
pub fn event(log: impl Fn() -> String, event: &str) -> Line {
    wait_for(format!("the log has {event}"), DEADLINE, || events(&log(), event).into_iter().next())
}

/// Asserts the values of some fields of a line.
#[track_caller]
pub fn assert_fields(line: &Line, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(line.get(*name).map(String::as_str), Some(*value), "{name} in {line:?}");
    }
}

/// A fenced server whose proxy logs in JSON.
pub fn start(schema: &str, policies: &str, arguments: &[&str]) -> Fenced {
    let proxy = ProxyOptions::default().policies(policies).arguments(&["--log-format", "json"]).arguments(arguments);
    Fenced::start_with(Options::default(), schema, &proxy)
}

pub const SCHEMA: &str = "CREATE TABLE jobs (n int PRIMARY KEY, note text); CREATE TABLE watched (n int)";
pub const POLICIES: &str = "version: 1
resources:
  - {name: jobs, tables: [public.jobs]}
  - {name: watched, mode: observe, tables: [public.watched]}
";
