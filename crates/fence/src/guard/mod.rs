//! The guard: the second layer, inside the database. Its triggers on the fenced tables stop writes that the proxy
//! cannot see: by functions, cascades and logical replication, and from clients that bypass the proxy.
//!
//! Owns the guard's triggers and functions (`guard.sql` has the decision), and their comparison with the policies. Must
//! never weaken an existing guard on a table that is still fenced: all changes are one transaction.

/// A file of SQL, with the fragments of the guard.
macro_rules! sql_file {
    ($path:literal) => {
        fencegate_postgres::sql_file::SqlFile::new(include_str!($path), crate::guard::FRAGMENTS)
    };
}

mod agreement;
mod catalog;
mod everything;
mod functions;
mod lock;
mod survey;
mod temporary;
mod trigger;

use crate::{InitError, InitLockError};
use catalog::Removal;
use fencegate_policy::PolicySet;
use fencegate_postgres::sql;
use fencegate_postgres::sql_file::Fragment;
use fencegate_postgres::tls::ControlConfig;
use functions::{GUARD_FUNCTIONS, NOTICE_FUNCTION};
use lock::{explain, lock_tables, transaction};
use survey::Survey;
use tokio_postgres::Client;

pub use everything::{Removed, remove_everything};

/// The SQL that several files include by its name.
const FRAGMENTS: &[Fragment] = &[
    ("admitted_users", include_str!("sql/fragments/admitted_users.sql")),
    ("cascade", include_str!("sql/fragments/cascade.sql")),
    ("content", include_str!("sql/fragments/content.sql")),
    ("dependent_schema", include_str!("sql/fragments/dependent_schema.sql")),
    ("is_guards", include_str!("sql/fragments/is_guards.sql")),
    ("is_here", include_str!("sql/fragments/is_here.sql")),
    ("is_temporary", include_str!("sql/fragments/is_temporary.sql")),
    ("may_admit_to", include_str!("sql/fragments/may_admit_to.sql")),
    ("parts", include_str!("sql/fragments/parts.sql")),
    ("sealed_content", include_str!("sql/fragments/sealed_content.sql")),
    ("may_terminate", include_str!("../store/sql/fragments/may_terminate.sql")),
];

const FUNCTIONS: &str = include_str!("guard.sql");
const NOTICE: &str = include_str!("notice.sql");

/// As `init` and every control connection: nothing of the role's own settings has a say.
const SETTINGS: &str = "SET standard_conforming_strings = on; SET search_path = pg_catalog; \
     SET default_transaction_isolation = 'read committed'; SET synchronous_commit = on";

/// The effect of their absence.
const NO_EVENT_TRIGGERS: &str =
    "definitions around the proxies are noticed later, until a superuser has run `fencegate guard install`";

/// Why the guard was not installed, read or removed; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum GuardError {
    /// No connection.
    #[error("cannot connect: {}", sql::message(.0))]
    Connect(#[source] tokio_postgres::Error),
    /// The schema of its functions does not exist.
    #[error("database {0} has no fencegate schema: run `fencegate init` first")]
    Uninitialised(String),
    /// The schema lacks objects that this version of the guard needs.
    #[error("database {0} has the fencegate schema of an earlier version: run `fencegate init` first")]
    Outdated(String),
    /// The triggers need functions that the connecting role may not create.
    #[error(
        "the guard's functions are not there as this version needs them, and only {0}, who owns the schema \
         fencegate, or a superuser may make them: run `fencegate guard install` as that role, then again as this one"
    )]
    FunctionsFirst(String),
    /// The policies do not apply to the database.
    #[error(
        "the policies fence nothing in database {0}, which has a guard: correct `databases`, or run `fencegate guard remove`; \
         --force removes the guard as well"
    )]
    OtherDatabase(String),
    /// The proxies have other policies in force.
    #[error(
        "the proxies do not have these policies in force: {}. Reload the proxies first, or use --force. After a restart, a proxy records its policies when the first client connects to the database", .0.join("; ")
    )]
    OtherPolicies(Vec<String>),
    /// A name in the policies is probably misspelled: the guard of the table that was meant would be removed.
    #[error("{missing} The guard of {meant} would be removed: correct the policies, or use --force")]
    Misspelled { missing: String, meant: String },
    /// The server refused a statement.
    #[error("cannot {}: {}", .0, sql::message(.1))]
    Refused(String, #[source] tokio_postgres::Error),
    /// Others hold locks on the tables, which are a list of SQL literals.
    #[error("cannot lock the tables, held up by {by}: {}", sql::message(.source))]
    HeldUp { relations: String, by: String, source: tokio_postgres::Error },
    /// Another command is running, or another process holds the lock.
    #[error(transparent)]
    Locked(#[from] InitLockError),
    /// The address does not lead to a PostgreSQL server.
    #[error("{}", InitError::Proxy)]
    Proxy,
    /// It has parts that this program does not know.
    #[error("database {database} has the {version}, which is newer than this program: run the newer fencegate")]
    Newer { database: String, version: String },
    /// Only owners may drop, and the connecting role is not a member of these.
    #[error("role {role} may not remove all of it. Connect as a superuser, or as a member of {others}")]
    NotAllowed { role: String, others: String },
    /// Sessions of other roles are hidden from it.
    #[error(
        "role {0} cannot see whether a proxy uses the database. Connect as a superuser or as the proxy's control role, or GRANT pg_read_all_stats TO {0}"
    )]
    Blind(String),
    /// `users` has a line for each.
    #[error("a proxy uses database {database}; nothing was removed. Stop it, or end these processes:{users}")]
    InUse { database: String, users: String },
    /// `dependents` has a line for each.
    #[error(
        "others in database {database} depend on what would be removed; nothing was removed. Drop them first{}:{dependents}",
        if *.may_keep { ", or keep the function fencegate.token with --keep-token" } else { "" }
    )]
    Needed { database: String, dependents: String, may_keep: bool },
}

