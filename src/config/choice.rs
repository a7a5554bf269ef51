//! Settings with one of a few words as their value.

use fencegate_postgres::SslMode;
use thiserror::Error;
use tracing::Level;

/// The text is not one of the words that a setting accepts.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not one of {}", words.join(", "))]
pub struct ChoiceError {
    text: String,
    words: Vec<&'static str>,
}

/// The value that belongs to the text.
pub(super) fn choice<T: Copy>(text: &str, choices: &[(&'static str, T)]) -> Result<T, ChoiceError> {
    let found = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    let words = || choices.iter().map(|(word, _)| *word).collect();
    found.ok_or_else(|| ChoiceError { text: text.to_owned(), words: words() })
}

/// Reads an `sslmode`.
pub(super) fn ssl_mode(text: &str) -> Result<SslMode, ChoiceError> {
    let modes = [
        ("disable", SslMode::Disable),
        ("allow", SslMode::Allow),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ];
    choice(text, &modes)
}

/// Reads a log level; None: not logged.
pub(super) fn level(text: &str) -> Result<Option<Level>, ChoiceError> {
    choice(text, &[("off", None), ("debug", Some(Level::DEBUG)), ("info", Some(Level::INFO))])
}
