//! The state of the session's transaction.

use super::judge::Past;
use crate::fence::session::Token;
use crate::wire::message::Status;
use std::collections::HashMap;
use std::time::Instant;

/// What is known of the transaction that is open, or of the session outside of one.
#[derive(Default)]
pub(super) struct Transaction {
    /// As the last ReadyForQuery said.
    pub(super) status: Status,
    /// Since then.
    pub(super) sent: Sent,
    /// When the first of that was sent, or what was sent last.
    pub(super) sent_since: Option<Instant>,
    /// Not later than it began.
    pub(super) began: Option<Instant>,
    /// Since the last Sync.
    pub(super) pipeline: Pipeline,
    /// Since then something has completed that may have committed what was written.
    pub(super) may_have_committed: bool,
    /// It changed the catalogue.
    pub(super) catalogue_changed: bool,
    /// The tokens under which it has written, by resource.
    pub(super) written: HashMap<String, Token>,
    /// The same past fences that only observe.
    pub(super) past: Past,
}

/// What was sent to the server since the last ReadyForQuery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sent {
    #[default]
    Nothing,
    Messages,
}

/// The part of a pipeline that a Sync ends: its implicit transaction, and the portals in that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pipeline {
    /// No portal: what was parsed stays.
    #[default]
    Empty,
    /// Portals, of which none was executed.
    Bound,
    /// An Execute: the server runs no statement behind it that has to be alone in its transaction.
    Executed,
}
