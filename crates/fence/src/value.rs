//! The value of the session parameter `lease.fence`: text → tokens.
//!
//! Must agree with the function `fencegate.token` in the database.

use super::session::Token;
use fencegate_policy::Resource;
use std::fmt;
use std::sync::Arc;

/// Maximum length of a value, in bytes.
const MAX_LENGTH: usize = 64 * 1024;

/// Maximum number of digits of a token, including leading zeros: that of the highest token.
const MAX_DIGITS: usize = 19;

/// White space around resources and tokens.
const SPACE: [char; 6] = [' ', '\t', '\r', '\n', '\u{b}', '\u{c}'];

/// The value of a session's `lease.fence`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FenceValue {
    /// No token.
    #[default]
    Missing,
    /// One token for all resources.
    One(Token),
    /// One token for each named resource, sorted by resource.
    List(Arc<[(String, Token)]>),
}

/// A value that is neither empty, a token, nor a list of `resource=token`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// Longer than 64 KiB.
    #[error("it is longer than 64 KiB")]
    TooLong,
    /// A token is not an integer from 1 to 9223372036854775807.
    #[error("a token is an integer from 1 to 9223372036854775807")]
    Token,
    /// A resource name with other characters than letters, digits and `_ . / : - %`.
    #[error("a resource name consists of letters, digits and _ . / : - %")]
    Resource,
    /// A resource is named twice.
    #[error("a resource is named twice")]
    Twice,
}

impl FenceValue {
    /// Parses a value as the server stores it.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let text = text.trim_matches(SPACE);
        if text.len() > MAX_LENGTH {
            return Err(InvalidValue::TooLong);
        }
        match text {
            "" => Ok(FenceValue::Missing),
            list if list.contains('=') => parse_list(list),
            token => parse_token(token).map(FenceValue::One),
        }
    }

    /// The token for a resource, if the session has one.
    pub fn token(&self, resource: &str) -> Option<Token> {
        match self {
            FenceValue::Missing => None,
            FenceValue::One(token) => Some(*token),
            FenceValue::List(list) => {
                list.binary_search_by(|(name, _)| name.as_str().cmp(resource)).ok().map(|index| list[index].1)
            }
        }
    }
    /// Whether the session has a token for a resource, or for some key of a keyed one.
    pub fn has_token_for(&self, resource: &Resource) -> bool {
        match self {
            FenceValue::List(list) if resource.keyed.is_some() => list.iter().any(|(name, _)| resource.is_called(name)),
            _ => self.token(&resource.name).is_some(),
        }
    }

    /// The resources that a list names.
    pub fn resources(&self) -> Vec<String> {
        match self {
            FenceValue::List(list) => list.iter().map(|(name, _)| name.clone()).collect(),
            FenceValue::Missing | FenceValue::One(_) => Vec::new(),
        }
    }

    /// Approximate memory in bytes, without memory shared with `other`.
    pub fn weight_beside(&self, other: &FenceValue) -> usize {
        match (self, other) {
            (FenceValue::List(list), FenceValue::List(others)) if Arc::ptr_eq(list, others) => 0,
            (FenceValue::List(list), _) => list.iter().map(|(name, _)| 64 + name.len()).sum(),
            _ => 0,
        }
    }
}

impl fmt::Display for FenceValue {
    /// An equivalent value of the parameter.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FenceValue::Missing => Ok(()),
            FenceValue::One(token) => write!(formatter, "{token}"),
            FenceValue::List(list) => {
                let items: Vec<_> = list.iter().map(|(resource, token)| format!("{resource}={token}")).collect();
                formatter.write_str(&items.join(", "))
            }
        }
    }
}

fn parse_list(text: &str) -> Result<FenceValue, InvalidValue> {
    let mut list = Vec::new();
    for item in text.split(',') {
        let (resource, token) = item.split_once('=').ok_or(InvalidValue::Token)?;
        let resource = resource.trim_matches(SPACE);
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:-%".contains(&byte);
        if resource.is_empty() || !resource.bytes().all(valid) {
            return Err(InvalidValue::Resource);
        }
        list.push((resource.to_owned(), parse_token(token.trim_matches(SPACE))?));
    }
    list.sort();
    if list.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(InvalidValue::Twice);
    }
    Ok(FenceValue::List(list.into()))
}

