//! Reloads by SIGHUP or from the console: reads settings and policies again, and applies all or nothing.
//!
//! Must never apply a part, or run twice concurrently.

use super::{files, systemd};
use crate::config::{ConfigError, SettingChange, Settings};
use crate::state::encryption::NewCertificates;
use crate::state::shared::Shared;
use fencegate_catalog::LostFence;
use fencegate_policy::{FileError, PolicySet};
use fencegate_postgres::tls::TlsFileError;
use tokio::signal::unix::Signal;

/// Changes made by a reload.
#[derive(Debug)]
pub struct Reloaded {
    /// Changed settings, in the order of the table.
    pub settings: Vec<SettingChange>,
    /// Settings whose certificate or key file has changed.
    pub certificates: Vec<String>,
    /// Changed policies.
    pub policies: Vec<fencegate_policy::PolicyChange>,
}

/// Why nothing was reloaded.
#[derive(Debug, thiserror::Error)]
#[error("{}", faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ReloadError {
    /// All faults; at least one.
    pub faults: Vec<ReloadFault>,
}

/// A fault in one line, with file, line and column if it is in a file.
#[derive(Debug, thiserror::Error)]
pub enum ReloadFault {
    /// In the settings.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    /// In the certificates.
    #[error(transparent)]
    Certificates(#[from] TlsFileError),
    /// In the policies.
    #[error(transparent)]
    Policies(#[from] FileError),
    /// An enforced resource would be left without any existing table.
    #[error("{0}")]
    Fence(String),
    /// Reading failed because of a bug in this program.
    #[error("reading the settings and policies failed: {0}")]
    Reading(#[from] tokio::task::JoinError),
}

/// Reloads at each signal, forever. Not cancel-safe, like [`reload`].
pub async fn at_signal(shared: &Shared, mut signal: Signal) {
    while signal.recv().await.is_some() {
        // `reload` logs its result.
        reload(shared).await.ok();
    }
}

/// Reads settings and policies again, applies them, and logs the changes. Concurrent reloads wait. Not cancel-safe:
/// some databases may have the new policies and others not.
///
/// # Errors
/// All faults, which are also logged. The previous configuration stays in force.
pub async fn reload(shared: &Shared) -> Result<Reloaded, ReloadError> {
    let _turn = shared.reloading.lock().await;
    systemd::reloading();
    let reloaded = put_in_force(shared).await;
    systemd::ready();
    reloaded
}

async fn put_in_force(shared: &Shared) -> Result<Reloaded, ReloadError> {
    let read = match read(shared).await {
        Ok(read) => keep_fences(shared, read).await,
        Err(faults) => Err(faults),
    };
    let Read { settings, policies, certificates } = match read {
        Ok(read) => read,
        Err(faults) => {
            shared.metrics.policy_reloads.with_label_values(&["failed"]).inc();
            shared.metrics.reload_successful.set(0);
            faults.iter().for_each(|error| tracing::error!(%error, "reload_failed"));
            return Err(ReloadError { faults });
        }
    };
    let (settings, changes) = shared.settings().reloaded(settings);
    if changes.iter().any(|change| change.key == "max_connections") {
        files::provide(&settings);
    }
    shared.set_settings(settings);
    let certificates = shared.encryption.put_in_force(certificates);
    for SettingChange { key, before, after, applied } in &changes {
        tracing::info!(key, before, after, applied, "setting_changed");
    }
    for key in &certificates {
        tracing::info!(key, "certificate_changed");
    }
    let difference = shared.policies.borrow().difference(&policies);
    for fencegate_policy::PolicyChange { resource, what, before, after } in &difference {
        tracing::info!(resource, what, before, after, "policy_changed");
    }
    let resources = policies.resources.len();
    shared.apply(policies).await;
    shared.metrics.policy_reloads.with_label_values(&["applied"]).inc();
    shared.metrics.reload_successful.set(1);
    tracing::info!(resources, "policies_loaded");
    Ok(Reloaded { settings: changes, certificates, policies: difference })
}

/// A configuration that was read but is not yet in force.
struct Read {
    settings: Settings,
    policies: PolicySet,
    certificates: NewCertificates,
}

async fn read(shared: &Shared) -> Result<Read, Vec<ReloadFault>> {
    let (in_force, arguments, encryption) = (shared.settings(), shared.arguments.clone(), shared.encryption.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let settings = Settings::load(&arguments).map_err(|error| vec![error.into()]);
        // A reload does not change settings such as the directory of policies and the paths of certificates.
        let policies = fencegate_policy::load(&in_force.policies).map_err(faults);
        let policies = policies.and_then(|policies| match in_force.check(&policies) {
            Ok(()) => Ok(policies),
            Err(error) => Err(vec![error.into()]),
        });
        let certificates = encryption.read_anew().map_err(faults);
        match (settings, policies, certificates) {
            (Ok(settings), Ok(policies), Ok(certificates)) => Ok(Read { settings, policies, certificates }),
            (settings, policies, certificates) => {
                Err([settings.err(), policies.err(), certificates.err()].into_iter().flatten().flatten().collect())
            }
        }
    });
    reading.await.unwrap_or_else(|error| Err(vec![error.into()]))
}

/// Refuses policies that would remove the fence of a resource that they still name. Usually a name is misspelled.
async fn keep_fences(shared: &Shared, read: Read) -> Result<Read, Vec<ReloadFault>> {
    let lost = shared.lost_fences(&read.policies).await;
    let fault = |LostFence { resource, table, reason }| {
        let message = format!(
            "{reason} (resource {resource} must keep an existing table; to remove its fence, remove the table or the resource from the policies)"
        );
        match table.and_then(|table| read.policies.fault_at(&table, &message)) {
            Some(error) => ReloadFault::Policies(error),
            None => ReloadFault::Fence(message),
        }
    };
    let faults: Vec<_> = lost.into_iter().map(fault).collect();
    if faults.is_empty() { Ok(read) } else { Err(faults) }
}

fn faults<E: Into<ReloadFault>>(errors: Vec<E>) -> Vec<ReloadFault> {
    errors.into_iter().map(Into::into).collect()
}
