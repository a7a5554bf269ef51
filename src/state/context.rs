//! A session's view of what is shared: the policies and the database that apply to it.

use super::audit::{Admitted, counter};
use super::database::{PREPARE_LIMIT, SharedDatabase};
use super::recent::Recent;
use super::room::MessageBudget;
use super::sessions::SessionRecord;
use super::shared::Shared;
use super::turns::Turns;
use crate::apart;
use crate::fence::{Database, Registration, Role};
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::policy::{Opaque, PolicySet, Resource};
use crate::session::Task;
use crate::session::host::Wanted;
use crate::session::task::{Room, Turn};
use crate::statement::{Alone, Analysis, Lexing};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::task::TaskTracker;

/// One session's view.
pub struct Context {
    shared: Arc<Shared>,
    shared_database: Arc<SharedDatabase>,
    policies: Arc<PolicySet>,
    receiver: watch::Receiver<Arc<PolicySet>>,
    fenced: bool,
    has_database: bool,
    /// The login role.
    role: String,
    admitted: Admitted,
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
        Context { shared, shared_database, policies, receiver, fenced, has_database: true, role, admitted }
    }

    /// The view of a physical replication session. It has no database and the server refuses it SQL, so that
    /// nothing of it is judged, whatever the policies become.
    pub fn without_database(shared: Arc<Shared>, role: &str) -> Self {
        let database = shared.settings().control_database().to_owned();
        Context { fenced: false, has_database: false, ..Context::new(shared, &database, role) }
    }

    /// Takes up new policies. True when nobody has watched the session until now.
    pub fn changed(&mut self) -> bool {
        if !self.receiver.has_changed().unwrap_or(false) {
            return false;
        }
        self.policies = self.receiver.borrow_and_update().clone();
        self.admitted.forget();
        let fenced = self.has_database && self.policies.applies_to(self.shared_database.fence.name());
        let before = std::mem::replace(&mut self.fenced, fenced);
        self.fenced && !before
    }

    /// Statements have to be judged.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// The policies in force.
    pub fn policies(&self) -> &PolicySet {
        &self.policies
    }

    /// The same, to be kept.
    pub fn policies_in_force(&self) -> Arc<PolicySet> {
        self.policies.clone()
    }

    /// The fences of the session's database.
    pub fn database(&self) -> &Arc<Database> {
        &self.shared_database.fence
    }

    /// The session's database.
    pub fn shared_database(&self) -> &Arc<SharedDatabase> {
        &self.shared_database
    }

    /// What all sessions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whatever does not show what it writes is rejected.
    pub fn rejects_opaque(&self) -> bool {
        let seen = self.shared_database.catalogue(None);
        self.fenced
            && self.policies.opaque == Opaque::Reject
            && (!seen.is_current || seen.catalogue.has_fenced_tables())
    }

    /// Makes sure, as far as a moment allows, that the policies are in force in the database and that
    /// it is known whether a fenced table exists. Cancel-safe: it goes on by itself.
    pub async fn prepare(&self) {
        if self.fenced {
            self.database().session_comes();
            let shared_database = self.shared_database.clone();
            let preparing = tokio::spawn(async move { shared_database.prepare().await });
            // A control connection that hangs must not keep sessions out.
            tokio::time::timeout(PREPARE_LIMIT, preparing).await.ok();
        }
    }

    /// The session's database has this number, if that is known: another one of its name may have been read before.
    pub fn note_database(&self, database: Option<String>) {
        if let Some(database) = database {
            self.shared_database.note_database(database);
        }
    }

    /// The rejections of late.
    pub fn recent(&self) -> &Recent {
        &self.shared.recent
    }

    /// Registers the session for as long as its server connection lasts. Who was deposed while the database had no sessions
    /// is shut out now.
    pub fn register(&self, session: &SessionRecord) -> Registration {
        let registration = self.database().register(session.fence.clone());
        self.shared_database.session_registered();
        registration
    }

    /// Reads the catalogue, if that was not done since it has changed, or may have: within that time. Cancel-safe.
    pub fn catch_up(&self, wanted: Wanted, within: Duration) -> impl Future<Output = ()> + use<> {
        let shared_database = self.shared_database.clone();
        async move {
            tokio::time::timeout(within, shared_database.catch_up_with(&wanted)).await.ok();
        }
    }

    /// Statements of this session have changed the catalogue: the others are told, and this proxy reads it soon.
    pub fn catalogue_changed(&self) {
        self.shared_database.forget_catalogue();
        let shared_database = self.shared_database.clone();
        self.shared.announcements.spawn(async move {
            shared_database.fence.announce_catalogue().await;
            shared_database.read_soon();
        });
    }

    /// What will tell that the catalogue has changed: the proxy does not stop before it, as far as its time allows.
    pub fn announcements(&self) -> &TaskTracker {
        &self.shared.announcements
    }

    /// What a text does, and to which rows if that is asked. One that may take long needs a turn: where none is to be had at
    /// once, what is to be waited for.
    pub fn read(&self, text: &[u8], lexing: Lexing, with_rows: bool, turn: Option<Turn>) -> Result<Analysis, Task> {
        if let Some(read) = self.shared.cache.get(text, lexing, with_rows) {
            return Ok(read);
        }
        let cache = &self.shared.cache;
        // Other sessions on this thread go on elsewhere.
        let read_apart = || {
            let read = || apart::read(text, lexing, with_rows);
            tokio::task::block_in_place(|| cache.read_apart(text, lexing, with_rows, read))
        };
        if turn.as_ref().is_some_and(|turn| turn.apart) {
            return Ok(read_apart());
        }
        let turn = turn.map_or_else(|| self.turn(false), Ok)?;
        if let Some(proved) = tokio::task::block_in_place(|| cache.prove(text, lexing, with_rows)) {
            return Ok(proved);
        }
        drop(turn);
        // Who sends what is soon read does not wait for those who do not.
        let _turn = self.turn(true)?;
        Ok(read_apart())
    }

    fn turn(&self, apart: bool) -> Result<Turn, Task> {
        self.turns(apart).try_take(&self.role).map(|turn| Turn::new(turn, apart)).ok_or(Task::Turn { apart })
    }

    /// The right to read a text that may take long. Cancel-safe.
    pub fn wait_for_turn(&self, apart: bool) -> impl Future<Output = Option<Turn>> + use<> {
        let turn = self.turns(apart).take(&self.role);
        async move { turn.await.map(|turn| Turn::new(turn, apart)) }
    }

    fn turns(&self, apart: bool) -> &Turns {
        if apart { &self.shared.turns_apart } else { &self.shared.turns }
    }

    /// Room to hold a message of that many bytes, of which so many are there; None after a while. Cancel-safe.
    pub fn wait_for_room(
        &self,
        bytes: usize,
        there: usize,
        behind: bool,
    ) -> impl Future<Output = Option<Room>> + use<> {
        let room = self.rooms(behind).take(bytes, there);
        async move { room.await.map(|room| Box::new(room) as Room) }
    }

    /// What stands behind something that the server may not have done for long has room of its own.
    pub fn rooms(&self, behind: bool) -> &Arc<MessageBudget> {
        if behind { &self.shared.room_behind } else { &self.shared.room }
    }

    /// The right to ask the database whether a write past a fence that only observes would be rejected; None: too many ask.
    pub fn place_to_observe(&self) -> Option<OwnedSemaphorePermit> {
        self.shared_database.observations.clone().try_acquire_owned().ok()
    }

    /// A write to the resource has been admitted.
    pub fn admitted(&mut self, resource: &Resource) {
        let Context { shared, policies, shared_database, admitted, .. } = self;
        let (database, name) = (shared_database.fence.name(), &resource.name);
        admitted.count(name, || counter(&shared.metrics, policies, database, name, "admitted"));
    }

    /// What everything is counted in.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.shared.metrics
    }

    /// Keeps storms out of the log.
    pub fn log_limit(&self) -> &Arc<LogLimit> {
        &self.shared.log_limit
    }

    /// Gets out of the way of a statement that needs a database alone. Cancel-safe.
    pub fn leave_alone(&self, wanted: Alone, role: Role) -> impl Future<Output = ()> + use<> {
        let (shared, from) = (self.shared.clone(), self.database().name().to_owned());
        async move { shared.leave_alone(&wanted, &role, &from).await }
    }
}
