//! The settings of etcd, for every command that uses it.
//!
//! Must never print a password.

use super::sources::{Flags, Texts};
use super::{ConfigError, SettingError};
use fencegate_leader::etcd::{EtcdPassword, EtcdSettings};
use std::ffi::OsString;

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
pub type EtcdAccess = Flags<true>;

/// The variable of each key.
const VARIABLES: [(&str, &str); 7] = [
    ("etcd", "FENCEGATE_ETCD"),
    ("etcd_ca", "FENCEGATE_ETCD_CA"),
    ("etcd_cert", "FENCEGATE_ETCD_CERT"),
    ("etcd_key", "FENCEGATE_ETCD_KEY"),
    ("etcd_user", "FENCEGATE_ETCD_USER"),
    ("etcd_password", "FENCEGATE_ETCD_PASSWORD"),
    ("etcd_password_file", "FENCEGATE_ETCD_PASSWORD_FILE"),
];

impl EtcdArguments {
    /// Environment that passes these settings to a child process. None: the variable must not be set.
    pub fn variables(&self) -> Vec<(&'static str, Option<OsString>)> {
        let texts = self.texts();
        let text = |key| texts.several(key).iter().map(|given| given.text.as_str()).collect::<Vec<_>>().join(",");
        let variable = |(key, variable)| (variable, Some(text(key)).filter(|text| !text.is_empty()).map(Into::into));
        VARIABLES.into_iter().map(variable).collect()
    }

    /// The settings; None if no flag is set.
    ///
    /// # Errors
    /// The first invalid flag.
    pub fn settings(&self) -> Result<Option<EtcdSettings>, ConfigError> {
        read(&self.texts())
    }

    fn texts(&self) -> Texts {
        Texts::join(&self.access.clone().with("etcd", &self.etcd), Texts::default())
    }
}

/// The settings; None if no etcd setting is set.
/// Errors: the first invalid setting.
pub(super) fn read(texts: &Texts) -> Result<Option<EtcdSettings>, ConfigError> {
    let text = |key| texts.one(key).map(|given| given.text.clone());
    // The error names the setting that is there, with its place in the file.
    let needs = |key, settings, role| Err(texts.fault(key, SettingError::Needs { settings, role }));
    let password_key = if texts.one("etcd_password").is_some() { "etcd_password" } else { "etcd_password_file" };
    let password = match (text("etcd_password"), text("etcd_password_file")) {
        (None, None) => None,
        (Some(password), None) => Some(EtcdPassword::Given(password)),
        (None, Some(file)) => Some(EtcdPassword::File(file.into())),
        (Some(_), Some(_)) => return Err(texts.fault("etcd_password_file", SettingError::GivenBesidePassword)),
    };
    let credentials = match (text("etcd_user"), password) {
        (None, None) => None,
        (Some(user), Some(password)) => Some((user, password)),
        (Some(_), None) => return needs("etcd_user", "etcd_password or etcd_password_file", "its password"),
        (None, Some(_)) => return needs(password_key, "etcd_user", "the user of the password"),
    };
    let identity = match (text("etcd_cert"), text("etcd_key")) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        (Some(_), None) => return needs("etcd_cert", "etcd_key", "its key"),
        (None, Some(_)) => return needs("etcd_key", "etcd_cert", "its certificate"),
    };
    let members = texts.several("etcd").iter().map(|it| it.text.trim().trim_end_matches('/').to_owned()).collect();
    let settings = EtcdSettings { members, ca: text("etcd_ca").map(Into::into), identity, credentials };
    if settings == EtcdSettings::default() {
        return Ok(None);
    }
    if settings.members.is_empty() {
        let given = VARIABLES.iter().map(|(key, _)| *key).find(|key| texts.one(key).is_some());
        return needs(given.unwrap_or("etcd"), "etcd", "the members");
    }
    settings.check().map_err(|error| texts.fault("etcd", error))?;
    Ok(Some(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(urls: &[&str], access: &[(&'static str, &str)]) -> Result<Option<EtcdSettings>, ConfigError> {
        let with = |flags: EtcdAccess, (key, text): &(&'static str, &str)| flags.with(key, &[(*text).to_owned()]);
        let access = access.iter().fold(EtcdAccess::default(), with);
        let arguments = EtcdArguments { etcd: urls.iter().map(|&url| url.into()).collect(), access };
        arguments.settings()
    }

    #[test]
    fn etcd_members_are_parsed() {
        let parsed = settings(&["http://a:2379/", " http://b:2379"], &[]).unwrap().unwrap();
        assert_eq!(parsed.members, ["http://a:2379", "http://b:2379"]);
        assert_eq!(settings(&[], &[]).unwrap(), None);
    }

    #[test]
    fn invalid_settings_are_reported() {
        let plain = ["http://a:1"];
        for (urls, access, message) in [
            (&["http://a:1", "https://b:1"][..], &[][..], "--etcd or FENCEGATE_ETCD: mixes http and https"),
            (
                &plain,
                &[("etcd_user", "u")],
                "--etcd-user or FENCEGATE_ETCD_USER: needs etcd_password or etcd_password_file, its password",
            ),
            (
                &plain,
                &[("etcd_password_file", "f")],
                "--etcd-password-file or FENCEGATE_ETCD_PASSWORD_FILE: needs etcd_user, the user of the password",
            ),
            (
                &plain,
                &[("etcd_user", "u"), ("etcd_password", "secret"), ("etcd_password_file", "f")],
                "--etcd-password-file or FENCEGATE_ETCD_PASSWORD_FILE: cannot be combined with the password",
            ),
            (&plain, &[("etcd_cert", "c")], "--etcd-cert or FENCEGATE_ETCD_CERT: needs etcd_key, its key"),
            (&plain, &[("etcd_ca", "ca")], "--etcd or FENCEGATE_ETCD: has TLS files but http:// members"),
            (&[], &[("etcd_ca", "ca")], "--etcd-ca or FENCEGATE_ETCD_CA: needs etcd, the members"),
        ] {
            let error = settings(urls, access).unwrap_err().to_string();
            assert!(error.starts_with(message) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_child_process_receives_the_settings_as_variables() {
        let access = EtcdAccess::default().with("etcd_ca", &["ca".into()]).with("etcd_user", &[String::new()]);
        let arguments = EtcdArguments { etcd: vec!["http://a:1".into(), "http://b:1".into()], access };
        let mut variables = arguments.variables();
        variables.retain(|(_, text)| text.is_some());
        let variable = |name, text: &str| (name, Some(text.into()));
        let expected = [variable("FENCEGATE_ETCD", "http://a:1,http://b:1"), variable("FENCEGATE_ETCD_CA", "ca")];
        assert_eq!(variables, expected);
    }
}
