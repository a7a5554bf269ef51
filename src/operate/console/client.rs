//! The console of one client, and the proxy behind it.

use super::notices::is_concerned;
use super::rejections::Rejected;
use super::reload::ReloadedItem;
use super::sessions::OpenSession;
use crate::config::Settings;
use crate::metrics::WriteCount;
use async_trait::async_trait;
use fencegate_fence::store::StoreError;
use fencegate_fence::{Database, Leaders};
use fencegate_policy::PolicySet;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;
use tokio_util::sync::CancellationToken;

/// The proxy, as far as commands ask it and act upon it.
#[async_trait]
pub trait Proxy: Send + Sync {
    /// The settings in force.
    fn settings(&self) -> Arc<Settings>;
    /// The policies in force.
    fn policies(&self) -> Arc<PolicySet>;
    /// The leaders' tokens, as far as they are known.
    fn leaders(&self) -> Leaders;
    /// The databases that have had sessions lately, by name; not those that are gone.
    fn databases(&self) -> Vec<Arc<Database>>;
    /// Any database, by its name, with the policies recorded in it; None: the server says that it has none.
    async fn database(&self, name: &str) -> Option<Arc<Database>>;
    /// The databases of the server, or of the policies, that have the schema `fencegate`, also those that have had no session
    /// yet. Cancel-safe.
    async fn prepared_databases(&self) -> Result<Vec<String>, StoreError>;
    /// The sessions that are open, by number.
    fn sessions(&self) -> Vec<OpenSession>;
    /// Ends a session. False: there is none of that number.
    fn kill(&self, session: u64) -> bool;
    /// Holds the sessions of a database as soon as they are idle outside of a transaction, and waits until all are.
    /// False: it was resumed meanwhile. Cancel-safe: the database stays paused.
    async fn pause(&self, database: &str) -> bool;
    /// Has them go on. False: the database was not paused.
    fn resume(&self, database: &str) -> bool;
    /// The databases that are paused.
    fn paused(&self) -> Arc<BTreeSet<String>>;
    /// The writes rejected last, the latest first.
    fn rejections(&self) -> Vec<Arc<Rejected>>;
    /// Writes since the start, by database, resource, mode and verdict.
    fn writes(&self) -> Vec<WriteCount>;
    /// When it started.
    fn started(&self) -> SystemTime;
    /// Reads settings, policies and certificates again, and applies all or nothing.
    /// Not cancel-safe: some databases may have the new policies and others not.
    /// The errors list all faults with their positions.
    async fn reload(&self) -> Result<Vec<ReloadedItem>, Vec<String>>;
}

/// The console of one client.
pub struct Console {
    pub(super) proxy: Arc<dyn Proxy>,
    /// The client's role, for the log.
    pub(super) role: String,
    /// `server_version` of the server behind the proxy.
    pub(super) server_version: String,
    /// Names that the client has defined.
    pub(super) names: Mutex<ClientNames>,
    /// Cancelled when the client leaves.
    pub(super) has_left: CancellationToken,
}

/// The names of a client's prepared statements and portals, so that they are counted.
#[derive(Default)]
pub(super) struct ClientNames {
    pub(super) statements: BTreeSet<String>,
    pub(super) portals: BTreeSet<String>,
}

impl Console {
    /// For a client that the server has authenticated as that role, which may use the console.
    pub fn new(proxy: Arc<dyn Proxy>, role: String, server_version: String) -> Self {
        Console { proxy, role, server_version, names: Mutex::default(), has_left: CancellationToken::new() }
    }

    /// Ends a command that only waits: the client has left.
    pub fn client_left(&self) {
        self.has_left.cancel();
    }

    /// The databases known in which something may be fenced.
    pub(super) fn fenced_databases(&self, policies: &PolicySet) -> Vec<Arc<Database>> {
        let mut databases = self.proxy.databases();
        databases.retain(|database| policies.applies_to(database.name()) && is_concerned(policies, database));
        databases
    }
}
