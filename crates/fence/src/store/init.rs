//! `fencegate init`: the schemas in a downstream database.
//!
//! Owns creating and upgrading the schemas. Must never remove anything that a running proxy needs:
//! `init` may be run at any time, even several times at once.

mod error;
mod grants;

pub use error::InitError;

use super::init_lock::{Effect, Script, begin, set_up};
use super::probe::check_engine;
use super::sql::{VERSION, sql_file, version_number};
use crate::CONSOLE;
use error::refused;
use fencegate_postgres::sql::{column, is_true, query_rows, quote, text};
use fencegate_postgres::sql_file::Value::{Sql, Text};
use fencegate_postgres::tls::ControlConfig;
use grants::{ROLES, TemporaryGrants, grant_one_of, grant_script, has, lease_grants, quote_name, temporary_grants};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// The current schema. May be run over an older or the same one.
const SCHEMA: &str = concat!(include_str!("schema.sql"), include_str!("leases.sql"), include_str!("check.sql"));
/// The tables and sequences.
pub const RELATIONS: [&str; 9] =
    ["epoch", "admission", "proxy", "reset", "leased", "lease", "lease_history", "lease_grant", "lease_token"];
/// The functions, except those that only the guard has.
pub const FUNCTIONS: [&str; 38] = [
    "own_system_identifier",
    "own_database",
    "token",
    "announce",
    "prune",
    "end_holders",
    "take_lock",
    "receive_epoch",
    "lease_caller",
    "lease_matches",
    "lease_candidate",
    "lease_may",
    "lease_role",
    "lease_time",
    "lease_holder",
    "lease_ended",
    "lease_durable",
    "lease_day",
    "lease_extend",
    "lease_prune",
    "is_key",
    "lease_resources",
    "lease_fence",
    "acquire",
    "renew",
    "renew_all",
    "release",
    "proclaim",
    "leader",
    "leases",
    "leased_resources",
    "presented",
    "own_pid",
    "own_start",
    "missing_token_hint",
    "await_lock",
    "check_write",
    "claim",
];

/// The time for all attempts, and the pause between them, in which other processes get the lock.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// The outcome of `init`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitReport {
    /// The owner of the schema: the control role.
    pub role: String,
    /// True if there was no version of the schema before.
    pub created: bool,
    /// The previous and the current version of the schema, if they differ.
    pub versions: Option<(u32, u32)>,
    /// The roles that this run granted to the control role.
    pub granted: Vec<String>,
    /// Statements that a role with more privileges must still run.
    pub to_run: Vec<String>,
}

/// Creates or upgrades the schemas `fencegate` and `fencegate_state` in the database of `config`, and transfers them to the
/// control role `role`. Without `role`, existing schemas keep their owner, and new ones belong to the connecting role.
///
/// Not cancel-safe: the schema may exist while grants are missing. May be repeated.
pub async fn init(config: &ControlConfig, role: Option<&str>) -> Result<InitReport, InitError> {
    if is_proxy(config).await {
        return Err(InitError::Proxy);
    }
    run(&open(config).await?, role).await
}

/// The script of [`init`], followed by that of [`grant_leases`] for the role and pattern in `leases`, for the current state of
/// the database. Executes the statements and rolls them back. Cancel-safe.
pub async fn init_script(
    config: &ControlConfig,
    role: Option<&str>,
    leases: Option<(&str, &str)>,
) -> Result<String, InitError> {
    if is_proxy(config).await {
        return Err(InitError::Proxy);
    }
    let client = &open(config).await?;
    let leases = leases.map_or_else(String::new, |(role, elections)| lease_grants(role, elections));
    let Created { owner, versions, script, .. } = create(client, role, &leases, Effect::Script).await?;
    let mut text = script.text();
    if versions.is_some() {
        text.push_str(&end_control_connections());
    }
    // Last, because the role that runs the script may not be permitted to grant them.
    for (privilege, wider) in ROLES {
        if !has(client, &owner, privilege).await? {
            text.push_str(&grant_script(privilege, wider, &quote_name(&owner)));
        }
    }
    Ok(text)
}

/// A connection with the settings that the statements here require.
async fn open(config: &ControlConfig) -> Result<Client, InitError> {
    let client = config.client().await.map_err(InitError::Connect)?;
    check_engine(&client).await?;
    refused("set up the session", set_up(&client).await)?;
    Ok(client)
}

/// Returns true if a fencegate answers at the address: with its console, or with the error that the role may not use it.
pub async fn is_proxy(config: &ControlConfig) -> bool {
    match config.with_database(CONSOLE).client().await {
        Ok(client) => {
            let version = query_rows(&client, "SHOW VERSION").await.unwrap_or_default();
            version.first().is_some_and(|row| column(row, "fencegate").is_some())
        }
        // PostgreSQL names the routine that raised an error. The proxy does not.
        Err(error) => error
            .as_db_error()
            .is_some_and(|error| *error.code() == SqlState::INSUFFICIENT_PRIVILEGE && error.routine().is_none()),
    }
}

