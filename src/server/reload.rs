//! Reloads by SIGHUP or from the console: reads settings and policies again, looks at new servers before sessions depend on them,
//! and applies all or nothing.
//!
//! Must never apply a part, or run twice concurrently.

use super::{prober, process};
use crate::config::{ConfigError, SettingChange, Settings, SettingsArguments};
use crate::listen::ListenError;
use crate::net::upstream;
use crate::state::look::{Look, ServerReport};
use crate::state::shared::Shared;
use crate::tls::TlsMaterial;
use fencegate_catalog::LostFence;
use fencegate_fence::Need;
use fencegate_fence::store::StoreError;
use fencegate_leader::etcd::{EtcdError, EtcdMembers};
use fencegate_policy::{FileError, PolicySet};
use fencegate_postgres::tls::{ControlConfig, TlsFileError};
use std::io;
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
    /// In the settings or files of etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The new control connection cannot be used.
    #[error("control: {0}")]
    Control(StoreError),
    /// The new control connection leads to another cluster.
    #[error("control: {0}")]
    ControlCluster(NewServersError),
    /// The new servers cannot be used.
    #[error("upstream: {0}")]
    Servers(#[from] NewServersError),
    /// A new address is not available.
    #[error(transparent)]
    Listen(#[from] ListenError),
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
pub async fn at_signal(shared: &Shared, signal: &mut Signal) {
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
    process::reloading();
    let reloaded = put_in_force(shared).await;
    process::reloaded();
    reloaded
}

/// Loads the same policies as a successor that has just started: otherwise sessions of this proxy could not be admitted
/// any more. Logs the result. Not cancel-safe, like [`reload`].
pub async fn follow_successor(shared: &Shared) {
    let _turn = shared.reloading.lock().await;
    put_in_force(shared).await.ok();
}

async fn put_in_force(shared: &Shared) -> Result<Reloaded, ReloadError> {
    let read = match read(shared).await {
        Ok(read) => keep_fences(shared, read).await,
        Err(faults) => Err(faults),
    };
    // Last, because nothing closes the new sockets if a later step fails.
    let read = match read {
        Ok(read) => open_addresses(shared, read).await,
        Err(faults) => Err(faults),
    };
    let Read { settings, changes, policies, encryption, etcd, looks } = match read {
        Ok(read) => read,
        Err(faults) => {
            shared.metrics.policy_reloads.with_label_values(&["failed"]).inc();
            shared.metrics.reload_successful.set(0);
            faults.iter().for_each(|error| tracing::error!(%error, "reload_failed"));
            return Err(ReloadError { faults });
        }
    };
    if changes.iter().any(|change| change.key == "max_connections") {
        process::provide_open_files(&settings);
    }
    let certificates = encryption.changed_since(&shared.encryption());
    shared.put_in_force(settings, encryption);
    if let Some(sockets) = shared.sockets.get() {
        sockets.put_in_force(&shared.settings()).await;
    }
    if let Some(looks) = looks {
        shared.reload_servers(looks);
    }
    let removes_etcd = etcd.is_none();
    if !removes_etcd {
        shared.put_etcd_in_force(etcd);
    }
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
    if removes_etcd {
        // After the policies that named elections.
        shared.put_etcd_in_force(None);
    }
    shared.metrics.policy_reloads.with_label_values(&["applied"]).inc();
    shared.metrics.reload_successful.set(1);
    tracing::info!(resources, "policies_loaded");
    Ok(Reloaded { settings: changes, certificates, policies: difference })
}

/// A configuration that was read but is not yet in force.
struct Read {
    settings: Settings,
    changes: Vec<SettingChange>,
    policies: PolicySet,
    encryption: TlsMaterial,
    etcd: Option<EtcdMembers>,
    /// A look at each new server; None if `upstream` has not changed.
    looks: Option<Vec<Look>>,
}

async fn read(shared: &Shared) -> Result<Read, Vec<ReloadFault>> {
    let (in_force, arguments) = (shared.settings(), shared.arguments.clone());
    let reading = tokio::task::spawn_blocking(move || read_files(&in_force, &arguments));
    let mut read = reading.await.unwrap_or_else(|error| Err(vec![error.into()]))?;
    can_control(shared, &read).await.map_err(|fault| vec![fault])?;
    if read.settings.upstream != shared.settings().upstream {
        let looks = look(shared, &read.settings, &read.encryption).await;
        read.looks = Some(looks.map_err(|error| vec![error.into()])?);
    }
    Ok(read)
}

fn read_files(in_force: &Settings, arguments: &SettingsArguments) -> Result<Read, Vec<ReloadFault>> {
    let loaded = Settings::load(arguments).map(|new| in_force.reloaded(new));
    // The other files are read even if the settings are invalid, so that all faults are reported at once.
    let settings = loaded.as_ref().map_or(in_force, |(settings, _)| settings);
    let policies = fencegate_policy::load(&settings.policies).map_err(faults);
    let policies = policies.and_then(|policies| match settings.check(&policies) {
        Ok(()) => Ok(policies),
        Err(error) => Err(vec![error.into()]),
    });
    let encryption = TlsMaterial::new(settings).map_err(faults);
    let etcd = settings.etcd.as_ref().map(EtcdMembers::read).transpose().map_err(|error| vec![error.into()]);
    match (loaded, policies, encryption, etcd) {
        (Ok((settings, changes)), Ok(policies), Ok(encryption), Ok(etcd)) => {
            Ok(Read { settings, changes, policies, encryption, etcd, looks: None })
        }
        (loaded, policies, encryption, etcd) => {
            let loaded = loaded.err().map(|error| vec![error.into()]);
            Err([loaded, policies.err(), encryption.err(), etcd.err()].into_iter().flatten().flatten().collect())
        }
    }
}

/// Tries a changed control connection before all databases depend on it. Cancel-safe.
async fn can_control(shared: &Shared, read: &Read) -> Result<(), ReloadFault> {
    let settings = &read.settings;
    if settings.control == shared.settings().control {
        return Ok(());
    }
    let control = ControlConfig::new(settings.control.clone(), read.encryption.control.clone());
    let control = control.with_database(settings.control_database());
    shared.can_use(&control, Need::Server).await.map_err(ReloadFault::Control)?;
    look_at_control(shared, &control).await.map_err(ReloadFault::ControlCluster)
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

async fn open_addresses(shared: &Shared, read: Read) -> Result<Read, Vec<ReloadFault>> {
    match shared.sockets.get() {
        Some(sockets) => sockets.open_missing(&read.settings).await.map(|()| read).map_err(|error| vec![error.into()]),
        None => Ok(read),
    }
}

fn faults<E: Into<ReloadFault>>(errors: Vec<E>) -> Vec<ReloadFault> {
    errors.into_iter().map(Into::into).collect()
}

/// Why the servers of a reload cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NewServersError {
    /// Sessions and tokens of one cluster mean nothing in another one.
    #[error(
        "{host} belongs to another cluster ({found}) than the servers in force ({in_force}): to move to another cluster, restart the proxy"
    )]
    OtherCluster {
        /// The server's address.
        host: String,
        /// Its system identifier.
        found: String,
        /// The system identifier of the servers in force.
        in_force: String,
    },
    /// The only server is an old primary.
    #[error("{host} is superseded: it is on timeline {timeline}, and the highest seen in its cluster is {highest}")]
    Superseded {
        /// The server's address.
        host: String,
        /// Its timeline.
        timeline: u32,
        /// The highest timeline.
        highest: u32,
    },
    /// No server of a list answers.
    #[error("no server can be used: {0}")]
    NoAnswer(String),
    /// The only server cannot be reached.
    #[error("{host} cannot be reached: {error}")]
    Unreachable {
        /// The server's address.
        host: String,
        /// The system's error.
        error: io::Error,
    },
}

