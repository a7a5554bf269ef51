//! The reports of `guard install` and `guard status`.

/// The outcome of `install`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// How many triggers the policies ask for.
    pub wanted: usize,
    /// How many of them are there now, as they should be.
    pub there: usize,
    /// On how many relations they are wanted.
    pub tables: usize,
    /// How many changes were made: triggers by statements, the functions, the leases and the event triggers as one each. None where
    /// all was there.
    pub changes: usize,
    /// The tables from which the guard was removed, because the policies no longer fence them.
    pub released: Vec<String>,
    /// Tables that stay unguarded, and why.
    pub warnings: Vec<String>,
    /// Statements that other roles still have to run.
    pub to_run: Vec<RemainingStatements>,
}

/// Statements that another role has still to run, together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingStatements {
    /// The role that may.
    pub by: String,
    /// They are one transaction.
    pub statements: Vec<String>,
}

/// How a part of the guard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// As the policies say.
    Ok,
    /// Not there.
    Missing,
    /// There, and different; or there, and in no policy.
    Changed,
    /// There, and does not fire always.
    Disabled,
    /// Not there, and it need not be: event triggers that no superuser has made yet.
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

    /// Nothing is to be done about it.
    pub fn is_well(self) -> bool {
        matches!(self, GuardState::Ok | GuardState::NotMade)
    }
}

/// A line of `fencegate guard status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusLine {
    /// The relation, or the part of the guard that is on none.
    pub table: String,
    /// The resource's name; empty where it is of none.
    pub resource: String,
    /// The worst of its parts.
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
