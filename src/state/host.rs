//! The proxy, from the perspective of one session.

use super::audit::counter;
use super::context::Context;
use super::sessions::SessionRecord;
use fencegate_fence::Claim;
use fencegate_fence::session::{Epoch, SessionFence, Token};
use fencegate_policy::{PolicySet, Resource};
use fencegate_session::Host;
use fencegate_session::Task;
use fencegate_session::host::{CatalogRequest, CatalogView, Changes};
use fencegate_session::judge::{Need, PassedWrite};
use fencegate_session::parameter::ParameterValue;
use fencegate_session::pending_definitions::PendingDefinitions;
use fencegate_session::rejection::Rejection;
use fencegate_session::task::{ParsePermit, Room};
use fencegate_statement::reader_process;
use fencegate_statement::{Analysis, Lexing, Statement};
use std::sync::Arc;

/// A session's view of the shared state, and its record.
pub struct SessionHost {
    /// Database, policies and limits of the session.
    pub context: Context,
    /// The session, as the console shows it.
    pub record: Arc<SessionRecord>,
}

impl Host for SessionHost {
    fn user(&self) -> &str {
        &self.record.user
    }

    fn fence(&self) -> &Arc<SessionFence> {
        &self.record.fence
    }

    fn take_up_policies(&mut self) -> bool {
        let Context { receiver, policies, admitted, fenced, has_database, shared_database, .. } = &mut self.context;
        if !receiver.has_changed().unwrap_or(false) {
            return false;
        }
        *policies = receiver.borrow_and_update().clone();
        admitted.forget();
        let was_fenced = *fenced;
        *fenced = *has_database && policies.applies_to(shared_database.fence.name());
        *fenced && !was_fenced
    }

    fn is_fenced(&self) -> bool {
        self.context.is_fenced()
    }

    fn policies(&self) -> &PolicySet {
        self.context.policies()
    }

    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        self.context.database().known_stale(resource, token)
    }

    fn release(&self) {
        let (database, fence) = (self.context.database().clone(), self.record.fence.clone());
        self.context.shared.background.spawn(async move { database.release(&fence).await });
    }

    fn catalog(&self, wanted: Option<&CatalogRequest>) -> CatalogView {
        self.context.shared_database().catalog(wanted)
    }

    fn changes(&self) -> Changes {
        self.context.shared_database().changes()
    }

    fn is_unread(&self, wanted: &CatalogRequest) -> bool {
        self.context.shared_database().is_unread(wanted)
    }

    fn forget_catalog(&self) {
        self.context.shared_database().forget_catalog();
    }

    fn catalog_changed(&self) {
        let database = self.context.shared_database.clone();
        database.forget_catalog();
        let announcement = database.announcements.clone().track_future(async move {
            database.fence.announce_catalog().await;
            database.read_soon();
        });
        self.context.shared.background.spawn(announcement);
    }

    fn note_harmless_change(&self, doubts: u64) -> bool {
        self.context.shared_database().note_harmless_change(doubts)
    }

    fn forget_database(&self, name: &str) {
        self.context.shared().forget_database(name);
    }

    fn definitions_of_others(&self) -> Vec<Arc<PendingDefinitions>> {
        self.context.shared_database().suspects.except(self.record.number)
    }

    fn publish_definitions(&self, suspects: &PendingDefinitions) {
        self.context.shared_database().suspects.publish(self.record.number, suspects);
    }

    fn withdraw_definitions(&self) {
        let database = self.context.shared_database();
        database.suspects.withdraw(self.record.number, database.changes().doubts);
    }

    fn read(
        &self,
        text: &[u8],
        lexing: Lexing,
        with_rows: bool,
        permit: Option<ParsePermit>,
    ) -> Result<Analysis, Task> {
        let cache = &self.context.shared.cache;
        if let Some(read) = cache.get(text, lexing, with_rows) {
            return Ok(read);
        }
        let take_permit = |apart| {
            let permits = self.context.parse_permits(apart);
            permits.try_take(&self.context.role).ok_or(Task::ParsePermit { apart })
        };
        // Other sessions of this thread continue on another thread.
        let read_apart = || {
            let read = || reader_process::read(text, lexing, with_rows);
            tokio::task::block_in_place(|| cache.read_apart(text, lexing, with_rows, read))
        };
        if permit.as_ref().is_some_and(|permit| permit.apart) {
            return Ok(read_apart());
        }
        let permit = permit.map_or_else(|| take_permit(false), Ok)?;
        if let Some(proved) = tokio::task::block_in_place(|| cache.prove(text, lexing, with_rows)) {
            return Ok(proved);
        }
        // Release the permit first: texts that parse fast must not wait for slow ones.
        drop(permit);
        let _permit = take_permit(true)?;
        Ok(read_apart())
    }

    fn room(&self, bytes: usize, there: usize, behind: bool) -> Option<Room> {
        self.context.message_budget(behind).try_take(bytes, there).map(|room| Box::new(room) as Room)
    }

    fn without_delaying_others<R>(work: impl FnOnce() -> R) -> R {
        tokio::task::block_in_place(work)
    }

    fn note_query(&self) {
        self.record.passed.query(&self.context.shared.metrics);
    }

    fn note_presented(&self, value: &ParameterValue) {
        self.record.present(value);
    }

    fn note_application_name(&self, name: &str) {
        self.record.rename_application(name);
    }

    fn note_recovery(&self) {
        self.context.shared.servers.request_look();
    }

    fn note_admitted(&mut self, resource: &Resource) {
        let Context { shared, policies, shared_database, admitted, .. } = &mut self.context;
        let (database, name) = (shared_database.fence.name(), &resource.name);
        admitted.count(name, || counter(&shared.metrics, policies, database, name, "admitted"));
    }

    fn note_rejected(&self, rejection: &Rejection, statement: &Statement) {
        self.record.log_rejection(&self.context, rejection, statement);
    }

    fn note_passed(&self, passed: Vec<PassedWrite>) {
        self.context.passed(&self.record, passed);
    }

    fn observe(&self, need: Need, claim: Claim) {
        self.context.observe(&self.record, need, claim);
    }
}
