//! A session's view of the shared state: its policies and its database; and the proxy as the session's state machine sees it.

use super::audit::{Admitted, counter};
use super::database::{PREPARE_LIMIT, SharedDatabase};
use super::room::{MessageBudget, ParsePermits};
use super::sessions::SessionRecord;
use super::shared::Shared;
use crate::relay;
use fencegate_fence::session::{Epoch, SessionFence, Token};
use fencegate_fence::{Claim, CutOff, Database, Registration, Role};
use fencegate_policy::{Mode, Opaque, PolicySet, Resource};
use fencegate_session::host::{CatalogRequest, CatalogView, Changes};
use fencegate_session::judge::{Need, PassedWrite};
use fencegate_session::parameter::ParameterValue;
use fencegate_session::pending_definitions::PendingDefinitions;
use fencegate_session::rejection::Rejection;
use fencegate_session::task::{ParsePermit, Room};
use fencegate_session::{Host, Task};
use fencegate_statement::{Analysis, ExclusiveUse, Lexing, Statement, reader_process};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::watch;

/// One session's view.
pub struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) shared_database: Arc<SharedDatabase>,
    pub(super) policies: Arc<PolicySet>,
    pub(super) receiver: watch::Receiver<Arc<PolicySet>>,
    pub(super) fenced: bool,
    pub(super) has_database: bool,
    /// The login role.
    pub(super) role: String,
    pub(super) admitted: Admitted,
    /// Set once a fence that only observes has found that it could admit the server process.
    pub(super) admissible: Arc<AtomicBool>,
}

impl Context {
    /// The view of a session of that login role in that database.
    pub fn new(shared: Arc<Shared>, database: &str, role: &str) -> Self {
        let mut receiver = shared.policies.subscribe();
        let policies = receiver.borrow_and_update().clone();
        let shared_database = shared.shared_database(database);
        let fenced = policies.applies_to(database);
        let admitted = Admitted::default();
        let role = role.to_owned();
        let admissible = Arc::default();
        Context { shared, shared_database, policies, receiver, fenced, has_database: true, role, admitted, admissible }
    }

    /// The view of a physical replication session. It has no database, and the server accepts no SQL from it. Its
    /// messages are therefore never judged, even under later policies.
    pub fn without_database(shared: Arc<Shared>, role: &str) -> Self {
        let database = shared.settings().control_database().to_owned();
        Context { fenced: false, has_database: false, ..Context::new(shared, &database, role) }
    }

    /// Returns true if statements have to be judged.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// The policies in force.
    pub fn policies(&self) -> &PolicySet {
        &self.policies
    }

    /// The fences of the session's database.
    pub fn database(&self) -> &Arc<Database> {
        &self.shared_database.fence
    }

    /// The session's database.
    pub fn shared_database(&self) -> &Arc<SharedDatabase> {
        &self.shared_database
    }

    /// State that all sessions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Mode in which opaque statements are rejected; `Observe` only reports them. None: they pass.
    pub fn rejects_opaque(&self) -> Option<Mode> {
        let seen = self.shared_database.catalog(None);
        let is_rejected = self.fenced
            && !self.policies.exempts(&self.role)
            && self.policies.opaque_of(&self.role) == Opaque::Reject
            && (!seen.is_current || seen.catalog.has_fenced_tables());
        let here = |resource: &&Arc<Resource>| !seen.is_current || seen.catalog.may_have(resource);
        self.policies.resources.iter().filter(|_| is_rejected).filter(here).map(|resource| resource.mode).max()
    }

    /// Ensures, within a short time limit, that the policies are in force in the database and that the proxy knows
    /// whether a fenced table exists. Cancel-safe: it continues by itself.
    pub async fn prepare(&self) {
        if self.fenced {
            self.database().note_login();
            // Avoid waking another thread for nothing.
            if self.shared_database.is_prepared() {
                return;
            }
            let shared_database = self.shared_database.clone();
            let preparing = self.shared.background.spawn(async move { shared_database.prepare().await });
            // A control connection that does not respond must not keep sessions out.
            tokio::time::timeout(PREPARE_LIMIT, preparing).await.ok();
        }
    }

    /// Records the OID of the session's database, if known: the earlier readings may be of another database of that
    /// name.
    pub fn note_database(&self, database: Option<String>) {
        if let Some(database) = database {
            self.shared_database.note_database(database);
        }
    }

    /// Registers the session for as long as its server connection lasts. A leader that was deposed while the database
    /// had no sessions is shut out now.
    pub fn register(&self, session: &SessionRecord) -> Registration {
        let registration = self.database().register(session.fence.clone());
        self.shared_database.session_registered();
        registration
    }