/// The outcome of `install`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// How many triggers the policies ask for.
    pub wanted: usize,
    /// How many of them are there now, as they should be.
    pub there: usize,
    /// On how many relations they are wanted.
    pub tables: usize,
    /// How many changes were made: triggers by statements, the functions, the leases and the event triggers as one each. None where
    /// all was there.
    pub changes: usize,
    /// The tables from which the guard was removed, because the policies no longer fence them.
    pub released: Vec<String>,
    /// Tables that stay unguarded, and why.
    pub warnings: Vec<String>,
    /// Statements that other roles still have to run.
    pub to_run: Vec<RemainingStatements>,
}

/// Statements that another role has still to run, together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingStatements {
    /// The role that may.
    pub by: String,
    /// They are one transaction.
    pub statements: Vec<String>,
}

/// How a part of the guard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// As the policies say.
    Ok,
    /// Not there.
    Missing,
    /// There, and different; or there, and in no policy.
    Changed,
    /// There, and does not fire always.
    Disabled,
    /// Not there, and it need not be: event triggers that no superuser has made yet.
    NotMade,
    /// A subscription whose rows the guard rejects.
    Rejected,
}

impl GuardState {
    /// The word in `fencegate guard status`.
    pub fn name(self) -> &'static str {
        match self {
            GuardState::Ok => "ok",
            GuardState::Missing => "missing",
            GuardState::Changed => "changed",
            GuardState::Disabled => "disabled",
            GuardState::NotMade => "none",
            GuardState::Rejected => "rejected",
        }
    }

    /// Nothing is to be done about it.
    pub fn is_well(self) -> bool {
        matches!(self, GuardState::Ok | GuardState::NotMade)
    }
}

/// A line of `fencegate guard status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusLine {
    /// The relation, or the part of the guard that is on none.
    pub table: String,
    /// The resource's name; empty where it is of none.
    pub resource: String,
    /// The worst of its parts.
    pub state: GuardState,
    /// The difference.
    pub difference: String,
}

/// Differences between the guard and the policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardStatus {
    /// A line for each relation and resource, then those of functions, event triggers and subscriptions.
    pub lines: Vec<StatusLine>,
    /// Tables that cannot be guarded, and why.
    pub warnings: Vec<String>,
}

/// Makes the guard in the database of `config` match the policies exactly. Repeatable. Without `force`, it refuses if
/// [`agreement`] objects.
///
/// Cancel-safe: all changes are one transaction.
/// After an error, nothing was changed.
pub async fn install(config: &ControlConfig, policies: &PolicySet, force: bool) -> Result<Installed, GuardError> {
    let client = &open(config).await?;
    transaction(client, async || change(client, policies, force).await).await
}

