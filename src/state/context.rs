//! A session's view of the shared state: its policies and its database.

use super::audit::Admitted;
use super::database::{PREPARE_LIMIT, SharedDatabase};
use super::parse_permits::ParsePermits;
use super::room::MessageBudget;
use super::sessions::SessionRecord;
use super::shared::Shared;
use fencegate_fence::session::SessionFence;
use fencegate_fence::{CutOff, Database, Registration, Role};
use fencegate_policy::{Mode, Opaque, PolicySet, Resource};
use fencegate_session::host::CatalogRequest;
use fencegate_session::task::{ParsePermit, Room};
use fencegate_statement::Alone;
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
            self.database().session_comes();
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
    pub fn wait_for_parse_permit(&self, apart: bool) -> impl Future<Output = Option<ParsePermit>> + use<> {
        self.parse_permits(apart).take(&self.role)
    }

    /// The permits for parsing here, or in another process.
    pub(super) fn parse_permits(&self, apart: bool) -> &ParsePermits {
        if apart { &self.shared.parse_permits_apart } else { &self.shared.parse_permits }
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
    pub fn leave_alone(&self, wanted: Alone, role: Role) -> impl Future<Output = ()> + use<> {
        let (shared, from) = (self.shared.clone(), self.database().name().to_owned());
        async move { shared.leave_alone(&wanted, &role, &from).await }
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
