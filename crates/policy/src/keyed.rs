//! Keyed resources: one resource for each value of a column, under a name with a placeholder.
//!
//! Owns how a key becomes part of a name. Must never give two keys the same name.

use super::{Issuer, Issuers, Resource};
use fencegate_statement::rows::LONGEST_KEY;
use std::fmt;
use std::sync::Arc;

/// Properties of a keyed resource besides its tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyed {
    /// The names of its resources.
    pub names: Template,
    /// The issuers of their tokens; `None`: any token may raise a fence.
    pub issuers: Option<Issuers>,
}

/// A name with a placeholder for the key: `shard/{shard}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    before: String,
    /// The word in the braces.
    pub placeholder: String,
    after: String,
}

/// Why a text with a brace is not a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// One brace, two placeholders, or one within the other.
    #[error("it takes one placeholder, such as `shard/{{shard}}`")]
    Braces,
    /// The text in the braces is not a word.
    #[error("the placeholder in the braces is a word of letters, digits and _")]
    Placeholder,
}

impl Template {
    /// Parses a name. Returns None if it has no placeholder, and an error if it has braces that are not a placeholder.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, InvalidTemplate> {
        if !text.contains(['{', '}']) {
            return Ok(None);
        }
        let (before, rest) = text.split_once('{').ok_or(InvalidTemplate::Braces)?;
        let (placeholder, after) = rest.split_once('}').ok_or(InvalidTemplate::Braces)?;
        if [before, placeholder, after].iter().any(|part| part.contains(['{', '}'])) {
            return Err(InvalidTemplate::Braces);
        }
        if placeholder.is_empty() || !placeholder.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(InvalidTemplate::Placeholder);
        }
        let [before, placeholder, after] = [before, placeholder, after].map(str::to_owned);
        Ok(Some(Self { before, placeholder, after }))
    }

    /// The name for a key. Percent-encodes characters that names cannot contain, and percent signs.
    pub fn fill(&self, key: &str) -> String {
        format!("{}{}{}", self.before, percent_encoded(key, b"_./:-"), self.after)
    }

    /// The key that this name belongs to.
    fn key_of(&self, name: &str) -> Option<String> {
        let encoded = name.strip_prefix(&self.before)?.strip_suffix(&self.after)?;
        // A key has only one name, although percent-encoding could spell others.
        percent_decoded(encoded).filter(|key| self.fill(key) == name)
    }

    /// True if the name may be that of a key.
    pub fn matches(&self, name: &str) -> bool {
        name.len() >= self.before.len() + self.after.len()
            && name.starts_with(&self.before)
            && name.ends_with(&self.after)
    }

    /// True if some name could be that of a key of both templates.
    pub(super) fn overlaps(&self, other: &Template) -> bool {
        let (one, two) = (&self.before, &other.before);
        let (three, four) = (&self.after, &other.after);
        (one.starts_with(two.as_str()) || two.starts_with(one.as_str()))
            && (three.ends_with(four.as_str()) || four.ends_with(three.as_str()))
    }

    /// One name for all keys: `shard/{}`.
    pub(super) fn family(&self) -> String {
        format!("{}{{}}{}", self.before, self.after)
    }

    /// The common prefix of all names.
    pub fn before(&self) -> &str {
        &self.before
    }

    /// The common suffix of all names.
    pub fn after(&self) -> &str {
        &self.after
    }
}

impl fmt::Display for Template {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{{{}}}{}", self.before, self.placeholder, self.after)
    }
}

