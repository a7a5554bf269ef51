//! The state of the session's transaction.

use super::judge::Past;
use crate::fence::session::Token;
use crate::wire::message::Status;
use std::collections::HashMap;

/// What is known of the transaction that is open, or of the session outside of one.
#[derive(Default)]
pub(super) struct Transaction {
    /// As the last ReadyForQuery said.
    pub(super) status: Status,
    /// Since then.
    pub(super) sent: Sent,
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
    /// An Execute was among them: its implicit transaction lasts up to a Sync.
    Execute,
}
