//! The transaction that is open at the server, or the session outside a transaction.
//!
//! Owns its status, start, writes with their tokens, and definitions. Must never forget a write while the server may
//! still commit it.

use super::definitions::Definitions;
use super::host::Host;
use super::judge::need::{Need, ObservedWrites};
use fencegate_fence::session::Token;
use fencegate_wire::message::Status;
use std::collections::HashMap;
use std::time::Instant;

/// The state of a session's transaction.
#[derive(Default)]
pub(super) struct Transaction {
    /// From the last ReadyForQuery.
    status: Status,
    /// A moment not later than the transaction's start.
    began: Option<Instant>,
    /// A statement that may have committed has completed since the last ReadyForQuery.
    may_have_committed: bool,
    /// The transaction has changed the catalog.
    catalog_changed: bool,
    /// The tokens under which it has written, by resource.
    written: HashMap<String, Token>,
    /// Writes past fences that only observe.
    observed: ObservedWrites,
    definitions: Definitions,
}

impl Transaction {
    /// Status from the last ReadyForQuery.
    pub(super) fn status(&self) -> Status {
        self.status
    }

    /// A moment not later than the transaction's start.
    pub(super) fn began(&self) -> Option<Instant> {
        self.began
    }

    /// The first message since the last ReadyForQuery is forwarded.
    pub(super) fn begin_forwarding(&mut self, now: Instant) {
        if self.status == Status::Idle {
            self.began = Some(now);
        }
    }

    /// Returns true if a statement that may have committed has completed since the last ReadyForQuery.
    pub(super) fn may_have_committed(&self) -> bool {
        self.may_have_committed
    }

    /// A statement has completed.
    pub(super) fn note_completed(&mut self, may_commit: bool, changes_catalog: bool) {
        self.may_have_committed |= may_commit;
        self.catalog_changed |= changes_catalog;
    }

    /// A statement has ended the transaction. Another one may have begun since that moment, by the same statement or
    /// string.
    pub(super) fn restart(&mut self, since: Option<Instant>) {
        self.began = since;
    }

    /// ReadyForQuery.
    pub(super) fn ready(&mut self, status: Status, now: Instant) {
        self.status = status;
        self.may_have_committed = false;
        if status == Status::Idle {
            self.began = Some(now);
        }
    }

    /// Returns true if the transaction has changed the catalog.
    pub(super) fn has_changed_catalog(&self) -> bool {
        self.catalog_changed
    }

    /// The tokens under which the transaction has written, by resource.
    pub(super) fn written(&self) -> &HashMap<String, Token> {
        &self.written
    }

    /// Writes past fences that only observe.
    pub(super) fn observed(&self) -> &ObservedWrites {
        &self.observed
    }

    /// Admitted writes are forwarded.
    pub(super) fn note_written(&mut self, needs: Vec<Need>) {
        self.written.extend(needs.into_iter().map(|need| (need.resource.name.clone(), need.token)));
    }

    /// A write passes a fence that only observes.
    pub(super) fn note_observed(&mut self, need: &Need) {
        self.observed.note(&need.resource, need.token);
    }

    /// The transaction has ended, and no policy concerns a message under way.
    pub(super) fn forget_written(&mut self) {
        self.written.clear();
        self.observed.written.clear();
    }

    /// Definitions of the session that the server may still commit.
    pub(super) fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    pub(super) fn definitions_mut(&mut self) -> &mut Definitions {
        &mut self.definitions
    }

    /// Returns true if the transaction has changed the catalog in a way that may concern fenced tables.
    pub(super) fn changes_fenced_catalog(&self) -> bool {
        self.catalog_changed && self.definitions.concern_fences()
    }

    /// Returns true if the server may still commit definitions of the session.
    pub(super) fn may_define(&self) -> bool {
        self.catalog_changed || self.definitions.are_under_way()
    }

    /// The server has ended the transaction: its definitions are in the catalog, or never will be. `may_have_more`: the
    /// server is gone, and pending definitions may be in the catalog, too. `is_last`: nothing else is under way.
    pub(super) fn end_definitions(&mut self, host: &impl Host, may_have_more: bool, is_last: bool) {
        let has_changed = std::mem::take(&mut self.catalog_changed);
        if may_have_more || has_changed && !self.definitions.pass_as_harmless(host) {
            host.catalog_changed();
        }
        if is_last {
            self.definitions.withdraw(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::host;
    use fencegate_policy::Resource;
    use std::sync::Arc;
    use std::time::Duration;

    fn need(resource: &Arc<Resource>, token: Token) -> Need {
        let (statement, resource) = (Arc::default(), resource.clone());
        Need { resource, token, may_raise: true, statement, role_changes: false, presumed: false }
    }

    #[test]
    fn a_transaction_begins_with_its_first_message() {
        let now = Instant::now();
        let [second, third] = [1, 2].map(|seconds| now + Duration::from_secs(seconds));
        let mut transaction = Transaction::default();
        transaction.begin_forwarding(now);
        assert_eq!(transaction.began(), Some(now));
        transaction.ready(Status::Transaction, second);
        transaction.begin_forwarding(second);
        assert_eq!(transaction.began(), Some(now), "the transaction is still open");
        transaction.ready(Status::Idle, third);
        assert_eq!(transaction.began(), Some(third));
    }

    #[test]
    fn writes_count_until_they_are_forgotten() {
        let resource = host().policies().resources[0].clone();
        let mut transaction = Transaction::default();
        transaction.note_written(vec![need(&resource, 47)]);
        transaction.note_observed(&need(&resource, 46));
        transaction.ready(Status::Idle, Instant::now());
        assert_eq!(transaction.written().get("scheduler"), Some(&47));
        assert_eq!(transaction.observed().written.get("scheduler"), Some(&46));
        transaction.forget_written();
        assert!(transaction.written().is_empty() && transaction.observed().written.is_empty());
    }

    #[test]
    fn a_transaction_may_have_committed_until_the_server_is_ready() {
        let mut transaction = Transaction::default();
        transaction.note_completed(false, true);
        assert!(!transaction.may_have_committed() && transaction.has_changed_catalog());
        transaction.note_completed(true, false);
        assert!(transaction.may_have_committed() && transaction.has_changed_catalog());
        transaction.ready(Status::Transaction, Instant::now());
        assert!(!transaction.may_have_committed() && transaction.may_define());
    }
}
