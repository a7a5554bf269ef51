//! The etcd settings, as flags and environment variables. Errors name the one that was used.
//!
//! Must never print a password.

use super::sources::{GivenBy, Texts};
use super::{ConfigError, SettingError};
use fencegate_leader::etcd::{EtcdPassword, EtcdSettings};
use std::ffi::OsString;
use std::path::PathBuf;

/// The etcd flags of every command that uses etcd.
#[derive(clap::Args, Clone, Default)]
pub struct EtcdArguments {
    /// etcd members: http://host:2379 or https://host:2379, separated by commas
    #[arg(long, env = "FENCEGATE_ETCD", value_name = "URL,…", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// How to connect to the members
    #[command(flatten)]
    pub access: EtcdAccess,
}

/// How to connect to a member.
#[derive(clap::Args, Clone, Default)]
pub struct EtcdAccess {
    /// Certificate authority of etcd's certificates, PEM [default: the system's]
    #[arg(long, env = "FENCEGATE_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// Client certificate, PEM, if etcd requires one
    #[arg(long, env = "FENCEGATE_ETCD_CERT", value_name = "FILE")]
    pub etcd_cert: Option<PathBuf>,
    /// Key of the client certificate, PEM
    #[arg(long, env = "FENCEGATE_ETCD_KEY", value_name = "FILE")]
    pub etcd_key: Option<PathBuf>,
    /// etcd user, if etcd requires authentication
    #[arg(long, env = "FENCEGATE_ETCD_USER", value_name = "NAME")]
    pub etcd_user: Option<String>,
    /// Password of the etcd user; prefer the environment variable, which other users cannot see
    #[arg(long, env = "FENCEGATE_ETCD_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    pub etcd_password: Option<String>,
    /// File with the password, instead of --etcd-password; read at each login
    #[arg(long, env = "FENCEGATE_ETCD_PASSWORD_FILE", value_name = "FILE")]
    pub etcd_password_file: Option<PathBuf>,
}

/// An invalid etcd flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag} {error}")]
pub struct EtcdFlagError {
    flag: &'static str,
    #[source]
    error: SettingError,
}

impl EtcdArguments {
    /// Environment that passes these settings to a child process. None: the variable must not be set.
    pub fn variables(&self) -> Vec<(&'static str, Option<OsString>)> {
        let EtcdArguments { etcd, access } = self;
        let members = (!etcd.is_empty()).then(|| etcd.join(","));
        let file = |file: &Option<PathBuf>| file.as_ref().map(|file| file.as_os_str().to_owned());
        vec![
            ("FENCEGATE_ETCD", members.map(Into::into)),
            ("FENCEGATE_ETCD_CA", file(&access.etcd_ca)),
            ("FENCEGATE_ETCD_CERT", file(&access.etcd_cert)),
            ("FENCEGATE_ETCD_KEY", file(&access.etcd_key)),
            ("FENCEGATE_ETCD_USER", access.etcd_user.clone().map(Into::into)),
            ("FENCEGATE_ETCD_PASSWORD", access.etcd_password.clone().map(Into::into)),
            ("FENCEGATE_ETCD_PASSWORD_FILE", file(&access.etcd_password_file)),
        ]
    }

    /// The settings; None if no flag is set.
    ///
    /// # Errors
    /// The first invalid flag.
    pub fn settings(self) -> Result<Option<EtcdSettings>, EtcdFlagError> {
        let fault = |flag, error| Err(EtcdFlagError { flag, error });
        let missing = |flag, other| fault(flag, SettingError::MissingBeside(other));
        let EtcdArguments { etcd, access } = self;
        let password = match (access.etcd_password, access.etcd_password_file) {
            (None, None) => None,
            (Some(password), None) => Some(EtcdPassword::Given(password)),
            (None, Some(file)) => Some(EtcdPassword::File(file)),
            (Some(_), Some(_)) => return fault("etcd-password-file", SettingError::GivenBesidePassword),
        };
        let credentials = match (access.etcd_user, password) {
            (None, None) => None,
            (Some(user), Some(password)) => Some((user, password)),
            (Some(_), None) => return missing("etcd-password", "the user"),
            (None, Some(_)) => return missing("etcd-user", "the password"),
        };
        let identity = match (access.etcd_cert, access.etcd_key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => return missing("etcd-key", "the certificate"),
            (None, Some(_)) => return missing("etcd-cert", "the key"),
        };
        let members: Vec<String> = etcd.iter().map(|url| url.trim().trim_end_matches('/').to_owned()).collect();
        let settings = EtcdSettings { members, ca: access.etcd_ca, identity, credentials };
        if settings == EtcdSettings::default() {
            return Ok(None);
        }
        if settings.members.is_empty() {
            return missing("etcd", "its other settings");
        }
        match settings.check() {
            Ok(()) => Ok(Some(settings)),
            Err(error) => fault("etcd", error.into()),
        }
    }
}

