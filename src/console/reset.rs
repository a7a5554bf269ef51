//! `FENCE RESET`: the way back where tokens have become lower than those already seen.

use super::{Answer, Scene, unreadable};
use crate::fence::session::Token;
use crate::fence::{Database, Reset, ResetError};
use crate::policy::Resource;
use crate::wire::error::ErrorText;
use std::sync::Arc;

const COLUMNS: [&str; 6] = ["database", "resource", "generation_before", "token_before", "generation", "token"];

/// Resets the resource in the database, or wherever it has an epoch: a row for each.
/// Not cancel-safe: some may be reset and others not.
///
/// # Errors
/// What is left to do.
pub(super) async fn reset(
    scene: &Scene<'_>,
    resource: &str,
    database: Option<&str>,
    token: Token,
) -> Result<Answer, ErrorText> {
    let found = scene.policies.resources.iter().find_map(|known| known.called(resource));
    let resource = &found.ok_or_else(|| {
        ErrorText::new("42704", format!("resource \"{resource}\" is in none of the policies in force"))
            .hint("SHOW FENCES lists those that are.")
    })?;
    let (databases, warnings) = match database {
        Some(name) => (vec![named(scene, name)?], Vec::new()),
        None => with_epoch(scene, resource).await?,
    };
    let mut rows = Vec::new();
    for database in &databases {
        match database.reset(resource, token).await {
            Ok(reset) => {
                log(scene, resource, database, reset);
                rows.push(row(resource, database, reset));
            }
            Err(error) => {
                match &error {
                    ResetError::NotDrained { reset, .. } => log(scene, resource, database, *reset),
                    ResetError::Unavailable(reason) => log_unknown(scene, resource, database, token, reason),
                    ResetError::NoEpoch | ResetError::OtherPolicies => {}
                }
                return Err(failed(resource, database, &rows, &error));
            }
        }
    }
    Ok(Answer { warnings, notices: Vec::new(), columns: &COLUMNS, rows, tag: "FENCE RESET".to_owned() })
}

fn named(scene: &Scene<'_>, name: &str) -> Result<Arc<Database>, ErrorText> {
    if !scene.policies.applies_to(name) {
        return Err(ErrorText::new("55000", format!("the policies in force fence nothing in database \"{name}\"")));
    }
    Ok((scene.open)(name))
}

/// The databases known in which the resource has an epoch, and what is to be said of those that cannot be asked.
async fn with_epoch(scene: &Scene<'_>, resource: &Resource) -> Result<(Vec<Arc<Database>>, Vec<ErrorText>), ErrorText> {
    let (mut databases, mut warnings) = (Vec::new(), Vec::new());
    for database in scene.databases.iter().filter(|database| scene.policies.applies_to(database.name())) {
        match database.has_epoch(resource).await {
            Ok(true) => databases.push(database.clone()),
            Ok(false) => {}
            Err(reason) => warnings.push(unreadable(database, &reason)),
        }
    }
    if databases.is_empty() {
        let message = format!("resource \"{}\" has an epoch in no database that this proxy knows", resource.name);
        return Err(ErrorText::new("55000", message)
            .detail(warnings.iter().map(|warning| warning.message.as_str()).collect::<Vec<_>>().join("; "))
            .hint("The proxy knows the databases that have had sessions since it started. Name the one you mean: IN DATABASE <name>."));
    }
    Ok((databases, warnings))
}

fn row(resource: &Resource, database: &Database, Reset { before, after }: Reset) -> Vec<Option<String>> {
    let numbers = [before.generation, before.token, after.generation, after.token];
    let names = [database.name().to_owned(), resource.name.clone()];
    names.into_iter().chain(numbers.map(|number| number.to_string())).map(Some).collect()
}

fn log(scene: &Scene<'_>, resource: &Resource, database: &Database, Reset { before, after }: Reset) {
    tracing::warn!(
        role = scene.role,
        resource = resource.name,
        database = database.name(),
        generation_before = before.generation,
        token_before = before.token,
        generation = after.generation,
        token = after.token,
        "fence_reset"
    );
}

/// It may have taken effect: who wonders about the token finds out who it was.
fn log_unknown(scene: &Scene<'_>, resource: &Resource, database: &Database, token: Token, reason: &str) {
    let (resource, database) = (&resource.name, database.name());
    tracing::warn!(role = scene.role, resource, database, token, reason, outcome = "unknown", "fence_reset");
}

/// What has been done, and what is left to do.
fn failed(resource: &Resource, database: &Database, done: &[Vec<Option<String>>], error: &ResetError) -> ErrorText {
    let (name, database) = (&resource.name, database.name());
    let (code, hint) = match error {
        ResetError::NoEpoch => ("55000", "There is nothing to reset: the first write under a token makes the epoch."),
        ResetError::OtherPolicies => ("LF006", "Reload this proxy (SIGHUP), or reset through the one that has them."),
        ResetError::Unavailable(_) => (
            "LF006",
            "Unless the connection was never open, the epoch may be reset. SHOW FENCES tells; the command may be repeated.",
        ),
        ResetError::NotDrained { .. } => {
            ("LF006", "The new token is in force; its first write goes on ending them. The reset need not be repeated.")
        }
    };
    let done: Vec<&str> = done.iter().filter_map(|row| row.first()?.as_deref()).collect();
    let detail = if done.is_empty() { String::new() } else { format!("It was reset in: {}.", done.join(", ")) };
    ErrorText::new(code, format!("resource \"{name}\" in database \"{database}\": {error}")).detail(detail).hint(hint)
}
