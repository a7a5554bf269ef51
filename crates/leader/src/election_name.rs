//! Names of elections.
//!
//! Owns the rules for names. With etcd a name is also the prefix of the candidates' keys, in the layout of Go's concurrency
//! package.

use std::fmt;
use std::str::FromStr;

/// Maximum length of an election's name, in bytes.
const LONGEST_NAME: usize = 512;

/// Name of an election: the prefix of its keys, without the final slash.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ElectionName(String);

/// Why a text is not an election name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// It is empty or longer than 512 bytes.
    #[error("an election name must have 1 to {LONGEST_NAME} bytes")]
    Length,
    /// It has control characters or spaces.
    #[error("an election name must not contain spaces or control characters")]
    Character,
    /// It ends with a slash or has two in a row: `a/` and `a` would block each other.
    #[error("an election name must not end with `/` or contain `//`: elections must not be nested")]
    Slash,
}

impl FromStr for ElectionName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if text.is_empty() || text.len() > LONGEST_NAME {
            Err(InvalidName::Length)
        } else if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            Err(InvalidName::Character)
        } else if text.ends_with('/') || text.contains("//") {
            Err(InvalidName::Slash)
        } else {
            Ok(ElectionName(text.to_owned()))
        }
    }
}

impl AsRef<str> for ElectionName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ElectionName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl ElectionName {
    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Prefix of all candidates' keys.
    pub fn prefix(&self) -> String {
        format!("{}/", self.0)
    }

    /// Key of the candidate with this lease.
    pub fn key(&self, lease: i64) -> String {
        format!("{}/{lease:x}", self.0)
    }

    /// True for a candidate's key: its name is the ID of its own lease.
    pub fn is_candidate(&self, key: &[u8], lease: i64) -> bool {
        lease != 0 && key == self.key(lease).as_bytes()
    }

    /// True if one election's keys are among the other's. An election `p` would wait for the leader of `p/q`.
    pub fn is_nested_with(&self, other: &ElectionName) -> bool {
        self != other && (self.0.starts_with(&other.prefix()) || other.0.starts_with(&self.prefix()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for name in ["/cron/scheduler/leader", "p7", "a/b"] {
            assert_eq!(name.parse::<ElectionName>().unwrap().as_str(), name);
        }
        for (name, why) in [
            ("", InvalidName::Length),
            (&"x".repeat(513), InvalidName::Length),
            ("a b", InvalidName::Character),
            ("a\n", InvalidName::Character),
            ("a/", InvalidName::Slash),
            ("a//b", InvalidName::Slash),
        ] {
            assert_eq!(name.parse::<ElectionName>(), Err(why), "{name:?}");
        }
    }

    #[test]
    fn keys_match_those_of_the_go_client() {
        let election: ElectionName = "/cron/leader".parse().unwrap();
        assert_eq!(election.key(0x694d_7e12_3456_789a), "/cron/leader/694d7e123456789a");
    }

    #[test]
    fn a_candidate_is_named_after_its_lease() {
        let election: ElectionName = "/a".parse().unwrap();
        assert!(election.is_candidate(b"/a/694d7e123456789a", 0x694d_7e12_3456_789a));
        for (key, lease) in
            [("/a/0", 0), ("/a/5", 0), ("/a/5", 6), ("/a/05", 5), ("/a/b/5", 5), ("/a/A", 10), ("/a", 5)]
        {
            assert!(!election.is_candidate(key.as_bytes(), lease), "{key}");
        }
    }

    #[test]
    fn nesting_is_symmetric() {
        let name = |text: &str| text.parse::<ElectionName>().unwrap();
        assert!(name("p7").is_nested_with(&name("p7/sub")));
        assert!(name("p7/sub").is_nested_with(&name("p7")));
        assert!(!name("p7").is_nested_with(&name("p77")));
        assert!(!name("p7").is_nested_with(&name("p7")));
    }
}
