//! Settings of `fencegate proxy`. Precedence: flag, environment variable, file, default.
//!
//! Owns the meaning of the settings. Must never print a password.

mod address;
mod control;
mod error;
mod etcd;
mod limits;
mod origin;
mod sources;
mod table;
mod tls;
mod upstream;

pub use address::{Address, AddressError, http as http_address};
pub use control::{ConnectionStringError, connection};
pub use error::{ConfigError, SettingError};
pub use etcd::{EtcdAccess, EtcdArguments};
pub use limits::{Limits, duration};
pub use origin::{AllowedOrigin, Origin, OriginError};
pub use sources::{Flags, SettingsArguments, Shown};
pub use table::{ChoiceError, Fallback, Form, Reload, SETTINGS, Setting};
pub use tls::{ClientCertificates, ClientTls, Encryption, TlsVersion};
pub use upstream::{TargetSession, Upstream, UpstreamError};

use fencegate_leader::etcd::EtcdSettings;
use fencegate_policy::{PolicySet, percent_encoded};
use fencegate_postgres::ServerTls;
use sources::Texts;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use tokio_postgres::config::Host;

/// Validated settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Listen addresses; at least one.
    pub listen: Vec<Address>,
    /// The servers behind the proxy.
    pub upstream: Upstream,
    /// Encryption of sessions' server connections.
    pub upstream_tls: ServerTls,
    /// Settings of the control connection, with its user. The database is only a default.
    pub control: tokio_postgres::Config,
    /// Encryption of the control connection. `upstream_tls` supplies what the URL omits.
    pub control_tls: ServerTls,
    /// Directory of policies, relative to the working directory.
    pub policies: PathBuf,
    /// etcd settings; None: no policy may name an election.
    pub etcd: Option<EtcdSettings>,
    /// Roles that may use the console.
    pub admin_roles: Vec<String>,
    /// Origins of clients that the server may accept without authentication, in addition to the proxy's own machine.
    pub allow_unauthenticated: Vec<AllowedOrigin>,
    /// Addresses of load balancers that announce their clients with the PROXY protocol.
    pub proxy_protocol_from: Vec<AllowedOrigin>,
    /// TLS settings for clients; None: no TLS.
    pub tls: Option<ClientTls>,
    /// Address for metrics and health; always TCP.
    pub http: Option<Address>,
    /// Socket on which the proxy finds its predecessor and offers its sockets to its successor.
    pub take_over: Option<PathBuf>,
    /// Interval at which the proxy looks for changed files; None: only a signal or a command reloads.
    pub watch_files: Option<Duration>,
    /// Limits on clients and times.
    pub limits: Limits,
    /// Number of session threads.
    pub workers: NonZeroUsize,
    /// Log level for the start and end of sessions; None: not logged.
    pub log_sessions: Option<tracing::Level>,
    /// All settings without secrets, in the order of [`SETTINGS`].
    pub shown: Vec<Shown>,
}

/// Each address once.
fn once(mut addresses: Vec<Address>) -> Vec<Address> {
    let mut known = Vec::new();
    addresses.retain(|address| {
        let is_new = !known.contains(address);
        known.push(address.clone());
        is_new
    });
    addresses
}

/// A setting whose value in the file differs from the one at startup or the last reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// Key of the setting.
    pub key: &'static str,
    /// Previous value; empty if it was not set. Both values of a changed secret look alike.
    pub before: String,
    /// New value.
    pub after: String,
    /// True if the new value is in force. Otherwise it needs a restart.
    pub applied: bool,
}

impl Settings {
    /// Combines the arguments, the file that they name, and the defaults.
    ///
    /// # Errors
    /// The first setting that is missing or invalid.
    pub fn load(arguments: &SettingsArguments) -> Result<Self, ConfigError> {
        let file = match &arguments.config {
            Some(path) => Texts::read(path.as_ref())?,
            None => Texts::default(),
        };
        Self::read(Texts::join(&arguments.flags, file))
    }

