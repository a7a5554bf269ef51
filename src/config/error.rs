//! Errors of settings.
//!
//! Owns their messages. Must never print a password.

use super::address::AddressError;
use super::control::ConnectionStringError;
use super::origin::OriginError;
use super::table::ChoiceError;
use super::table::variable;
use super::upstream::UpstreamError;
use fencegate_leader::etcd::EtcdSettingsError;
use fencegate_policy::yaml::FileError;
use fencegate_postgres::RootCertificateError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Why the settings cannot be used. The message is one line that names the necessary change.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read the file: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The file has an error.
    #[error(transparent)]
    InFile(#[from] FileError),
    /// A flag or an environment variable cannot be used.
    #[error("--{flag} or {variable}: {error}", flag = key.replace('_', "-"), variable = variable(key))]
    Argument {
        /// The setting.
        key: &'static str,
        /// The cause.
        #[source]
        error: SettingError,
    },
    /// At least one setting without a default is not set.
    #[error("{}", missing(.0))]
    Missing(Vec<&'static str>),
    /// A policy names an election, but etcd is not set.
    #[error(
        "resource `{resource}` names the election {election}: set --etcd, FENCEGATE_ETCD or `etcd:` in the --config file"
    )]
    ElectionWithoutEtcd {
        /// The resource.
        resource: String,
        /// The election of the resource.
        election: String,
    },
}

fn missing(keys: &[&'static str]) -> String {
    let line = |key: &&'static str| {
        format!(
            "`{key}` is not set: set --{}, {} or `{key}:` in the --config file",
            key.replace('_', "-"),
            variable(key)
        )
    };
    keys.iter().map(line).collect::<Vec<_>>().join("\nfencegate: ")
}

/// Why the value of a setting cannot be used. The message follows the setting's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SettingError {
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error("`{text}` is not a number from 1 to {most}")]
    NotANumber { text: String, most: usize },
    #[error("`{0}` is not a time: write 500ms, 60s, 5min or 1h")]
    NotATime(String),
    #[error("`{text}` is more than {} s", longest.as_secs())]
    TooLong { text: String, longest: Duration },
    #[error("`{0}` is less than a second")]
    UnderASecond(String),
    #[error("must be greater than 0")]
    Zero,
    #[error(transparent)]
    Origin(#[from] OriginError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    ConnectionString(#[from] ConnectionStringError),
    #[error(transparent)]
    RootCertificate(#[from] RootCertificateError),
    /// The setting has no effect without others.
    #[error("needs {settings}, {role}")]
    Needs { settings: &'static str, role: &'static str },
    #[error("needs upstream_sslrootcert, which {0}")]
    NeedsRootCertificate(#[source] RootCertificateError),
    #[error("has no effect: set tls_client_certificates to optional or required")]
    UnusedAuthority,
    #[error("cannot be combined with the password")]
    GivenBesidePassword,
    #[error(transparent)]
    Etcd(#[from] EtcdSettingsError),
}
