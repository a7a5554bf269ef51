//! YAML text as a tree in which every node has its position.
//!
//! Owns the limits for hostile files, and the checks that all readers of settings share. Must never stop at the first
//! fault: users want to see all faults at once, each with its position.

use crate::nearest::nearest;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{MergeKeyPolicy, MessageFormatter, Options, Spanned, UserMessageFormatter};
use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum size of a file, in bytes.
pub const LARGEST_FILE: u64 = 1 << 20;

/// Maximum number of nodes in a file. Aliases count each time they are used.
const MOST_NODES: usize = 100_000;

/// A position in a file. Line and column count from 1; columns are in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column.
    pub column: u64,
}

impl Position {
    /// The start of a file, for faults of the whole file.
    pub const START: Self = Self { line: 1, column: 1 };

    /// Position of the byte at `offset`, as far as `bytes` can be decoded.
    fn of_offset(bytes: &[u8], offset: usize) -> Self {
        // In YAML, CR ends a line as well.
        let before = String::from_utf8_lossy(&bytes[..offset]).replace("\r\n", "\n").replace('\r', "\n");
        let line = before.rsplit('\n').next().unwrap_or_default();
        Self { line: before.matches('\n').count() as u64 + 1, column: line.chars().count() as u64 + 1 }
    }
}

/// A fault and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Position of the fault.
    pub at: Position,
    /// One line: the change to make.
    pub message: String,
}

/// A fault in a file, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}:{column}: {message}", file.display())]
pub struct FileError {
    /// The file, or the directory if it cannot be read.
    pub file: PathBuf,
    /// From 1.
    pub line: u64,
    /// From 1, in characters.
    pub column: u64,
    /// One line: the change to make.
    pub message: String,
}

impl FileError {
    /// Escapes line breaks: `message` may quote several lines of the file, but an error has one line.
    pub fn new(file: &Path, at: Position, message: &str) -> Self {
        let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
        let message = message.chars().map(shown).collect();
        Self { file: file.to_owned(), line: at.line, column: at.column, message }
    }
}

/// A value and its start position.
#[derive(Debug)]
pub struct Node {
    /// Start position of the value.
    pub at: Position,
    /// The value.
    pub value: Value,
}

/// Content of a node.
#[derive(Debug)]
pub enum Value {
    /// Nothing, or `null`.
    Empty,
    /// A whole number.
    Integer(i64),
    /// A string.
    Text(String),
    /// A boolean or another number. No setting or policy has such a value.
    OtherScalar,
    /// A sequence.
    List(Vec<Node>),
    /// Pairs of key and value, in the order of the file.
    Mapping(Vec<(Node, Node)>),
}

/// Reads one document.
pub fn parse(bytes: &[u8]) -> Result<Node, Fault> {
    if bytes.len() as u64 > LARGEST_FILE {
        let message = format!("the file is larger than {LARGEST_FILE} bytes");
        return Err(Fault { at: Position::START, message });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| Fault {
        at: Position::of_offset(bytes, error.valid_up_to()),
        message: "the file is not UTF-8".to_owned(),
    })?;
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| Fault {
        at: error.location().map_or(Position::START, Position::from),
        message: UserMessageFormatter.format_message(&error).replace('\n', " "),
    })
}

fn options() -> Options {
    let mut options = Options::default();
    options.with_snippet = false;
    options.strict_booleans = true;
    options.merge_keys = MergeKeyPolicy::Error;
    options.alias_limits.max_total_replayed_events = MOST_NODES;
    if let Some(budget) = &mut options.budget {
        budget.max_nodes = MOST_NODES;
        budget.max_documents = 1;
    }
    options
}

impl From<serde_saphyr::Location> for Position {
    fn from(location: serde_saphyr::Location) -> Self {
        Self { line: location.line().max(1), column: location.column().max(1) }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { at: spanned.referenced.into(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Empty)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::OtherScalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::OtherScalar)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::OtherScalar, Value::Integer))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut mapping = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            mapping.push(entry);
        }
        Ok(Value::Mapping(mapping))
    }
}

/// Extracts values from a tree and collects faults.
#[derive(Debug, Default)]
pub struct NodeReader {
    /// The faults found so far.
    pub faults: Vec<Fault>,
}

/// A mapping with only known keys.
#[derive(Debug)]
pub struct Fields<'n>(Vec<(&'n str, &'n Node)>);

impl<'n> Fields<'n> {
    /// The value of a key, if present.
    pub fn find(&self, key: &str) -> Option<&'n Node> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, node)| *node)
    }
}

impl NodeReader {
    /// Adds a fault.
    pub fn fault(&mut self, at: Position, message: impl Into<String>) {
        self.faults.push(Fault { at, message: message.into() });
    }