fn parse_token(text: &str) -> Result<Token, InvalidValue> {
    let digits = text.len() <= MAX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(token @ 1..) if digits => Ok(token),
        _ => Err(InvalidValue::Token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_accepts_a_single_token() {
        assert_eq!(FenceValue::parse("47"), Ok(FenceValue::One(47)));
        assert_eq!(FenceValue::parse(" 9223372036854775807 "), Ok(FenceValue::One(i64::MAX)));
        assert_eq!(FenceValue::parse(""), Ok(FenceValue::Missing));
        assert_eq!((FenceValue::One(47).to_string(), FenceValue::Missing.to_string()), ("47".into(), "".into()));
        for invalid in
            ["0", "-1", "+1", "9223372036854775808", "4 7", "47x", "4.7", "1e3", "on", "47,48", "00000000000000000047"]
        {
            assert_eq!(FenceValue::parse(invalid), Err(InvalidValue::Token), "{invalid}");
        }
    }

    #[test]
    fn parse_accepts_a_token_for_each_resource() {
        let value = FenceValue::parse("scheduler=47, shard/3=55").unwrap_or_default();
        assert_eq!(value.token("scheduler"), Some(47));
        assert_eq!(value.token("shard/3"), Some(55));
        assert_eq!(value.token("other"), None);
        assert_eq!(value.to_string(), "scheduler=47, shard/3=55");
        assert_eq!(FenceValue::parse("a=1,a=2"), Err(InvalidValue::Twice));
        assert_eq!(FenceValue::parse("a b=1"), Err(InvalidValue::Resource));
        assert_eq!(FenceValue::parse("=1"), Err(InvalidValue::Resource));
        assert_eq!(FenceValue::parse("a=1,"), Err(InvalidValue::Token));
        assert_eq!(FenceValue::parse("a=1=2"), Err(InvalidValue::Token));
    }

    #[test]
    fn parse_limits_a_value_to_64_kib_and_a_token_to_19_digits() {
        let list = |name: usize| FenceValue::parse(&format!("{}=1", "r".repeat(name)));
        assert!(list(MAX_LENGTH - 2).is_ok());
        assert_eq!(list(MAX_LENGTH - 1), Err(InvalidValue::TooLong));
        assert_eq!(FenceValue::parse("0000000000000000047"), Ok(FenceValue::One(47)));
        assert_eq!(FenceValue::parse("a=00000000000000000047"), Err(InvalidValue::Token));
    }

    #[test]
    fn a_value_reports_its_resources_and_weight() {
        let list = FenceValue::parse("bb=2, a=1").unwrap_or_default();
        assert_eq!(list.resources(), ["a", "bb"]);
        assert!(FenceValue::One(1).resources().is_empty());
        assert_eq!(list.weight_beside(&list.clone()), 0);
        let alike = FenceValue::parse("a=1, bb=2").unwrap_or_default();
        assert_eq!(list.weight_beside(&alike), 65 + 66);
        assert_eq!(list.weight_beside(&FenceValue::Missing), 65 + 66);
        assert_eq!(FenceValue::One(1).weight_beside(&list), 0);
    }

    #[test]
    fn a_value_may_have_a_token_for_some_key() {
        let keyed = "  - {name: 's/{k}', tables: [{name: public.s, key: k}]}\n";
        let policies = format!("version: 1\nresources:\n  - {{name: r, tables: [public.r]}}\n{keyed}");
        let policies = fencegate_policy::join([("a.yaml".into(), Ok(policies.into()))]).unwrap_or_default();
        assert_eq!(policies.resources.len(), 2);
        for (value, has) in [
            ("47", [true, true]),
            ("r=1", [true, false]),
            ("s/1=1", [false, true]),
            ("x=1", [false, false]),
            ("", [false, false]),
        ] {
            let value = FenceValue::parse(value).unwrap_or_default();
            let found: Vec<_> = policies.resources.iter().map(|resource| value.has_token_for(resource)).collect();
            assert_eq!(found, has, "{value}");
        }
    }
}
