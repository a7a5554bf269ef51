//! Commands with an effect: `KILL`, `PAUSE` and `RESUME` on sessions; `FENCE RESET`, the recovery after tokens have become lower than
//! earlier ones; and `RELOAD`, which reads settings, policies and certificates again.

use super::client::Console;
use super::command::{Control, FenceReset};
use super::result_set::ColumnType::{Boolean, Integer, Text};
use super::result_set::{Notice, ResultSet, Table, TableColumn, shortened, unreadable};
use fencegate_fence::session::Token;
use fencegate_fence::{Database, Higher, Reset, ResetError};
use fencegate_policy::{PolicySet, Resource};
use fencegate_wire::error::{ErrorText, Severity};
use std::sync::Arc;

/// Runs the command and returns the tag of the answer.
/// Not cancel-safe: a database may stay paused.
pub(super) async fn run(console: &Console, control: &Control) -> Result<&'static str, ErrorText> {
    let Console { proxy, role, has_left, .. } = console;
    match control {
        Control::Kill(session) => {
            if !proxy.kill(*session) {
                let text = ErrorText::new("42704", format!("there is no session {session}"));
                return Err(text.hint("SHOW SESSIONS lists the sessions."));
            }
            tracing::warn!(role, session, "session_killed");
            Ok("KILL")
        }
        Control::Pause(database) => {
            if proxy.database(database).await.is_none() {
                let text = ErrorText::new("3D000", format!("database \"{database}\" does not exist"));
                return Err(text.hint("A name folds to lower case unless it is quoted."));
            }
            tracing::warn!(role, database, "database_paused");
            tokio::select! {
                biased;
                is_held = proxy.pause(database) => match is_held {
                    true => Ok("PAUSE"),
                    false => {
                        let text = format!("database \"{database}\" was resumed before all its sessions were idle");
                        Err(ErrorText::new("55000", text))
                    }
                },
                () = has_left.cancelled() => Err(ErrorText::new("57014", "the client disconnected; the database stays paused")),
            }
        }
        Control::Resume(database) => {
            if !proxy.resume(database) {
                return Err(ErrorText::new("55000", format!("database \"{database}\" is not paused")));
            }
            tracing::warn!(role, database, "database_resumed");
            Ok("RESUME")
        }
    }
}

/// A resource that was reset in a database.
pub(super) type Row = (Arc<Database>, Arc<Resource>, Reset);

/// A row per database.
pub(super) fn table() -> Table<Row> {
    vec![
        TableColumn("database", Text, |(database, ..)| database.name().into()),
        TableColumn("resource", Text, |(_, resource, _)| (&resource.name).into()),
        TableColumn("generation_before", Integer, |(.., reset)| reset.before.generation.into()),
        TableColumn("token_before", Integer, |(.., reset)| reset.before.token.into()),
        TableColumn("generation", Integer, |(.., reset)| reset.after.generation.into()),
        TableColumn("token", Integer, |(.., reset)| reset.after.token.into()),
    ]
}

/// Maximum number of blocking sessions that a message names.
const MOST_NAMED: usize = 20;

/// Resets the resource in the database, or in all databases with an epoch of it; a row for each. Not cancel-safe: some
/// may be reset and others not. An error lists the completed and the remaining resets.
pub(super) async fn reset(console: &Console, command: &FenceReset) -> Result<ResultSet, ErrorText> {
    let FenceReset { resource, database, token, force } = command;
    let policies = console.proxy.policies();
    let found = policies.resources.iter().find_map(|known| known.called(resource));
    let resource = &found.ok_or_else(|| {
        ErrorText::new("42704", format!("no policy in force has the resource \"{resource}\""))
            .hint("SHOW POLICIES lists the resources.")
    })?;
    let (databases, mut notices) = match database {
        Some(name) => (vec![named(console, &policies, name).await?], Vec::new()),
        None => with_epoch(console, &policies, resource).await?,
    };
    for database in &databases {
        let above = above_leader(database, resource, *token, *force).await?;
        notices.extend(above.filter(|notice| !notices.contains(notice)));
    }
    let mut rows: Vec<Row> = Vec::new();
    for database in databases {
        match database.reset(resource, *token, &console.role, *force).await {
            Ok(reset) => {
                log(console, resource, &database, reset, *force);
                rows.push((database, resource.clone(), reset));
            }
            Err(error) => {
                match &error {
                    ResetError::NotDrained { reset, .. } => log(console, resource, &database, *reset, *force),
                    ResetError::Store(_) | ResetError::RaisedTooFast => {
                        log_unknown(console, resource, &database, command, &error.to_string());
                    }
                    ResetError::NoDatabase
                    | ResetError::Unprepared
                    | ResetError::NoEpoch
                    | ResetError::OtherPolicies
                    | ResetError::InUse(_) => {}
                }
                let done: Vec<_> = rows.iter().map(|(database, ..)| database.name()).collect();
                return Err(failed(console, resource, &database, &done, &error));
            }
        }
    }
    Ok(ResultSet::tagged("FENCE RESET", &table(), rows).with_notices(notices))
}