async fn run(client: &Client, role: Option<&str>) -> Result<InitReport, InitError> {
    let Created { owner, created, versions, .. } = create(client, role, "", Effect::Commit).await?;
    if versions.is_some() {
        refused("end the proxies' control connections", query_rows(client, &end_control_connections()).await)?;
    }
    let mut report = InitReport { role: owner, created, versions, granted: Vec::new(), to_run: Vec::new() };
    for (privilege, wider) in ROLES {
        if has(client, &report.role, privilege).await? {
            continue;
        }
        match grant_one_of(client, &report.role, privilege, [Some(privilege), wider]).await? {
            Some(granted) => report.granted.push(granted.to_owned()),
            None => report.to_run.push(format!("GRANT {privilege} TO {}", quote_name(&report.role))),
        }
    }
    Ok(report)
}

/// The schemas after this `init`.
struct Created {
    owner: String,
    /// True if there was no version of the schema before.
    created: bool,
    /// The previous and the current version of the schema, if they differ.
    versions: Option<(u32, u32)>,
    script: Script,
}

async fn create(client: &Client, role: Option<&str>, leases: &str, effect: Effect) -> Result<Created, InitError> {
    let facts = sql_file!("init/facts.sql").with(&[]);
    let facts = refused("read the catalog", query_rows(client, &facts).await)?;
    let fact = |name| facts.first().and_then(|row| column(row, name));
    let temporary = temporary_grants(client, role.or(fact("owner")).unwrap_or_default()).await?;
    let (Before { owner, version, .. }, script) = create_schema(client, role, leases, &temporary, effect).await?;
    let owner = role.map(str::to_owned).or(owner).or(fact("me").map(str::to_owned)).unwrap_or_default();
    let versions = version.as_deref().and_then(version_number).zip(version_number(VERSION));
    let versions = versions.filter(|(before, now)| before != now);
    Ok(Created { owner, created: version.is_none(), versions, script })
}

/// Terminates the control connections of proxies, which prepared their statements for another version. A proxy opens new ones
/// and then reads the version. Spares connections that this role may not terminate: such a proxy refuses first writes with the
/// server's error.
fn end_control_connections() -> String {
    sql_file!("init/end_control_connections.sql").with(&[])
}

/// The schemas before this `init`.
struct Before {
    /// The owner of the schema `fencegate`. None: the schema did not exist.
    owner: Option<String>,
    /// True if the schema `fencegate_state` existed.
    has_state: bool,
    /// None: there was no schema, or only the part that `remove --keep-token` left.
    version: Option<String>,
    /// The existing relations and functions: arrays of oids.
    relations: String,
    functions: String,
    /// An untrusted role that owns one of the schemas or an object in them.
    stranger: Option<String>,
}

/// Reads the existing schemas, and whether an untrusted role owns a part of them.
async fn look(client: &Client, role: Option<&str>) -> Result<Before, tokio_postgres::Error> {
    let named = role.map_or_else(|| "current_user".to_owned(), quote);
    let query = sql_file!("init/before.sql").with(&[("named_role", Sql(&named))]);
    let rows = query_rows(client, &query).await?;
    let fact = |name| rows.first().and_then(|row| text(row, name));
    let array = |name| fact(name).unwrap_or_else(|| "{}".to_owned());
    let (relations, functions) = (array("relations"), array("functions"));
    let (owner, version, stranger) = (fact("owner"), fact("version"), fact("stranger"));
    let has_state = rows.iter().any(|row| is_true(row, "has_state"));
    Ok(Before { owner, has_state, version, relations, functions, stranger })
}

/// Creates or upgrades the schemas. A wait for a table's lock blocks all later requests, above all every Admit. Each wait is
/// therefore short, and repeated.
async fn create_schema(
    client: &Client,
    role: Option<&str>,
    leases: &str,
    temporary: &TemporaryGrants,
    effect: Effect,
) -> Result<(Before, Script), InitError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        begin(client, effect, deadline).await?;
        let mut script = Script::default();
        let attempted = attempt(client, &mut script, role, leases, temporary).await;
        let error = match attempted {
            Ok(Before { stranger: Some(owner), .. }) => return Err(InitError::Foreign(owner)),
            Ok(before) => match script.end(client, effect).await {
                Ok(()) => return Ok((before, script)),
                Err(error) => error,
            },
            Err(error) => error,
        };
        refused("roll back", client.batch_execute("ROLLBACK").await)?;
        if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) && !temporary.grants.is_empty() {
            return Err(InitError::NotAllowed(error, temporary.grants.clone()));
        }
        // INTERNAL_ERROR: "tuple concurrently updated", if another init grants at the same time. Duplicates: another role has
        // created the schema in the meantime.
        let may_pass = [
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::INTERNAL_ERROR,
            SqlState::UNIQUE_VIOLATION,
            SqlState::DUPLICATE_SCHEMA,
        ];
        let may_pass = error.code().is_some_and(|code| may_pass.contains(code));
        if !may_pass || Instant::now() >= deadline {
            return refused("create the schema", Err(error));
        }
        sleep(PAUSE).await;
    }
}