    /// Applies the reloadable settings of `new`. Returns all differences.
    pub fn reloaded(&self, new: Self) -> (Self, Vec<SettingChange>) {
        let mut changes = Vec::new();
        let mut shown = self.shown.clone();
        for (now, new) in shown.iter_mut().zip(new.shown.clone()).filter(|(now, new)| now.given != new.given) {
            let applied = now.setting.reload == Reload::Applies;
            let (before, after) = (now.value.clone().unwrap_or_default(), new.value.clone().unwrap_or_default());
            changes.push(SettingChange { key: now.setting.key, before, after, applied });
            if applied {
                *now = new;
            }
        }
        let Self { workers, take_over, watch_files, .. } = self.clone();
        (Self { workers, take_over, watch_files, shown, ..new }, changes)
    }

    /// Database in the control URL, or one that every server has.
    pub fn control_database(&self) -> &str {
        self.control.get_dbname().unwrap_or("postgres")
    }

    /// Shell command that prepares a database for the control role.
    pub fn init_command(&self, database: &str) -> String {
        const KEPT: &[u8] = b"-._:[]";
        let host = match self.control.get_hosts().first() {
            Some(Host::Tcp(name)) if name.contains(':') => format!("[{name}]"),
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(directory)) => directory.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = self.control.get_ports().first().map(|port| format!(":{port}")).unwrap_or_default();
        let role = self.control.get_user().unwrap_or_default();
        let role = match role.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)) {
            true => role.to_owned(),
            false => format!("'{}'", role.replace('\'', "'\\''")),
        };
        format!(
            "fencegate init --control postgres://postgres@{}{port}/{} --role {role}",
            percent_encoded(&host, KEPT),
            percent_encoded(database, KEPT)
        )
    }

    /// Checks that these settings support the policies.
    ///
    /// # Errors
    /// A policy names an election, but etcd is not set.
    pub fn check(&self, policies: &PolicySet) -> Result<(), ConfigError> {
        let mut led = policies.resources.iter().filter(|it| it.election().is_some() || it.has_elections_of_keys());
        match led.next() {
            Some(it) if self.etcd.is_none() => {
                let election = it.issuer_shown().unwrap_or_default();
                Err(ConfigError::ElectionWithoutEtcd { resource: it.name.clone(), election })
            }
            _ => Ok(()),
        }
    }

    fn read(mut texts: Texts) -> Result<Self, ConfigError> {
        texts.are_complete()?;
        let policies = texts.require("policies", |text| Ok::<_, SettingError>(text.into()))?;
        let upstream_tls = tls::server(&texts)?;
        let (control, control_tls) = texts.require("control", |text| control::read(text, &upstream_tls))?;
        texts.fall_back("admin_roles", control.get_user().unwrap_or_default());
        let tls = tls::client(&texts)?;
        texts.fall_back("workers", &limits::usual_workers().to_string());
        texts.fall_back("tls", if tls.is_some() { "allow" } else { "off" });
        Ok(Self {
            listen: once(texts.read_all("listen", address::listen)?),
            upstream: texts.require("upstream", upstream::read)?,
            upstream_tls,
            control,
            control_tls,
            policies,
            etcd: etcd::read(&texts)?,
            admin_roles: texts.read_all("admin_roles", |text| Ok::<_, SettingError>(text.to_owned()))?,
            allow_unauthenticated: texts.read_all("allow_unauthenticated", origin::allowed)?,
            proxy_protocol_from: texts.read_all("proxy_protocol_from", origin::network)?,
            tls,
            http: texts.read_one("http", address::http)?,
            take_over: texts.read_one("take_over", address::socket_file)?,
            watch_files: Some(texts.require("watch_files", limits::duration)?).filter(|it| !it.is_zero()),
            limits: limits::read(&texts)?,
            workers: texts.require("workers", limits::workers)?,
            log_sessions: texts.require("log_sessions", table::level)?,
            shown: texts.shown(),
        })
    }
}

#[cfg(test)]
mod tests;
