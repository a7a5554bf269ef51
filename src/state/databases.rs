//! Registry of the databases that the proxy uses. A database enters with its first session or command, and leaves when
//! it has been unused for a while.
//!
//! Must never have two entries of one name: their sessions would not know of each other. An entry leaves only if
//! nothing else refers to it; the registry's lock keeps sessions from taking it meanwhile.

use super::database::SharedDatabase;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Unused databases are forgotten after this time. A server may have a database for each test or tenant.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Interval of the checks for unused databases.
pub const LOOK: Duration = Duration::from_secs(60);

/// All known databases, by name.
#[derive(Default)]
pub struct Databases(Mutex<HashMap<String, KnownDatabase>>);

struct KnownDatabase {
    database: Arc<SharedDatabase>,
    /// The last time that it was requested or found in use.
    used: Instant,
}

impl Databases {
    /// Returns the database of that name. Creates it if there is none.
    pub fn get_or_create(&self, name: &str, make: impl FnOnce() -> Arc<SharedDatabase>) -> Arc<SharedDatabase> {
        let (mut known, used) = (self.0.lock(), Instant::now());
        if let Some(known) = known.get_mut(name) {
            known.used = used;
            return known.database.clone();
        }
        let database = make();
        known.insert(name.to_owned(), KnownDatabase { database: database.clone(), used });
        database
    }

    /// The database of that name, if it is known.
    pub fn get(&self, name: &str) -> Option<Arc<SharedDatabase>> {
        self.0.lock().get(name).map(|known| known.database.clone())
    }

    /// All databases, in no particular order.
    pub fn all(&self) -> Vec<Arc<SharedDatabase>> {
        self.0.lock().values().map(|known| known.database.clone()).collect()
    }

    /// Forgets the databases that have been unused for a while, and ends their tasks.
    pub fn forget_unused(&self) {
        let mut forgotten = Vec::new();
        self.0.lock().retain(|_, KnownDatabase { database, used }| {
            if database.fence.is_in_use() {
                *used = Instant::now();
            }
            // Every holder got the database here, under this lock. Its own tasks hold it for moments only, and do
            // nothing for a database without sessions.
            let is_held = Arc::strong_count(database) > 1 || Arc::strong_count(&database.fence) > 1;
            let stays = is_held || used.elapsed() < FORGOTTEN_AFTER;
            if !stays {
                forgotten.push(database.clone());
            }
            stays
        });
        // Not under the lock: dropping many databases takes time.
        drop(forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::context::Context;
    use crate::state::shared::Shared;
    use fencegate_fence::session::{Identity, SessionFence};
    use tokio::runtime::Handle;
    use tokio::time::sleep;

    /// Waits until unused databases are old enough to be forgotten, and checks twice.
    async fn for_a_while(shared: &Shared) {
        for _ in 0..2 {
            sleep(FORGOTTEN_AFTER).await;
            shared.databases.forget_unused();
            // Tasks that were aborted end when they are next run.
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn session() -> Arc<SessionFence> {
        let [backend_start, system_identifier, postmaster_start] = [const { String::new() }; 3];
        Arc::new(SessionFence::new(Ok(Identity { pid: 1, backend_start, system_identifier, postmaster_start })))
    }

    #[tokio::test(start_paused = true)]
    async fn unused_databases_are_forgotten_with_their_tasks() {
        const MANY: usize = 10_000;
        let (shared, tasks) = (Shared::of_test(), || Handle::current().metrics().num_alive_tasks());
        let before = tasks();
        for number in 0..MANY {
            shared.shared_database(&format!("test_{number}"));
        }
        assert!(tasks() >= before + MANY && shared.shared_databases().len() == MANY);
        for_a_while(&shared).await;
        assert_eq!((tasks(), shared.shared_databases().len()), (before, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_in_use_is_kept_and_never_duplicated() {
        let shared = Shared::of_test();
        let context = Context::new(shared.clone(), "held", "postgres");
        let command = shared.shared_database("asked").fence.clone();
        let with_session = shared.shared_database("registered").fence.clone().register(session());
        drop(shared.shared_database("unused"));
        for_a_while(&shared).await;
        let names: Vec<_> = shared.shared_databases().iter().map(|it| it.fence.name().to_owned()).collect();
        assert_eq!(names, ["asked", "held", "registered"]);
        assert!(Arc::ptr_eq(context.shared_database(), &shared.shared_database("held")));
        assert!(Arc::ptr_eq(&command, &shared.shared_database("asked").fence));
        drop((context, command, with_session));
        for_a_while(&shared).await;
        assert!(shared.shared_databases().is_empty());
    }

    /// A database that is used again at the last moment is the old one, or a new one whose tasks run.
    #[tokio::test(start_paused = true)]
    async fn a_database_used_again_stays_alive() {
        let shared = Shared::of_test();
        let old = Arc::downgrade(&shared.shared_database("app"));
        sleep(FORGOTTEN_AFTER).await;
        let taken_up = shared.shared_database("app");
        shared.databases.forget_unused();
        assert!(std::ptr::eq(old.as_ptr(), Arc::as_ptr(&taken_up)));
        drop(taken_up);
        for_a_while(&shared).await;
        assert!(old.upgrade().is_none());
        let new = shared.shared_database("app");
        let before = new.changes();
        sleep(Duration::from_millis(1)).await;
        assert!(!before.has(new.changes()), "its tasks run");
    }
}
