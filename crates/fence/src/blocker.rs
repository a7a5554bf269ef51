//! The processes that a refused write waits for, as messages name them.

/// A reason with the descriptions of its blockers.
pub(super) fn named(how: &str, by: &[Blocker]) -> String {
    let who: Vec<_> = by.iter().map(|blocker| blocker.who.as_str()).collect();
    format!("{how}: {}", who.join("; "))
}

/// A blocking process or prepared transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its description, for messages.
    pub who: String,
    /// Its query. Empty for a prepared transaction.
    pub query: String,
}