/// Looks at each server of new settings. Cancel-safe.
///
/// # Errors
/// A server is of another cluster than those in force, or none can be used.
pub async fn look(
    shared: &Shared,
    settings: &Settings,
    encryption: &TlsMaterial,
) -> Result<Vec<Look>, NewServersError> {
    let control = ControlConfig::new(settings.control.clone(), encryption.control.clone());
    let control = control.with_database(settings.control_database());
    let (looks, in_force) = tokio::join!(prober::look_once(&control, settings), cluster_in_force(shared));
    let reports = || looks.iter().filter_map(|look| Some((&look.address, look.result.as_ref().ok()?)));
    let is_other = |report: &ServerReport| in_force.as_ref().is_some_and(|it| *it != report.system_identifier);
    if let Some((host, report)) = reports().find(|(_, report)| is_other(report)) {
        return Err(NewServersError::OtherCluster {
            host: host.to_string(),
            found: report.system_identifier.clone(),
            in_force: in_force.unwrap_or_default(),
        });
    }
    if let (false, Some((host, report))) = (settings.upstream.is_probed(), reports().next()) {
        let highest = shared.servers.table().highest(report);
        if report.timeline < highest {
            return Err(NewServersError::Superseded { host: host.to_string(), timeline: report.timeline, highest });
        }
    }
    if reports().next().is_some() {
        return Ok(looks);
    }
    let host = match settings.upstream.hosts.as_slice() {
        // Sessions use the only server even if the control role may not log in at this address.
        [host] if !settings.upstream.is_probed() => host,
        _ => return Err(NewServersError::NoAnswer(summary(&looks))),
    };
    match upstream::try_to_connect(settings, encryption, host).await {
        Ok(_) => Ok(looks),
        Err(error) => Err(NewServersError::Unreachable { host: host.to_string(), error }),
    }
}

/// Looks at the server of a new control connection, which can be used otherwise. Cancel-safe.
///
/// # Errors
/// It is of another cluster than the servers in force.
pub async fn look_at_control(shared: &Shared, control: &ControlConfig) -> Result<(), NewServersError> {
    match tokio::join!(prober::look_at_control(control), cluster_in_force(shared)) {
        (Ok(report), Some(in_force)) if report.system_identifier != in_force => Err(NewServersError::OtherCluster {
            host: "its server".to_owned(),
            found: report.system_identifier,
            in_force,
        }),
        _ => Ok(()),
    }
}

/// The system identifier of the servers in force; None if it is not known.
async fn cluster_in_force(shared: &Shared) -> Option<String> {
    if shared.servers.is_probed() {
        return shared.servers.table().cluster().map(ToOwned::to_owned);
    }
    let settings = shared.settings();
    let looks = prober::look_once(&shared.control_for(settings.control_database()), &settings).await;
    let reported = looks.into_iter().find_map(|look| Some(look.result.ok()?.system_identifier));
    let of_sessions = || {
        let sessions = shared.sessions.list();
        sessions.iter().rev().find_map(|it| Some(it.fence.identity.as_ref().ok()?.system_identifier.clone()))
    };
    reported.or_else(of_sessions)
}

fn summary(looks: &[Look]) -> String {
    let failure = |it: &Look| Some(format!("{}: {}", it.address, it.result.as_ref().err()?));
    looks.iter().filter_map(failure).collect::<Vec<_>>().join("; ")
}
