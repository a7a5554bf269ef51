//! Cases that `guard install` refuses without `--force`: policies that are not those in force, and the removal of a guard
//! because of a misspelled name.
//!
//! Must never change anything.

use super::connection::{refused, rows};
use super::error::GuardError;
use super::survey::Survey;
use crate::other_policies;
use fencegate_catalog::{NamesFound, PolicyNames, missing_text};
use fencegate_policy::{PolicySet, QualifiedName};
use tokio_postgres::Client;

/// Checks that the policies may be installed. Skips records that the role may not read: the tables' owners run
/// `install` after the control role.
pub(super) async fn check(client: &Client, policies: &PolicySet, survey: &Survey) -> Result<(), GuardError> {
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