/// Encodes all bytes except letters, digits and `kept`.
pub fn percent_encoded(text: &str, kept: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            true => encoded.push(byte.into()),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// None: the encoding is not well-formed.
pub fn percent_decoded(text: &str) -> Option<String> {
    let mut decoded = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

impl Resource {
    /// The resource of one key of this keyed resource. None if the key is too long, or if nothing can issue its tokens.
    pub fn of_key(&self, key: &str) -> Option<Arc<Resource>> {
        let keyed = self.keyed.as_ref().filter(|_| key.len() <= LONGEST_KEY)?;
        let issuer = match &keyed.issuers {
            Some(issuers) => Some(issuers.of_key(key)?),
            None => None,
        };
        Some(Arc::new(Resource {
            name: keyed.names.fill(key),
            issuer,
            keyed: None,
            family: Some(self.family_name()),
            tables: self.tables.clone(),
            functions: self.functions.clone(),
            fingerprint: self.fingerprint.clone(),
            on_missing: self.on_missing,
            mode: self.mode,
        }))
    }

    /// The resource with exactly that name: this one, or that of one of its keys.
    pub fn called(self: &Arc<Self>, name: &str) -> Option<Arc<Resource>> {
        match &self.keyed {
            Some(keyed) => self.of_key(&keyed.names.key_of(name)?),
            None => (self.name == name).then(|| self.clone()),
        }
    }

    /// The name of the lock that the guard takes for a process that writes the resource: one for all keys of a keyed
    /// resource.
    pub fn lock_name(&self) -> &str {
        self.family.as_deref().unwrap_or(&self.name)
    }

    /// The lock name of the resource's keys, or its own if it is not keyed.
    pub fn family_name(&self) -> String {
        self.keyed.as_ref().map_or_else(|| self.lock_name().to_owned(), |keyed| keyed.names.family())
    }

    /// True if this is the resource's name, or the name for one of its keys.
    pub fn is_called(&self, name: &str) -> bool {
        self.keyed.as_ref().map_or(self.name == name, |keyed| keyed.names.matches(name))
    }

    /// The issuer of the resource's tokens, with the placeholder if each key has its own.
    pub fn issuer_shown(&self) -> Option<String> {
        let issuers = self.keyed.as_ref().and_then(|keyed| keyed.issuers.as_ref());
        self.issuer.as_ref().map(Issuer::to_string).or_else(|| issuers.map(Issuers::to_string))
    }

    /// True if each key has an election in etcd.
    pub fn has_elections_of_keys(&self) -> bool {
        matches!(self.keyed, Some(Keyed { issuers: Some(Issuers::Elections(_)), .. }))
    }

    /// True if each key has a lease.
    pub fn has_leases_of_keys(&self) -> bool {
        matches!(self.keyed, Some(Keyed { issuers: Some(Issuers::Leases(_)), .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        Template::parse(text).unwrap().unwrap()
    }

    #[test]
    fn fill_encodes_keys_as_names() {
        let shard = template("shard/{shard}");
        assert_eq!(shard.fill("3"), "shard/3");
        assert_eq!(shard.fill("café"), "shard/caf%C3%A9");
        assert_eq!(shard.fill("a b%=,"), "shard/a%20b%25%3D%2C");
        assert_eq!(shard.fill(""), "shard/");
        assert_eq!(template("{tenant}.jobs").fill("x"), "x.jobs");
        assert!(shard.matches("shard/3") && !shard.matches("sharp/3") && !template("a{x}a").matches("a"));
    }

    #[test]
    fn key_of_decodes_names() {
        let shard = template("a/{shard}/b");
        for key in ["3", "café", "a b%=,", "", "%41"] {
            assert_eq!(shard.key_of(&shard.fill(key)).as_deref(), Some(key));
        }
        for name in
            ["a/b", "a/%33/b", "a/%c3%A9/b", "a/%/b", "a/%4/b", "a/%C3/b", "a/ /b", "a/%+9/b", "a/{shard}/b", "b"]
        {
            assert_eq!(shard.key_of(name), None, "{name}");
        }
    }

    #[test]
    fn invalid_templates_are_rejected() {
        assert_eq!(Template::parse("scheduler"), Ok(None));
        for text in ["a{", "a}", "{a}{b}", "{{a}}", "}a{"] {
            assert_eq!(Template::parse(text), Err(InvalidTemplate::Braces), "{text}");
        }
        for text in ["{}", "{a b}", "{a-b}"] {
            assert_eq!(Template::parse(text), Err(InvalidTemplate::Placeholder), "{text}");
        }
    }

    #[test]
    fn templates_that_share_names_overlap() {
        for (one, two) in [("a/{x}", "a/{y}"), ("a/{x}", "a/b/{y}"), ("{x}", "a/{y}"), ("{x}.a", "b.{y}")] {
            assert!(template(one).overlaps(&template(two)), "{one} {two}");
        }
        for (one, two) in [("a/{x}", "b/{y}"), ("{x}.a", "{y}.b"), ("a/{x}", "ab/{y}")] {
            assert!(!template(one).overlaps(&template(two)), "{one} {two}");
        }
    }
}
