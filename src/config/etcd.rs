//! The settings of etcd, as flags and environment variables. Errors name the one that was given.
//!
//! Must never print a password.

use super::sources::{GivenBy, Texts};
use super::{ConfigError, SettingError};
use crate::etcd::{EtcdPassword, EtcdSettings};
use std::ffi::OsString;
use std::path::PathBuf;

/// The flags with which every command that talks to etcd is told how.
#[derive(clap::Args, Clone, Default)]
pub struct EtcdArguments {
    /// The members of etcd: http://host:2379 or https://host:2379, separated by commas
    #[arg(long, env = "FENCEGATE_ETCD", value_name = "URL,…", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// How they are spoken to
    #[command(flatten)]
    pub access: EtcdAccess,
}

/// Those of them that say how a member is spoken to.
#[derive(clap::Args, Clone, Default)]
pub struct EtcdAccess {
    /// The certificate authority that etcd's certificates are checked against, PEM [default: the system's]
    #[arg(long, env = "FENCEGATE_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// Our certificate, PEM, where etcd asks for one
    #[arg(long, env = "FENCEGATE_ETCD_CERT", value_name = "FILE")]
    pub etcd_cert: Option<PathBuf>,
    /// The key of that certificate, PEM
    #[arg(long, env = "FENCEGATE_ETCD_KEY", value_name = "FILE")]
    pub etcd_key: Option<PathBuf>,
    /// The user of etcd, where it asks for one
    #[arg(long, env = "FENCEGATE_ETCD_USER", value_name = "NAME")]
    pub etcd_user: Option<String>,
    /// Its password; better in the environment, where other users do not see it
    #[arg(long, env = "FENCEGATE_ETCD_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    pub etcd_password: Option<String>,
    /// In place of the password: a file that has it, which is read for each login
    #[arg(long, env = "FENCEGATE_ETCD_PASSWORD_FILE", value_name = "FILE")]
    pub etcd_password_file: Option<PathBuf>,
}

/// A flag of etcd that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag} {error}")]
pub struct EtcdFlagError {
    flag: &'static str,
    #[source]
    error: SettingError,
}

impl EtcdArguments {
    /// The variables that say the same to another process of this program; without a value: it must not be there.
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

    /// The settings; None if no flag is given.
    ///
    /// # Errors
    /// The first flag that cannot be used.
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

/// The settings; None if there are none.
/// Errors: the first setting that cannot be used.
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
    use crate::etcd::EtcdSettingsError;

    fn arguments(urls: &[&str]) -> EtcdArguments {
        EtcdArguments { etcd: urls.iter().map(|&url| url.into()).collect(), ..EtcdArguments::default() }
    }

    #[test]
    fn members_are_read() {
        let settings = arguments(&["http://a:2379/", " http://b:2379"]).settings().unwrap().unwrap();
        assert_eq!(settings.members, ["http://a:2379", "http://b:2379"]);
        assert_eq!(arguments(&[]).settings(), Ok(None));
    }

    #[test]
    fn what_cannot_work_is_told() {
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