async fn change(client: &Client, policies: &PolicySet, force: bool) -> Result<Installed, GuardError> {
    let mut survey = Survey::take(client, policies).await?;
    if !force {
        agreement::check(client, policies, &survey).await?;
    }
    let released = survey.released();
    let changes: Vec<_> = survey.differences().filter(|it| it.may_alter && !it.statements.is_empty()).collect();
    let drops = changes.iter().flat_map(|it| &it.statements).any(|statement| statement.starts_with("DROP"));
    lock_tables(client, changes.into_iter().map(|it| it.relation), drops).await?;
    let mut installed = Installed { changes: define(client, &survey).await?, ..Installed::default() };
    // Twice: only when a trigger is there its copies on partitions can be seen, and enabled where the server has not.
    for _ in 0..2 {
        for difference in survey.differences().filter(|difference| difference.may_alter) {
            for statement in difference.statements {
                run(client, &statement, &statement).await?;
                installed.changes += 1;
            }
        }
        survey = Survey::take(client, policies).await?;
    }
    (installed.wanted, installed.there, installed.tables) = survey.size();
    let left = survey.released();
    installed.released = released.difference(&left).cloned().collect();
    installed.warnings.clone_from(&survey.unguarded);
    if survey.event_triggers == GuardState::NotMade {
        installed.warnings.push(format!("there are no event triggers: {NO_EVENT_TRIGGERS}"));
    }
    installed.to_run = survey.rest();
    Ok(installed)
}

/// Creates the functions and the event triggers, and writes down the leases, where they differ: an owner of the tables alone has
/// no right to. Returns how many of the three were changed.
async fn define(client: &Client, survey: &Survey) -> Result<usize, GuardError> {
    let mut made = 0;
    if survey.functions != GuardState::Ok {
        if !survey.owns_schema {
            return Err(GuardError::FunctionsFirst(survey.owner.clone()));
        }
        run(client, "create the functions", &survey.definition()).await?;
        run(client, "mark the functions", &GUARD_FUNCTIONS.seal()).await?;
        made += 1;
    }
    if survey.owns_schema && !survey.leases().is_well() {
        run(client, "write down the leases", &survey.leases_definition()).await?;
        made += 1;
    }
    if survey.is_superuser && survey.event_triggers != GuardState::Ok {
        run(client, "create the event triggers", &event_triggers()).await?;
        made += 1;
    }
    Ok(made)
}

/// The statements that create them and their function.
fn event_triggers() -> String {
    format!("{NOTICE}\n{}", NOTICE_FUNCTION.seal())
}

/// Compares the guard in the database of `config` with the policies. Cancel-safe.
pub async fn status(config: &ControlConfig, policies: &PolicySet) -> Result<GuardStatus, GuardError> {
    let client = &open(config).await?;
    // The server locks a table to show a condition of its triggers.
    run(client, "set up the session", "SET lock_timeout = '3s'").await?;
    let survey = match Survey::take(client, policies).await {
        Ok(survey) => survey,
        Err(error) => return Err(explain(client, error).await?),
    };
    Ok(GuardStatus { lines: survey.lines(), warnings: survey.unguarded })
}

/// Removes the guard from the database of `config`, and returns the removed objects. Cancel-safe: one transaction.
/// After an error, nothing was removed.
pub async fn remove(config: &ControlConfig) -> Result<Vec<String>, GuardError> {
    let client = &open(config).await?;
    transaction(client, async || {
        let relations = catalog::drops(client).await?.into_iter().map(|(relation, _)| relation);
        lock_tables(client, relations, true).await?;
        let triggers = catalog::drops(client).await?.into_iter().map(|(_, removal)| removal);
        let mut removed = Vec::new();
        for Removal { what, statement } in triggers.chain(catalog::others(client).await?) {
            run(client, &format!("remove {what}"), &statement).await?;
            removed.push(what);
        }
        Ok(removed)
    })
    .await
}

/// A connection, which ends when the client is dropped.
async fn open(config: &ControlConfig) -> Result<Client, GuardError> {
    let (client, connection) = config.connect().await.map_err(GuardError::Connect)?;
    tokio::spawn(connection);
    run(&client, "set up the session", SETTINGS).await?;
    Ok(client)
}

async fn run(client: &Client, what: &str, sql: &str) -> Result<(), GuardError> {
    refused(what, client.batch_execute(sql).await)
}

fn refused<T>(what: &str, result: Result<T, tokio_postgres::Error>) -> Result<T, GuardError> {
    result.map_err(|source| GuardError::Refused(what.to_owned(), source))
}