/// Checks for a fence above the leader's token, which shuts out the leader: an error, or with `force` a warning.
/// Reports an unknown leader. Cancel-safe.
async fn above_leader(
    database: &Arc<Database>,
    resource: &Resource,
    token: Token,
    force: bool,
) -> Result<Option<Notice>, ErrorText> {
    let Some(issuer) = &resource.issuer else { return Ok(None) };
    let (code, text) = match database.leader(issuer).await {
        Ok(Some(leader)) if token > leader => (
            "55006",
            format!(
                "token {token} is above {leader}, the token of the leader of {issuer}: the leader's writes would be rejected"
            ),
        ),
        Ok(_) => return Ok(None),
        Err(reason) => {
            let text =
                format!("cannot determine whether token {token} is above that of the leader of {issuer}: {reason}");
            return Ok(Some((Severity::Warning, ErrorText::new("01000", text))));
        }
    };
    match force {
        true => Ok(Some((Severity::Warning, ErrorText::new("01000", text)))),
        false => Err(ErrorText::new(code, text)
            .hint("Nothing was reset. SHOW FENCES has the leader's token. To reset anyway, use FENCE RESET … FORCE.")),
    }
}

/// The hint if the server has no such database.
const NO_DATABASE: &str = "Nothing was reset there. A name folds to lower case unless it is quoted.";

async fn named(console: &Console, policies: &PolicySet, name: &str) -> Result<Arc<Database>, ErrorText> {
    if !policies.applies_to(name) {
        return Err(ErrorText::new("55000", format!("the policies in force fence nothing in database \"{name}\"")));
    }
    let missing = || ErrorText::new("3D000", format!("database \"{name}\" does not exist")).hint(NO_DATABASE);
    console.proxy.database(name).await.ok_or_else(missing)
}

/// The known databases in which the resource has an epoch, and warnings about databases that cannot be queried.
async fn with_epoch(
    console: &Console,
    policies: &PolicySet,
    resource: &Resource,
) -> Result<(Vec<Arc<Database>>, Vec<Notice>), ErrorText> {
    let (mut databases, mut warnings) = (Vec::new(), Vec::new());
    let mut known = console.fenced_databases(policies);
    match console.proxy.prepared_databases().await {
        Ok(names) => {
            for name in names.iter().filter(|name| policies.applies_to(name)) {
                if known.iter().all(|database| database.name() != name) {
                    known.extend(console.proxy.database(name).await);
                }
            }
        }
        Err(reason) => {
            let text = format!("databases without sessions cannot be determined: {reason}");
            warnings.push((Severity::Warning, ErrorText::new("01000", text)));
        }
    }
    for database in known {
        match database.has_epoch(resource).await {
            Ok(true) => databases.push(database),
            Ok(false) => {}
            Err(reason) => warnings.extend(unreadable(policies, &database, &reason)),
        }
    }
    if databases.is_empty() {
        let message = format!("resource \"{}\" has no epoch in any database that this proxy can query", resource.name);
        return Err(ErrorText::new("55000", message)
            .detail(warnings.iter().map(|(_, warning)| warning.message.as_str()).collect::<Vec<_>>().join("; "))
            .hint("The first write under a token creates the epoch. If there is one, name its database: IN DATABASE <name>."));
    }
    Ok((databases, warnings))
}

fn log(console: &Console, resource: &Resource, database: &Database, Reset { before, after }: Reset, forced: bool) {
    tracing::warn!(
        role = console.role,
        resource = resource.name,
        database = database.name(),
        generation_before = before.generation,
        token_before = before.token,
        generation = after.generation,
        token = after.token,
        forced,
        "fence_reset"
    );
}

/// The reset may have taken effect. The log line lets operators attribute the new token.
fn log_unknown(console: &Console, resource: &Resource, database: &Database, command: &FenceReset, reason: &str) {
    let (resource, database) = (&resource.name, database.name());
    let FenceReset { token, force: forced, .. } = command;
    tracing::warn!(role = console.role, resource, database, token, forced, reason, outcome = "unknown", "fence_reset");
}

