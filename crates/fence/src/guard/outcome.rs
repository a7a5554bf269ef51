//! The reports of `guard install` and `guard status`.

/// The outcome of `install`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Number of triggers that the policies require.
    pub wanted: usize,
    /// Number of these triggers that exist as required.
    pub there: usize,
    /// Number of relations that require triggers.
    pub tables: usize,
    /// Number of changes. Each trigger statement counts as one; so do the functions, the leases and the event triggers.
    /// 0 if the guard was complete.
    pub changes: usize,
    /// The tables from which the guard was removed, because the policies no longer fence them.
    pub released: Vec<String>,
    /// Tables that stay unguarded, and why.
    pub warnings: Vec<String>,
    /// Statements that other roles still have to run.
    pub to_run: Vec<RemainingStatements>,
}

/// Statements that another role still has to run in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingStatements {
    /// The role that may run them.
    pub by: String,
    /// The statements of the transaction.
    pub statements: Vec<String>,
}

/// State of a part of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// As the policies require.
    Ok,
    /// Missing.
    Missing,
    /// Exists, but differs or is in none of the policies.
    Changed,
    /// Exists, but does not always fire.
    Disabled,
    /// Missing, but not required: event triggers that no superuser has created yet.
    NotMade,
    /// A subscription whose rows the guard rejects.
    Rejected,
}

impl GuardState {
    /// The word in `fencegate guard status`.
    pub fn name(self) -> &'static str {
        match self {
            GuardState::Ok => "ok",
            GuardState::Missing => "missing",
            GuardState::Changed => "changed",
            GuardState::Disabled => "disabled",
            GuardState::NotMade => "none",
            GuardState::Rejected => "rejected",
        }
    }

    /// Returns true if the state requires no action.
    pub fn is_well(self) -> bool {
        matches!(self, GuardState::Ok | GuardState::NotMade)
    }
}

/// A line of `fencegate guard status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusLine {
    /// The relation, or the part of the guard that belongs to none.
    pub table: String,
    /// The resource's name; empty if the part belongs to none.
    pub resource: String,
    /// The state of its worst part.
    pub state: GuardState,
    /// The difference.
    pub difference: String,
}

/// Differences between the guard and the policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardStatus {
    /// A line for each relation and resource, then those of functions, event triggers and subscriptions.
    pub lines: Vec<StatusLine>,
    /// Tables that cannot be guarded, and why.
    pub warnings: Vec<String>,
}
