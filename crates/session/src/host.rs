//! The interface between a session and the proxy that hosts it. All calls return at once: work that takes time is a
//! [`Task`].

use super::judge::need::{Need, PassedWrite};
use super::parameter::ParameterValue;
use super::pending_definitions::PendingDefinitions;
pub use super::pending_definitions::{CatalogRequest, CatalogView, Changes};
use super::rejection::Rejection;
use super::task::{ParsePermit, Room, Task};
use fencegate_fence::Claim;
use fencegate_fence::session::{Epoch, SessionFence, Token};
use fencegate_policy::{PolicySet, Resource};
use fencegate_statement::{Analysis, Lexing, Statement};
use std::sync::Arc;

/// The proxy, as one of its sessions sees it.
pub trait Host: Send {
    /// The role that logged in.
    fn user(&self) -> &str;

    /// The admissions and the activity of the session's server process.
    fn fence(&self) -> &Arc<SessionFence>;

    /// Adopts policies that have come into force since the last call. Returns true if statements are judged from now on and
    /// were not before.
    fn adopt_policies(&mut self) -> bool;

    /// Returns true if statements have to be judged.
    fn is_fenced(&self) -> bool;

    /// The policies in force.
    fn policies(&self) -> &PolicySet;

    /// An epoch of the resource above this token, if one is known and counts without a query.
    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch>;

    /// Requests the deletion of the revoked admissions, so that the drain releases the server process.
    fn release(&self);

    /// The last reading. It is current if it covers `wanted`, or for None if it covers all changes seen so far.
    fn catalog(&self, wanted: Option<&CatalogRequest>) -> CatalogView;

    /// The changes of the catalog seen until now.
    fn changes(&self) -> Changes;

    /// True if reading the catalog may provide `wanted`: [`Task::CatchUp`].
    fn is_unread(&self, wanted: &CatalogRequest) -> bool;

    /// Forgets the catalog: until it is read, any relation may be fenced.
    fn forget_catalog(&self);

    /// The session has changed the catalog: all proxies forget it, and this proxy reads it soon.
    fn catalog_changed(&self);

    /// Records that the session has changed the catalog without concern to fenced tables, as of that count of doubts.
    /// Returns false, and records nothing, if the count is higher by now.
    fn note_harmless_change(&self, doubts: u64) -> bool;

    /// A database of that name may have been dropped or created.
    fn forget_database(&self, name: &str);

    /// The pending definitions of each other session of the database. Call this before [`Host::catalog`].
    fn definitions_of_others(&self) -> Vec<Arc<PendingDefinitions>>;

    /// Publishes this session's pending definitions to the other sessions.
    fn publish_definitions(&self, pending: &PendingDefinitions);

    /// Withdraws the pending definitions. They count until a reading covers all changes seen so far.
    fn withdraw_definitions(&self);

    /// Analyzes a text, with the rows that it writes if `with_rows` is set.
    ///
    /// # Errors
    /// The [`Task::ParsePermit`] to wait for, where parsing may take long and no permit is free.
    fn read(&self, text: &[u8], lexing: Lexing, with_rows: bool, permit: Option<ParsePermit>)
    -> Result<Analysis, Task>;

    /// Returns room for a message of `bytes` if it is available immediately. Otherwise use [`Task::Room`]. `there`: the number of
    /// bytes received so far.
    fn room(&self, bytes: usize, there: usize, behind: bool) -> Option<Room>;

    /// Runs work that would noticeably delay other sessions of the thread.
    fn without_delaying_others<R>(work: impl FnOnce() -> R) -> R;

    /// Counts a query or execution of the client.
    fn note_query(&self);

    /// The session presents these tokens from now on.
    fn note_presented(&self, value: &ParameterValue);

    /// The server has reported that it accepts no writes, or that its recovery has begun or ended.
    fn note_recovery(&self) {}

    /// The server reports this `application_name`.
    fn note_application_name(&self, name: &str);

    /// A write to the resource has been admitted.
    fn note_admitted(&mut self, resource: &Resource);

    /// A statement has been rejected.
    fn note_rejected(&self, rejection: &Rejection, statement: &Statement);

    /// A forwarded statement writes to resources whose fences only observe, or from which its role is exempt.
    fn note_passed(&self, passed: Vec<PassedWrite>);

    /// A write under this token has passed a fence that only observes. Determines whether enforcing would have rejected it.
    fn observe(&self, need: Need, claim: Claim);
}