    /// The entries of a mapping. Each key outside `known` is a fault at that key. `what` names the mapping in messages.
    pub fn fields<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> Option<Fields<'n>> {
        let Value::Mapping(entries) = &node.value else {
            self.fault(node.at, format!("{what} must be a mapping with the keys {}", known.join(", ")));
            return None;
        };
        let mut fields = Vec::new();
        for (key, value) in entries {
            match &key.value {
                Value::Text(name) if known.contains(&name.as_str()) => fields.push((name.as_str(), value)),
                Value::Text(name) => {
                    let meant = nearest(name, known.iter().copied());
                    let advice = match meant {
                        Some(meant) => format!(": did you mean `{meant}`?"),
                        None => format!("; known are {}", known.join(", ")),
                    };
                    self.fault(key.at, format!("unknown key `{name}` in {what}{advice}"));
                }
                _ => self.fault(key.at, format!("a key of {what} must be a word; known are {}", known.join(", "))),
            }
        }
        Some(Fields(fields))
    }

    /// A string.
    pub fn text<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n str> {
        let advice = match &node.value {
            Value::Text(text) => return Some(text),
            Value::Integer(_) | Value::OtherScalar => ": put it in quotes",
            Value::Empty | Value::List(_) | Value::Mapping(_) => "",
        };
        self.fault(node.at, format!("{what} must be text{advice}"));
        None
    }

    /// A sequence.
    pub fn list<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [Node]> {
        let Value::List(list) = &node.value else {
            self.fault(node.at, format!("{what} must be a list"));
            return None;
        };
        Some(list)
    }

    /// A mapping with any keys.
    pub fn mapping<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [(Node, Node)]> {
        let Value::Mapping(entries) = &node.value else {
            self.fault(node.at, format!("{what} must be a mapping"));
            return None;
        };
        Some(entries)
    }

    /// The value that belongs to the word in `choices`.
    pub fn choice<T: Copy>(&mut self, node: &Node, what: &str, choices: &[(&str, T)]) -> Option<T> {
        let found = match &node.value {
            Value::Text(text) => choices.iter().find(|(word, _)| word == text).map(|(_, value)| *value),
            _ => None,
        };
        if found.is_none() {
            let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
            self.fault(node.at, format!("{what} must be one of {}", words.join(", ")));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(bytes: &[u8]) -> Fault {
        parse(bytes).unwrap_err()
    }

    #[test]
    fn keys_and_values_have_positions() {
        let node = parse(b"# note\na: x\nb:\n  - 1\n  - {c: 'd'}\n").unwrap();
        let mut reader = NodeReader::default();
        let fields = reader.fields(&node, "the file", &["a"]).unwrap();
        assert_eq!(fields.find("a").unwrap().at, Position { line: 2, column: 4 });
        assert_eq!(reader.faults[0].at, Position { line: 3, column: 1 });
        let fields = reader.fields(&node, "the file", &["a", "b"]).unwrap();
        let list = reader.list(fields.find("b").unwrap(), "b").unwrap();
        assert_eq!(list[0].at, Position { line: 4, column: 5 });
        let Value::Mapping(entries) = &list[1].value else { panic!("{list:?}") };
        assert_eq!(entries[0].0.at, Position { line: 5, column: 6 });
        assert_eq!(entries[0].1.at, Position { line: 5, column: 9 });
    }

    #[test]
    fn text_that_is_not_utf8_is_rejected_at_its_first_invalid_byte() {
        let fault = fault("a: 1\nä: \u{e9}".as_bytes().iter().copied().chain([0xff]).collect::<Vec<_>>().as_slice());
        assert_eq!((fault.at.line, fault.at.column), (2, 5));
        assert_eq!(fault.message, "the file is not UTF-8");
    }

    #[test]
    fn a_file_that_is_too_large_is_rejected() {
        assert!(fault(&vec![b'#'; LARGEST_FILE as usize + 1]).message.contains("larger than 1048576 bytes"));
    }

    #[test]
    fn exponential_aliases_are_rejected() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let uses = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{uses}]\n"));
        }
        parse(bomb.as_bytes()).unwrap_err();
    }

    #[test]
    fn deep_nesting_is_rejected() {
        parse("[".repeat(10_000).as_bytes()).unwrap_err();
    }

    #[test]
    fn duplicate_keys_merge_keys_and_second_documents_are_rejected() {
        assert_eq!(fault(b"a: 1\na: 2\n").at, Position { line: 2, column: 1 });
        assert_eq!(fault(b"&k a: 1\n\"a\": 2\n").at, Position { line: 2, column: 1 });
        assert!(fault(b"&k a: 1\n*k : 2\n").message.contains("duplicate"));
        assert_eq!(fault(b"a: &a {b: 1}\nc:\n  <<: *a\n").at, Position { line: 3, column: 3 });
        assert_eq!(fault(b"a: 1\n---\nb: 2\n").at.line, 2);
        assert_eq!(fault(b"a: [1\nb: 2\n").at.line, 2);
    }
}