fn failed(console: &Console, resource: &Resource, database: &Database, done: &[&str], error: &ResetError) -> ErrorText {
    let (code, hint) = match error {
        ResetError::NoDatabase => ("3D000", NO_DATABASE),
        ResetError::NoEpoch => ("55000", "There is nothing to reset: the first write under a token creates the epoch."),
        ResetError::Unprepared => ("55000", "There is nothing to reset: `fencegate init` has not been run there."),
        ResetError::OtherPolicies => {
            ("LF006", "Reload this proxy (RELOAD), or run FENCE RESET on a proxy that has the current policies.")
        }
        ResetError::InUse(_) => (
            "55006",
            "First stop the holders of these tokens if they must no longer write. FENCE RESET … FORCE ends their sessions.",
        ),
        ResetError::Store(_) | ResetError::RaisedTooFast => (
            "LF006",
            "The epoch may have been reset, unless the connection could not be opened. Check SHOW FENCES. You can repeat the command.",
        ),
        ResetError::NotDrained { .. } => (
            "LF006",
            "The new token is set, and its first write continues to end these sessions. Do not repeat the reset.",
        ),
    };
    let mut detail = Vec::new();
    if let ResetError::InUse(higher) = error {
        detail.push(blocking_sessions(console, database, higher));
    }
    if !done.is_empty() {
        detail.push(format!("Already reset in: {}.", done.join(", ")));
    }
    let message = match error {
        ResetError::NoDatabase => format!("database \"{}\" does not exist", database.name()),
        error => format!("resource \"{}\" in database \"{}\": {error}", resource.name, database.name()),
    };
    ErrorText::new(code, message).detail(detail.join("\n")).hint(hint)
}

/// Lists the blocking sessions, highest tokens first.
fn blocking_sessions(console: &Console, database: &Database, higher: &[Higher]) -> String {
    let sessions = console.proxy.sessions();
    let session = |it: &Higher| {
        let session = sessions.iter().find(|session| session.is_of(database, it.pid)).filter(|_| it.is_ours);
        let whose = match session {
            Some(session) => format!("session {} of {} from {}", session.number, session.user, session.address),
            None => "a session of another proxy".to_owned(),
        };
        format!("pid {} under token {}, {whose}", it.pid, it.token)
    };
    shortened(higher.iter().map(session).collect(), MOST_NAMED, "; ")
}

/// An item that differs from before the reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadedItem {
    /// Kind of the item: policy, setting or certificate.
    pub what: &'static str,
    /// Name of the item.
    pub name: String,
    /// The change: added, removed, or the changed part.
    pub change: String,
    /// The previous value, if it can be shown.
    pub before: Option<String>,
    /// The new value, if it can be shown.
    pub after: Option<String>,
    /// True if the change is in force. Otherwise it needs a restart.
    pub in_force: bool,
}

/// A row per change.
pub(super) fn reload_table() -> Table<ReloadedItem> {
    vec![
        TableColumn("what", Text, |it| it.what.into()),
        TableColumn("name", Text, |it| (&it.name).into()),
        TableColumn("change", Text, |it| (&it.change).into()),
        TableColumn("before", Text, |it| it.before.clone().into()),
        TableColumn("after", Text, |it| it.after.clone().into()),
        TableColumn("in_force", Boolean, |it| it.in_force.into()),
    ]
}

/// Maximum number of errors in a message, because clients limit its length.
const MOST_ERRORS: usize = 20;

/// Fails with F0000 and all faults with their positions; then nothing has changed.
/// Not cancel-safe: some databases may have the new policies and others not.
pub(super) async fn reload(console: &Console) -> Result<ResultSet, ErrorText> {
    tracing::info!(role = console.role, "reload_requested");
    let changes = console.proxy.reload().await.map_err(|errors| not_reloaded(&errors))?;
    Ok(ResultSet::tagged("RELOAD", &reload_table(), changes))
}

fn not_reloaded(errors: &[String]) -> ErrorText {
    let (first, others) =
        errors.split_first().map_or(("the configuration cannot be read", &[][..]), |(it, rest)| (it, rest));
    ErrorText::new("F0000", first)
        .detail(shortened(others.to_vec(), MOST_ERRORS, "\n"))
        .hint("The previous configuration stays in force. Correct the errors and run RELOAD again. `fencegate policy check` checks policies without a proxy.")
}
