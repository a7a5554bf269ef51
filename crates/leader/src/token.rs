//! The fencing token.
//!
//! Must never be made of a number that no coordinator has issued to a leader.

use std::fmt;

/// A fencing token. Every later leader of the election has a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(crate) i64);

impl Token {
    /// The number that `lease.fence` takes.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