/// The settings; None if no etcd setting is set.
/// Errors: the first invalid setting.
pub(super) fn read(texts: &Texts) -> Result<Option<EtcdSettings>, ConfigError> {
    let text = |key| texts.one(key).map(|given| given.text.clone());
    let access = EtcdAccess {
        etcd_ca: text("etcd_ca").map(Into::into),
        etcd_cert: text("etcd_cert").map(Into::into),
        etcd_key: text("etcd_key").map(Into::into),
        etcd_user: text("etcd_user"),
        etcd_password: text("etcd_password"),
        etcd_password_file: text("etcd_password_file").map(Into::into),
    };
    let etcd = texts.several("etcd").iter().map(|given| given.text.clone()).collect();
    let arguments = EtcdArguments { etcd, access };
    arguments.settings().map_err(|EtcdFlagError { flag, error }| {
        let of_flag = |key: &&str| key.replace('_', "-") == flag;
        let given = KEYS.iter().find(|key| of_flag(key)).and_then(|key| texts.one(key));
        given.map_or(&GivenBy::Argument(flag), |given| &given.source).fault(error)
    })
}

const KEYS: [&str; 7] =
    ["etcd", "etcd_ca", "etcd_cert", "etcd_key", "etcd_user", "etcd_password", "etcd_password_file"];

#[cfg(test)]
mod tests {
    use super::*;
    use fencegate_leader::etcd::EtcdSettingsError;

    fn arguments(urls: &[&str]) -> EtcdArguments {
        EtcdArguments { etcd: urls.iter().map(|&url| url.into()).collect(), ..EtcdArguments::default() }
    }

    #[test]
    fn etcd_members_are_parsed() {
        let settings = arguments(&["http://a:2379/", " http://b:2379"]).settings().unwrap().unwrap();
        assert_eq!(settings.members, ["http://a:2379", "http://b:2379"]);
        assert_eq!(arguments(&[]).settings(), Ok(None));
    }

    #[test]
    fn invalid_settings_are_reported() {
        let fault = |flag, error| Err(EtcdFlagError { flag, error });
        let missing = |flag, other| fault(flag, SettingError::MissingBeside(other));
        let mixed = arguments(&["http://a:1", "https://b:1"]).settings();
        assert_eq!(mixed, fault("etcd", EtcdSettingsError::MixedSchemes.into()));
        let with = |access, urls| EtcdArguments { access, ..arguments(urls) };
        let half = with(EtcdAccess { etcd_user: Some("u".into()), ..EtcdAccess::default() }, &["http://a:1"]);
        assert_eq!(half.settings(), missing("etcd-password", "the user"));
        let (etcd_password, etcd_password_file) = (Some("p".into()), Some("f".into()));
        let both =
            EtcdAccess { etcd_user: Some("u".into()), etcd_password, etcd_password_file, ..EtcdAccess::default() };
        let both = with(both, &["http://a:1"]).settings();
        assert_eq!(both, fault("etcd-password-file", SettingError::GivenBesidePassword));
        let ca = EtcdAccess { etcd_ca: Some("ca".into()), ..EtcdAccess::default() };
        let plain = with(ca.clone(), &["http://a:1"]);
        assert_eq!(plain.settings(), fault("etcd", EtcdSettingsError::TlsWithoutHttps.into()));
        assert_eq!(with(ca, &[]).settings(), missing("etcd", "its other settings"));
    }
}
