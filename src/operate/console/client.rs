//! The console of one client, the proxy behind it, and `SHOW REJECTIONS`: the latest writes that were rejected, or would have been,
//! without their values.

use super::control::ReloadedItem;
use super::result_set::ColumnType::{Integer, Text, Time};
use super::result_set::{Table, TableColumn, is_concerned};
use super::views::{OpenSession, ServerRow};
use crate::config::Settings;
use crate::metrics::WriteCount;
use async_trait::async_trait;
use fencegate_fence::session::Token;
use fencegate_fence::store::StoreError;
use fencegate_fence::{Database, Leaders};
use fencegate_policy::PolicySet;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;
use tokio_util::sync::CancellationToken;

/// The interface of the proxy for commands.
#[async_trait]
pub trait Proxy: Send + Sync {
    /// The settings in force.
    fn settings(&self) -> Arc<Settings>;
    /// The policies in force.
    fn policies(&self) -> Arc<PolicySet>;
    /// The known tokens of leaders.
    fn leaders(&self) -> Leaders;
    /// The databases with recent sessions, by name, without dropped ones.
    fn databases(&self) -> Vec<Arc<Database>>;
    /// A database by its name, with the policies recorded in it; None if the server reports that it does not exist.
    async fn database(&self, name: &str) -> Option<Arc<Database>>;
    /// The databases of the server, or of the policies, with the schema `fencegate`, including those without sessions.
    /// Cancel-safe.
    async fn prepared_databases(&self) -> Result<Vec<String>, StoreError>;
    /// The sessions that are open, by number.
    fn sessions(&self) -> Vec<OpenSession>;
    /// The servers of the list, or the one server after a check that it accepts connections. Cancel-safe.
    async fn servers(&self) -> Vec<ServerRow>;
    /// Ends a session. Returns false if no session has that number.
    fn kill(&self, session: u64) -> bool;
    /// Holds the sessions of a database when they are idle outside a transaction, and waits until all are held. Returns
    /// false if the database was resumed in between. Cancel-safe: the database stays paused.
    async fn pause(&self, database: &str) -> bool;
    /// Resumes the sessions of a database. Returns false if the database was not paused.
    fn resume(&self, database: &str) -> bool;
    /// The databases that are paused.
    fn paused(&self) -> Arc<BTreeSet<String>>;
    /// The latest rejected writes, latest first.
    fn rejections(&self) -> Vec<Arc<Rejected>>;
    /// Writes since the start, by database, resource, mode and verdict.
    fn writes(&self) -> Vec<WriteCount>;
    /// Start time of the proxy.
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
    /// Prepared statements and portals that the client has defined.
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
    /// A console for a client that the server has authenticated as this role. The role may use the console.
    pub fn new(proxy: Arc<dyn Proxy>, role: String, server_version: String) -> Self {
        Console { proxy, role, server_version, names: Mutex::default(), has_left: CancellationToken::new() }
    }

    /// The client has disconnected: ends a command that only waits.
    pub fn client_left(&self) {
        self.has_left.cancel();
    }

    /// The known databases that may have fenced tables.
    pub(super) fn fenced_databases(&self, policies: &PolicySet) -> Vec<Arc<Database>> {
        let mut databases = self.proxy.databases();
        databases.retain(|database| policies.applies_to(database.name()) && is_concerned(policies, database));
        databases
    }
}

/// A write that was rejected, or would have been.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Time of the rejection.
    pub time: SystemTime,
    /// The session's number in this process.
    pub session: u64,
    /// The role that logged in.
    pub user: String,
    /// The database.
    pub database: String,
    /// The resource, if the verdict is about one.
    pub resource: Option<String>,
    /// The verdict, as in metrics: stale, missing, …
    pub verdict: &'static str,
    /// SQLSTATE of the error: LF001, …
    pub sqlstate: &'static str,
    /// The token that the session presented, if the verdict is about one.
    pub presented: Option<Token>,
    /// The token in force, if known.
    pub highest: Option<Token>,
    /// Kind of the statement: INSERT, …
    pub statement: String,
    /// The table, if the verdict is about one.
    pub table: Option<String>,
    /// Mode of the fence. `observe`: the write has passed.
    pub mode: &'static str,
}

/// A row per rejection, latest first.
pub(super) fn table() -> Table<Arc<Rejected>> {
    vec![
        TableColumn("time", Time, |it| it.time.into()),
        TableColumn("session", Integer, |it| it.session.into()),
        TableColumn("user", Text, |it| (&it.user).into()),
        TableColumn("database", Text, |it| (&it.database).into()),
        TableColumn("resource", Text, |it| it.resource.clone().into()),
        TableColumn("verdict", Text, |it| it.verdict.into()),
        TableColumn("sqlstate", Text, |it| it.sqlstate.into()),
        TableColumn("presented", Integer, |it| it.presented.into()),
        TableColumn("highest", Integer, |it| it.highest.into()),
        TableColumn("statement", Text, |it| (&it.statement).into()),
        TableColumn("table", Text, |it| it.table.clone().into()),
        TableColumn("mode", Text, |it| it.mode.into()),
    ]
}