    /// The reason why the session's server process was terminated, as [`Database::cut_off_by`] finds it. Cancel-safe.
    pub async fn cut_off_by(&self, session: &Arc<SessionFence>) -> Option<CutOff> {
        let (database, session) = (self.database().clone(), session.clone());
        self.shared.background.spawn(async move { database.cut_off_by(&session).await }).await.ok().flatten()
    }

    /// Reads the catalog, within this time, if it has or may have changed since the last reading. Cancel-safe.
    pub fn catch_up(&self, wanted: CatalogRequest, within: Duration) -> impl Future<Output = ()> + use<> {
        let shared_database = self.shared_database.clone();
        async move {
            tokio::time::timeout(within, shared_database.catch_up_with(&wanted)).await.ok();
        }
    }

    /// Waits for a permit to parse a text that may take long. Cancel-safe.
    pub fn wait_for_parse_permit(&self, out_of_process: bool) -> impl Future<Output = Option<ParsePermit>> + use<> {
        self.parse_permits(out_of_process).take(&self.role)
    }

    /// The permits for parsing here, or in another process.
    pub(super) fn parse_permits(&self, out_of_process: bool) -> &ParsePermits {
        if out_of_process { &self.shared.parse_permits_out_of_process } else { &self.shared.parse_permits }
    }

    /// Waits for room for a message of `bytes`. `there`: bytes that have arrived. None on timeout. Cancel-safe.
    pub fn wait_for_room(
        &self,
        bytes: usize,
        there: usize,
        behind: bool,
    ) -> impl Future<Output = Option<Room>> + use<> {
        let room = self.message_budget(behind).take(bytes, there);
        async move { room.await.map(|room| Box::new(room) as Room) }
    }

    /// Messages behind others that the server may not answer for long have a budget of their own.
    pub(super) fn message_budget(&self, behind: bool) -> &Arc<MessageBudget> {
        if behind { &self.shared.room_behind } else { &self.shared.room }
    }

    /// Closes the control connections to a database for a statement that needs it without other connections.
    /// Cancel-safe.
    pub fn vacate_database(&self, wanted: ExclusiveUse, role: Role) -> impl Future<Output = ()> + use<> {
        let (shared, from) = (self.shared.clone(), self.database().name().to_owned());
        async move { shared.vacate_database(&wanted, &role, &from).await }
    }

    /// The databases among these that the role may not drop, rename or move. Cancel-safe.
    pub fn foreign_databases(
        &self,
        databases: Vec<String>,
        role: Role,
    ) -> impl Future<Output = HashSet<String>> + use<> {
        let asked = self.database().clone();
        async move { asked.foreign_databases(&role, &databases).await }
    }
}

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

    fn adopt_policies(&mut self) -> bool {
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
        self.context.shared_database().definitions.except(self.record.number)
    }

    fn publish_definitions(&self, pending: &PendingDefinitions) {
        self.context.shared_database().definitions.publish(self.record.number, pending);
    }

    fn withdraw_definitions(&self) {
        let database = self.context.shared_database();
        database.definitions.withdraw(self.record.number, database.changes().doubts);
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
        let take_permit = |out_of_process| {
            let permits = self.context.parse_permits(out_of_process);
            permits.try_take(&self.context.role).ok_or(Task::ParsePermit { out_of_process })
        };
        // Other sessions of this thread continue on another thread.
        let read_out_of_process = || {
            let read = || reader_process::read(text, lexing, with_rows);
            relay::without_delaying_others(|| cache.read_out_of_process(text, lexing, with_rows, read))
        };
        if permit.as_ref().is_some_and(|permit| permit.out_of_process) {
            return Ok(read_out_of_process());
        }
        let permit = permit.map_or_else(|| take_permit(false), Ok)?;
        if let Some(proved) = relay::without_delaying_others(|| cache.prove(text, lexing, with_rows)) {
            return Ok(proved);
        }
        // Release the permit first: texts that parse fast must not wait for slow ones.
        drop(permit);
        let _permit = take_permit(true)?;
        Ok(read_out_of_process())
    }

    fn room(&self, bytes: usize, there: usize, behind: bool) -> Option<Room> {
        self.context.message_budget(behind).try_take(bytes, there).map(|room| Box::new(room) as Room)
    }

    fn without_delaying_others<R>(work: impl FnOnce() -> R) -> R {
        relay::without_delaying_others(work)
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
