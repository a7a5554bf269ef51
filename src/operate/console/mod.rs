//! The console: commands of an operator, and their answers as rows.
//!
//! Owns the commands, their error messages, and the types of their columns. Must never decide which roles may use the
//! console, nor know the client's socket: both are the proxy's.

mod about;
mod admissions;
mod command;
mod control;
mod driver_statement;
mod fences;
pub mod frontend;
mod leases;
mod lexer;
mod policies;
mod rejections;
mod reload;
mod reset;
mod result_set;
mod server;
mod sessions;
mod stats;
mod views;

pub use rejections::Rejected;
pub use reload::ReloadedItem;
pub use result_set::refusal;
pub use server::{PreparedCommand, told};
pub use sessions::OpenSession;

use crate::config::Settings;
use crate::metrics::WriteCount;
use async_trait::async_trait;
use command::{COMMANDS, Command, Show};
use driver_statement::DriverStatement;
use fencegate_fence::store::StoreError;
use fencegate_fence::{Database, Leaders};
use fencegate_policy::PolicySet;
use fencegate_wire::error::{ErrorText, Severity};
use parking_lot::Mutex;
use result_set::{Heading, Notice, ResultSet, Table, headings};
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
    proxy: Arc<dyn Proxy>,
    /// The client's role, for the log.
    role: String,
    /// `server_version` of the server behind the proxy.
    server_version: String,
    /// Names that the client has defined.
    names: Mutex<ClientNames>,
    /// Cancelled when the client leaves.
    has_left: CancellationToken,
}

/// The names of a client's prepared statements and portals, so that they are counted.
#[derive(Default)]
struct ClientNames {
    statements: BTreeSet<String>,
    portals: BTreeSet<String>,
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
    fn fenced_databases(&self, policies: &PolicySet) -> Vec<Arc<Database>> {
        let mut databases = self.proxy.databases();
        databases.retain(|database| policies.applies_to(database.name()) && is_concerned(policies, database));
        databases
    }
}

/// The columns of a command's answer; none where it has no rows.
fn headings_of(command: &Command) -> Vec<Heading> {
    match command {
        Command::Show(Show::Fences) => headings(&fences::table()),
        Command::Show(Show::Sessions) => headings(&sessions::table()),
        Command::Show(Show::Admissions) => headings(&admissions::table()),
        Command::Show(Show::Leases) => headings(&leases::table()),
        Command::Show(Show::Policies) => headings(&policies::table()),
        Command::Show(Show::Rejections) => headings(&rejections::table()),
        Command::Show(Show::Stats) => headings(&stats::table()),
        Command::Show(Show::Databases) => headings(&views::databases()),
        Command::Show(Show::Clients) => headings(&views::clients()),
        Command::Show(Show::Servers) => headings(&views::servers()),
        Command::Show(Show::Config) => headings(&about::settings()),
        Command::Show(Show::Version) => headings(&about::version()),
        Command::Show(Show::Help) => headings(&about::commands()),
        Command::Reload => headings(&reload::table()),
        Command::FenceReset(_) => headings(&reset::table()),
        Command::DriverStatement(DriverStatement::Ask(question)) => headings(&question.table()),
        Command::Control(_) | Command::DriverStatement(_) => Vec::new(),
    }
}

/// Not cancel-safe: a command may be half done. Commands without rows are handled elsewhere.
async fn run(console: &Console, command: &Command) -> Result<ResultSet, ErrorText> {
    Ok(match command {
        Command::Show(Show::Fences) => fences::show(console).await,
        Command::Show(Show::Sessions) => ResultSet::show(&sessions::table(), console.proxy.sessions()),
        Command::Show(Show::Admissions) => admissions::show(console).await,
        Command::Show(Show::Leases) => leases::show(console).await,
        Command::Show(Show::Policies) => policies::show(console).await,
        Command::Show(Show::Rejections) => ResultSet::show(&rejections::table(), console.proxy.rejections()),
        Command::Show(Show::Stats) => ResultSet::show(&stats::table(), stats::counts(console)),
        Command::Show(Show::Databases) => views::show_databases(console).await,
        Command::Show(Show::Clients) => ResultSet::show(&views::clients(), console.proxy.sessions()),
        Command::Show(Show::Servers) => views::show_servers(console),
        Command::Show(Show::Config) => ResultSet::show(&about::settings(), console.proxy.settings().shown.clone()),
        Command::Show(Show::Version) => ResultSet::show(&about::version(), [console]),
        Command::Show(Show::Help) => ResultSet::show(&about::commands(), &COMMANDS),
        Command::Reload => reload::reload(console).await?,
        Command::FenceReset(reset) => reset::reset(console, reset).await?,
        Command::Control(_) | Command::DriverStatement(_) => ResultSet::show(&Table::<()>::new(), []),
    })
}

/// There is such a database, and something is fenced in it, or the policies say so, as far as is known.
fn is_concerned(policies: &PolicySet, database: &Database) -> bool {
    !database.is_missing() && (policies.databases.is_some() || !database.fences_nothing())
}

/// Said beside the answer, which is about the other databases. Nothing where that has shown that there is nothing to ask.
fn unreadable(policies: &PolicySet, database: &Database, error: &StoreError) -> Option<Notice> {
    let text = format!("database \"{}\" cannot be asked: {error}", database.name());
    is_concerned(policies, database).then(|| (Severity::Warning, ErrorText::new("01000", text)))
}

/// Said beside an answer without databases.
fn no_databases() -> Notice {
    let message = "no database with fenced tables has had a session in the last ten minutes";
    let hint = "Databases are shown while they have sessions through this proxy, and for ten minutes after. In the others, SELECT from fencegate_state.epoch.";
    notice(message, hint)
}

/// The first of a list, and how many more there are.
fn shortened(mut list: Vec<String>, most: usize, separator: &str) -> String {
    if list.len() > most {
        let more = format!("and {} more", list.len() - most);
        list.truncate(most);
        list.push(more);
    }
    list.join(separator)
}

fn notice(message: impl Into<String>, hint: &str) -> Notice {
    (Severity::Notice, ErrorText::new("00000", message).hint(hint))
}