/// One attempt, in the transaction that has begun. Changes nothing if a stranger is found. With `role`, transfers objects of
/// other roles to it. Without, transfers only new objects to the schema's owner. Skips objects that already have the right
/// owner, because ALTER would still take the table's lock.
async fn attempt(
    client: &Client,
    script: &mut Script,
    role: Option<&str>,
    leases: &str,
    temporary: &TemporaryGrants,
) -> Result<Before, tokio_postgres::Error> {
    let before = look(client, role).await?;
    if before.stranger.is_some() {
        return Ok(before);
    }
    // Fails if a stranger has created one in the meantime.
    let create = [(before.owner.is_some(), "fencegate"), (before.has_state, "fencegate_state")];
    let create: String =
        create.iter().filter(|(is_there, _)| !is_there).map(|(_, name)| format!("CREATE SCHEMA {name}; ")).collect();
    let of_state = role.or(before.owner.as_deref().filter(|_| !before.has_state)).map(quote_name);
    // The new owner of an object needs CREATE on its schema. The schema of the tables is transferred last: a role that does
    // not inherit the new owner's privileges could no longer name the tables.
    let alter = role.map_or_else(String::new, |role| format!("; ALTER SCHEMA fencegate OWNER TO {}", quote_name(role)))
        + &of_state
            .as_ref()
            .map_or_else(String::new, |owner| format!("; GRANT CREATE ON SCHEMA fencegate_state TO {owner}"));
    script.run(client, &format!("{}{create}{SCHEMA}{alter}", all(&temporary.grants))).await?;
    let changes = match role.or(before.owner.as_deref()) {
        Some(owner) => changes_of_owner(client, owner, role.is_none().then_some(&before)).await?,
        None => String::new(),
    };
    let transfer_state =
        of_state.map_or_else(String::new, |owner| format!("ALTER SCHEMA fencegate_state OWNER TO {owner}; "));
    script.run(client, &format!("{changes}{transfer_state}{leases}{}", all(&temporary.revokes))).await?;
    Ok(before)
}

/// The statements that transfer the objects of other roles to `owner`, except those in `keep`.
async fn changes_of_owner(
    client: &Client,
    owner: &str,
    keep: Option<&Before>,
) -> Result<String, tokio_postgres::Error> {
    let array = |names: &[&str]| format!("{{{}}}", names.join(","));
    let kept = |of: fn(&Before) -> &str| Text(keep.map_or("{}", of));
    let others = sql_file!("init/of_other_owners.sql").with(&[
        ("owner_role", Text(owner)),
        ("relation_list", Text(&array(&RELATIONS))),
        ("function_list", Text(&array(&FUNCTIONS))),
        ("kept_relations", kept(|it| &it.relations)),
        ("kept_functions", kept(|it| &it.functions)),
    ]);
    let others = query_rows(client, &others).await?;
    let change = |object| format!("ALTER {object} OWNER TO {}; ", quote_name(owner));
    Ok(others.iter().filter_map(|row| column(row, "object")).map(change).collect())
}

/// Permits `role` to lead the elections whose names match `elections`, where `*` matches any text. Returns all patterns that
/// the role may now lead. May be repeated.
///
/// Not cancel-safe: the grant may have taken effect.
pub async fn grant_leases(config: &ControlConfig, role: &str, elections: &str) -> Result<Vec<String>, InitError> {
    let client = open(config).await?;
    let owner = "SELECT pg_get_userbyid(nspowner) AS owner FROM pg_namespace WHERE nspname = 'fencegate'";
    let owner = refused("read the catalog", query_rows(&client, owner).await)?;
    let temporary =
        temporary_grants(&client, owner.first().and_then(|row| column(row, "owner")).unwrap_or_default()).await?;
    let grant = format!(
        "SET LOCAL lock_timeout = {}; {}{}\
         SELECT pattern FROM fencegate_state.lease_grant WHERE role = {}::regrole ORDER BY pattern; {}COMMIT",
        PATIENCE.as_millis(),
        all(&temporary.grants),
        lease_grants(role, elections),
        quote(&quote_name(role)),
        all(&temporary.revokes)
    );
    begin(&client, Effect::Commit, Instant::now() + PATIENCE).await?;
    let rows = refused("grant the leases to the role", query_rows(&client, &grant).await)?;
    Ok(rows.iter().filter_map(|row| column(row, "pattern")).map(str::to_owned).collect())
}

/// The statements as part of a query string.
fn all(statements: &[String]) -> String {
    statements.iter().map(|statement| format!("{statement}; ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_the_version_that_connections_expect() {
        assert!(SCHEMA.contains(&format!("IS '{VERSION}'")));
    }
}
