//! The guard: the second layer, inside the database. Its triggers on the fenced tables stop writes that the proxy
//! cannot see: by functions, cascades and logical replication, and from clients that bypass the proxy.
//!
//! Owns the guard's triggers and functions (`guard.sql` has the decision), and their comparison with the policies. Must
//! never weaken an existing guard on a table that is still fenced: all changes are one transaction.

/// A file of SQL, with the fragments of the guard.
macro_rules! sql_file {
    ($path:literal) => {
        fencegate_postgres::sql_file::SqlFile::new(include_str!($path), $crate::guard::catalog::FRAGMENTS)
    };
}

mod catalog;
mod everything;
mod lock;
mod outcome;
mod survey;
mod trigger;

use crate::{Effect, Script, other_policies};
use catalog::{GUARD_FUNCTIONS, Removal, event_triggers};
pub use everything::{Removed, remove_everything};
use fencegate_catalog::{NamesFound, PolicyNames, missing_text};
use fencegate_policy::{PolicySet, QualifiedName};
use fencegate_postgres::tls::ControlConfig;
use lock::{explain, lock_tables, open, refused, rows, run, transaction};
pub use outcome::{GuardError, GuardState, GuardStatus, Installed, RemainingStatements, StatusLine};
use survey::{NO_EVENT_TRIGGERS, Survey};
use tokio_postgres::Client;

/// Makes the guard in the database of `config` match the policies exactly. Repeatable. Without `force`, it refuses
/// policies that are not those in force, and the removal of a guard because of a misspelled name. Returns the executed
/// statements, too.
///
/// Cancel-safe: all changes are one transaction.
/// After an error, nothing was changed.
pub async fn install(
    config: &ControlConfig,
    policies: &PolicySet,
    force: bool,
    effect: Effect,
) -> Result<(Installed, Script), GuardError> {
    let client = &open(config).await?;
    transaction(client, effect, async |script| change(client, script, policies, force).await).await
}

async fn change(
    client: &Client,
    script: &mut Script,
    policies: &PolicySet,
    force: bool,
) -> Result<Installed, GuardError> {
    let mut survey = Survey::take(client, policies).await?;
    if !force {
        check(client, policies, &survey).await?;
    }
    let released = survey.released();
    let changes: Vec<_> = survey.differences().filter(|it| it.may_alter && !it.statements.is_empty()).collect();
    let drops = changes.iter().flat_map(|it| &it.statements).any(|statement| statement.starts_with("DROP"));
    lock_tables(client, script, changes.into_iter().map(|it| it.relation), drops).await?;
    let mut installed = Installed { changes: define(client, script, &survey).await?, ..Installed::default() };
    // Twice: copies of a trigger on partitions, and whether the server has enabled them, are visible only after the
    // trigger is created.
    for _ in 0..2 {
        for difference in survey.differences().filter(|difference| difference.may_alter) {
            for statement in difference.statements {
                run(client, script, &statement, &statement).await?;
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

/// Creates the functions and the event triggers, and records the leases, where they differ: a role that only owns the
/// tables lacks the privileges for this. Returns how many of the three were changed.
async fn define(client: &Client, script: &mut Script, survey: &Survey) -> Result<usize, GuardError> {
    let mut made = 0;
    if survey.functions != GuardState::Ok {
        if !survey.owns_schema {
            return Err(GuardError::FunctionsFirst(survey.owner.clone()));
        }
        run(client, script, "create the functions", &survey.definition()).await?;
        run(client, script, "mark the functions' version", &GUARD_FUNCTIONS.seal()).await?;
        made += 1;
    }
    if survey.owns_schema && !survey.leases().is_well() {
        run(client, script, "record the leases", &survey.leases_definition()).await?;
        made += 1;
    }
    if survey.is_superuser && survey.event_triggers != GuardState::Ok {
        run(client, script, "create the event triggers", &event_triggers()).await?;
        made += 1;
    }
    Ok(made)
}

/// Compares the guard in the database of `config` with the policies. Cancel-safe.
pub async fn status(config: &ControlConfig, policies: &PolicySet) -> Result<GuardStatus, GuardError> {
    let client = &open(config).await?;
    // The server locks a table to show a condition of its triggers.
    refused("set up the session", client.batch_execute("SET lock_timeout = '3s'").await)?;
    let survey = match Survey::take(client, policies).await {
        Ok(survey) => survey,
        Err(error) => return Err(explain(client, error).await?),
    };
    Ok(GuardStatus { lines: survey.lines(), warnings: survey.unguarded })
}

/// Removes the guard from the database of `config`, and returns the removed objects and the executed statements. Cancel-safe: one
/// transaction. After an error, nothing was removed.
pub async fn remove(config: &ControlConfig, effect: Effect) -> Result<(Vec<String>, Script), GuardError> {
    let client = &open(config).await?;
    transaction(client, effect, async |script| {
        let relations = catalog::drops(client).await?.into_iter().map(|(relation, _)| relation);
        lock_tables(client, script, relations, true).await?;
        let triggers = catalog::drops(client).await?.into_iter().map(|(_, removal)| removal);
        let mut removed = Vec::new();
        for Removal { what, statement } in triggers.chain(catalog::others(client).await?) {
            run(client, script, &format!("remove {what}"), &statement).await?;
            removed.push(what);
        }
        Ok(removed)
    })
    .await
}

/// Checks that the policies may be installed. Skips records that the role may not read: the tables' owners run
/// `install` after the control role.
async fn check(client: &Client, policies: &PolicySet, survey: &Survey) -> Result<(), GuardError> {
    let released = survey.released();
    if !policies.applies_to(&survey.database) {
        return if released.is_empty() { Ok(()) } else { Err(GuardError::OtherDatabase(survey.database.clone())) };
    }
    let differences = refused("read the policies in force", other_policies(client, &policies.resources).await)?;
    if !differences.is_empty() {
        return Err(GuardError::OtherPolicies(differences));
    }
    if released.is_empty() || survey.missing.is_empty() {
        return Ok(());
    }
    let names = rows(client, "read the catalog", &PolicyNames::of(&[policies]).question()).await?;
    let names = NamesFound::read(&names);
    // The server quotes reserved words, too.
    let plain = |name: &str| name.replace('"', "");
    for missing in &survey.missing {
        let Some(meant) = names.nearest(missing).map(QualifiedName::to_string) else { continue };
        if released.iter().any(|relation| plain(relation) == plain(&meant)) {
            let missing = missing_text(&missing.to_string(), &survey.database, names.nearest(missing));
            return Err(GuardError::Misspelled { missing, meant });
        }
    }
    Ok(())
}
