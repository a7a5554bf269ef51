//! The etcd client for leaders and for the authority over their tokens.
//!
//! Owns how to reach etcd (members, TLS files, credentials, time limits) and the layout of an election's keys. Must never wait
//! for a silent member, or trust a member without its cluster: every read is linearizable, and every watch needs a
//! quorum. Must never print a password.

mod connection;
mod election;

pub use connection::{Etcd, EtcdError, EtcdMembers};
pub(crate) use election::{EtcdObserver, Watch};
pub use election::{candidates, leader, leaders};

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// Maximum number of bytes read from a password file.
const LONGEST_PASSWORD: u64 = 64 * 1024;

/// Connection settings of etcd.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdSettings {
    /// Members, as http://host:2379 or https://host:2379; at least one, and all with the same scheme.
    pub members: Vec<String>,
    /// Certificate authorities, PEM; None: the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate and key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name and password.
    pub credentials: Option<(String, EtcdPassword)>,
}

/// Password of an etcd user.
#[derive(Clone, PartialEq, Eq)]
pub enum EtcdPassword {
    /// The password.
    Given(String),
    /// A file with the password. It is read at each login, so that the password can change.
    File(PathBuf),
}

/// Why settings cannot be used. The messages follow the name of the setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum EtcdSettingsError {
    #[error("has no etcd member")]
    NoMember,
    /// The message does not repeat the URL, which may contain a password.
    #[error("must not contain credentials: set the etcd user and password separately")]
    CredentialsInUrl,
    #[error("`{0}` is not an etcd member: write http://host:2379 or https://host:2379")]
    NotAMember(String),
    #[error("contains {0} twice")]
    Repeated(String),
    #[error("mixes http and https: passwords and tokens must not be sent in clear text")]
    MixedSchemes,
    #[error("has TLS files but http:// members: write https://")]
    TlsWithoutHttps,
}

impl EtcdPassword {
    /// Reads the current password, without the final line break of a file.
    ///
    /// # Errors
    /// The file, and why it cannot be read.
    fn read(&self) -> Result<String, (PathBuf, io::Error)> {
        let path = match self {
            EtcdPassword::Given(password) => return Ok(password.clone()),
            EtcdPassword::File(path) => path,
        };
        let mut password = String::new();
        let read = File::open(path).and_then(|file| file.take(LONGEST_PASSWORD).read_to_string(&mut password));
        read.map_err(|error| (path.clone(), error))?;
        Ok(password.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl fmt::Debug for EtcdSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.credentials.as_ref().map(|(user, _)| user);
        formatter.debug_struct("EtcdSettings").field("members", &self.members).field("user", &user).finish()
    }
}

impl EtcdSettings {
    /// Checks the settings without reading files or using the network.
    pub fn check(&self) -> Result<(), EtcdSettingsError> {
        let members = &self.members;
        if members.is_empty() {
            return Err(EtcdSettingsError::NoMember);
        }
        for (index, url) in members.iter().enumerate() {
            if url.contains('@') {
                return Err(EtcdSettingsError::CredentialsInUrl);
            }
            let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
            if rest.is_none_or(|rest| rest.is_empty() || rest.contains(['/', '?', '#', ' '])) {
                return Err(EtcdSettingsError::NotAMember(url.clone()));
            }
            if members[..index].contains(url) {
                return Err(EtcdSettingsError::Repeated(url.clone()));
            }
        }
        let encrypted = members.iter().filter(|url| url.starts_with("https://")).count();
        if encrypted != 0 && encrypted != members.len() {
            return Err(EtcdSettingsError::MixedSchemes);
        }
        if encrypted == 0 && (self.ca.is_some() || self.identity.is_some()) {
            return Err(EtcdSettingsError::TlsWithoutHttps);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_reported() {
        for (urls, message) in [
            (&[][..], "no etcd member"),
            (&["a:2379"], "not an etcd member"),
            (&["http://"], "not an etcd member"),
            (&["http://user:secret@a:2379"], "must not contain credentials"),
            (&["http://a:1", "http://a:1"], "twice"),
            (&["http://a:1", "https://b:1"], "mixes"),
        ] {
            let members = urls.iter().map(|&url| url.into()).collect();
            let text = EtcdSettings { members, ..EtcdSettings::default() }.check().unwrap_err().to_string();
            assert!(text.contains(message) && !text.contains("secret"), "{urls:?}: {text}");
        }
    }

    #[test]
    fn a_password_file_is_read_without_its_line_break() {
        let path = std::env::temp_dir().join(format!("fencegate-etcd-password-{}", std::process::id()));
        let file = EtcdPassword::File(path.clone());
        for (text, password) in [("a b\n", "a b"), (" c\r\n", " c"), ("d", "d")] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(file.read().unwrap(), password);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.read().unwrap_err().0, path);
    }

    #[test]
    fn a_password_is_not_printed() {
        let credentials = Some(("u".into(), EtcdPassword::Given("secret".into())));
        let settings = EtcdSettings { members: vec!["http://a:1".into()], credentials, ..EtcdSettings::default() };
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
