//! How to reach etcd: members, TLS files and credentials, as flags and environment variables.
//!
//! Must never print a password.

use std::fmt;
use std::path::PathBuf;

/// The flags with which every command that talks to etcd is told how.
#[derive(clap::Args, Clone, Default)]
pub struct EtcdArguments {
    /// The members of etcd: http://host:2379 or https://host:2379, separated by commas
    #[arg(long, env = "FENCEGATE_ETCD", value_name = "URL,…", value_delimiter = ',')]
    pub etcd: Vec<String>,
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
}

/// How to reach etcd, checked for what can be checked without files or network.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// At least one; all http or all https.
    pub members: Vec<String>,
    /// PEM; None: the system's authorities.
    pub ca: Option<PathBuf>,
    /// Certificate and key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name and password.
    pub credentials: Option<(String, String)>,
}

impl fmt::Debug for EtcdSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.credentials.as_ref().map(|(user, _)| user);
        formatter.debug_struct("EtcdSettings").field("members", &self.members).field("user", &user).finish()
    }
}

impl EtcdArguments {
    /// The settings, where `--etcd` is given.
    ///
    /// # Errors
    /// The flag, without its dashes, and what to change.
    pub fn settings(self) -> Result<Option<EtcdSettings>, (&'static str, String)> {
        let secured = self.etcd_ca.is_some() || self.etcd_cert.is_some() || self.etcd_key.is_some();
        let credentials = match (self.etcd_user, self.etcd_password) {
            (None, None) => None,
            (Some(user), Some(password)) => Some((user, password)),
            (Some(_), None) => return Err(("etcd-password", "is missing beside the user".into())),
            (None, Some(_)) => return Err(("etcd-user", "is missing beside the password".into())),
        };
        let identity = match (self.etcd_cert, self.etcd_key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => return Err(("etcd-key", "is missing beside the certificate".into())),
            (None, Some(_)) => return Err(("etcd-cert", "is missing beside the key".into())),
        };
        let members: Vec<String> = self.etcd.iter().map(|url| url.trim().trim_end_matches('/').to_owned()).collect();
        if members.is_empty() {
            let given = secured || credentials.is_some();
            return if given { Err(("etcd", "is missing beside its other settings".into())) } else { Ok(None) };
        }
        check(&members, secured).map_err(|message| ("etcd", message))?;
        Ok(Some(EtcdSettings { members, ca: self.etcd_ca, identity, credentials }))
    }
}

fn check(members: &[String], secured: bool) -> Result<(), String> {
    for (index, url) in members.iter().enumerate() {
        if url.contains('@') {
            // Not repeated: a password may be in it.
            return Err("names no member of etcd: give user and password apart from the URL".into());
        }
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        if rest.is_none_or(|rest| rest.is_empty() || rest.contains(['/', '?', '#', ' '])) {
            return Err(format!("`{url}` is no member of etcd: write http://host:2379 or https://host:2379"));
        }
        if members[..index].contains(url) {
            return Err(format!("names {url} twice"));
        }
    }
    let encrypted = members.iter().filter(|url| url.starts_with("https://")).count();
    if encrypted != 0 && encrypted != members.len() {
        return Err("mixes http and https: a password or token must not go out in the clear".into());
    }
    if secured && encrypted == 0 {
        return Err("has TLS files beside http:// members: write https://".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (urls, message) in [
            (&["a:2379"][..], "no member"),
            (&["http://"], "no member"),
            (&["http://user:secret@a:2379"], "no member"),
            (&["http://a:1", "http://a:1"], "twice"),
            (&["http://a:1", "https://b:1"], "mixes"),
        ] {
            let (flag, text) = arguments(urls).settings().unwrap_err();
            assert!(flag == "etcd" && text.contains(message) && !text.contains("secret"), "{urls:?}: {text}");
        }
        let half = EtcdArguments { etcd_user: Some("u".into()), ..arguments(&["http://a:1"]) };
        assert_eq!(half.settings().unwrap_err().0, "etcd-password");
        let plain = EtcdArguments { etcd_ca: Some("ca".into()), ..arguments(&["http://a:1"]) };
        assert!(plain.settings().unwrap_err().1.contains("https://"));
        let alone = EtcdArguments { etcd_ca: Some("ca".into()), ..arguments(&[]) };
        assert!(alone.settings().unwrap_err().1.contains("missing"));
    }

    #[test]
    fn a_password_is_not_printed() {
        let given = EtcdArguments {
            etcd_user: Some("u".into()),
            etcd_password: Some("secret".into()),
            ..arguments(&["http://a:1"])
        };
        assert!(!format!("{:?}", given.settings()).contains("secret"));
    }
}
