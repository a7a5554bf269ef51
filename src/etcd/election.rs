//! Keys of an election, in the layout of Go's concurrency package, so that `etcdctl elect` and Go programs can take
//! part. Each candidate puts `<election>/<its lease in hex>`. The key with the lowest create_revision belongs to the
//! leader, and that revision is the fencing token.
//!
//! Other clients use a single key, `<election>` itself, which a candidate puts under a lease if it is absent. That key
//! counts as a candidate too.
//!
//! Owns the definition of a candidate. Must never count another key below the election as one.

use super::connection::{Etcd, EtcdError, Patience};
use etcd_client::{GetOptions, GetResponse, KeyValue, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Maximum length of an election's name, in bytes.
const LONGEST_NAME: usize = 512;

/// Value of etcd's RangeRequest.
const NO_LIMIT: i64 = 0;

/// Keys per request when searching for a candidate among other keys. One transaction cannot create more keys.
const PAGE: i64 = 10_000;

/// Name of an election: the prefix of its keys, without the final slash.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ElectionName(String);

/// Why a text is not an election name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The create_revision of the leader's key: the fencing token.
    pub token: i64,
    /// Key of the leader.
    pub key: Vec<u8>,
    /// Value of the key: usually the leader's name.
    pub value: Vec<u8>,
    /// Lease of the key.
    pub lease: i64,
}

impl From<&KeyValue> for Leader {
    fn from(pair: &KeyValue) -> Self {
        let (key, value) = (pair.key().to_owned(), pair.value().to_owned());
        Leader { token: pair.create_revision(), key, value, lease: pair.lease() }
    }
}

/// State of an election (linearizable).
pub(super) struct Reading {
    pub(super) leader: Option<Leader>,
    /// Revision of this state.
    pub(super) revision: i64,
    /// True if the user may read the key with the election's own name.
    pub(super) with_own_key: bool,
}

/// The current leader of the election (linearizable), and the revision of that state. Cancel-safe.
pub async fn leader(
    etcd: &Etcd,
    election: &ElectionName,
    patience: Patience,
) -> Result<(Option<Leader>, i64), EtcdError> {
    let Reading { leader, revision, .. } = reading(etcd, election, patience).await?;
    Ok((leader, revision))
}

/// Reads both kinds of keys at the same revision. The lowest create_revision of all leads, so tokens never decrease
/// even if both kinds are in use. Cancel-safe.
pub(super) async fn reading(etcd: &Etcd, election: &ElectionName, patience: Patience) -> Result<Reading, EtcdError> {
    let queue = TxnOp::get(election.prefix(), Some(in_order(1)));
    let own_key = TxnOp::get(election.as_str(), None);
    let (response, with_own_key) = match read_together(etcd, vec![queue.clone(), own_key], patience).await {
        Err(error) if error.denial().is_some() => (read_together(etcd, vec![queue], patience).await?, false),
        answer => (answer?, true),
    };
    let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
    let mut firsts = response.op_responses().into_iter().map(|answer| match answer {
        TxnOpResponse::Get(answer) => answer.kvs().first().cloned(),
        _ => None,
    });
    let queued = match firsts.next().flatten() {
        Some(pair) if !election.is_candidate(pair.key(), pair.lease()) => {
            leader_behind(etcd, election, pair.create_revision()..=revision, patience).await?
        }
        first => first.as_ref().map(Leader::from),
    };
    let alone = firsts.next().flatten().filter(|pair| pair.lease() != 0).as_ref().map(Leader::from);
    let leader = queued.into_iter().chain(alone).min_by_key(|leader| leader.token);
    Ok(Reading { leader, revision, with_own_key })
}

/// Finds the leader behind keys that are not candidates'. New keys only follow existing ones, so the pages read remain
/// valid.
async fn leader_behind(
    etcd: &Etcd,
    election: &ElectionName,
    revisions: RangeInclusive<i64>,
    patience: Patience,
) -> Result<Option<Leader>, EtcdError> {
    let mut from = *revisions.start();
    loop {
        let options =
            in_order(PAGE).with_keys_only().with_min_create_revision(from).with_max_create_revision(*revisions.end());
        let page = read(etcd, election.prefix(), options, patience).await?;
        let Some(last) = page.kvs().last() else { return Ok(None) };
        from = last.create_revision();
        for pair in page.kvs().iter().filter(|pair| election.is_candidate(pair.key(), pair.lease())) {
            let now = read(etcd, pair.key(), GetOptions::new(), patience).await?;
            let same = now.kvs().iter().find(|now| {
                now.create_revision() == pair.create_revision() && election.is_candidate(now.key(), now.lease())
            });
            if let Some(leader) = same {
                return Ok(Some(Leader::from(leader)));
            }
        }
        if !page.more() {
            return Ok(None);
        }
    }
}

/// The leaders of all elections with candidates, by election name. Reads each leader (linearizable) after the names.
/// Cancel-safe.
///
/// # Errors
/// etcd does not answer, or the user may not read all keys.
pub async fn leaders(etcd: &Etcd, patience: Patience) -> Result<Vec<(ElectionName, Leader)>, EtcdError> {
    let mut elections = BTreeSet::new();
    let mut from = vec![0];
    loop {
        let options = GetOptions::new().with_from_key().with_limit(PAGE).with_keys_only();
        let page = read(etcd, from, options, patience).await?;
        elections.extend(page.kvs().iter().filter_map(election_of));
        match page.kvs().last().filter(|_| page.more()) {
            Some(last) => from = [last.key(), &[0]].concat(),
            None => break,
        }
    }
    let mut leaders = Vec::new();
    for election in elections {
        if let Some(leader) = leader(etcd, &election, patience).await?.0 {
            leaders.push((election, leader));
        }
    }
    Ok(leaders)
}

/// The election that the candidate's key belongs to, if any.
fn election_of(pair: &KeyValue) -> Option<ElectionName> {
    let (name, _) = std::str::from_utf8(pair.key()).ok()?.rsplit_once('/')?;
    let election: ElectionName = name.parse().ok()?;
    election.is_candidate(pair.key(), pair.lease()).then_some(election)
}

/// All candidates of the election (linearizable), leader first. Cancel-safe.
pub async fn candidates(etcd: &Etcd, election: &ElectionName, patience: Patience) -> Result<Vec<Leader>, EtcdError> {
    let response = read(etcd, election.prefix(), in_order(NO_LIMIT), patience).await?;
    let is_candidate = |pair: &&KeyValue| election.is_candidate(pair.key(), pair.lease());
    Ok(response.kvs().iter().filter(is_candidate).map(Leader::from).collect())
}

/// Options for the first keys below a prefix, by create_revision.
fn in_order(limit: i64) -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(limit)
}

async fn read(
    etcd: &Etcd,
    key: impl Into<Vec<u8>>,
    options: GetOptions,
    patience: Patience,
) -> Result<GetResponse, EtcdError> {
    let key = key.into();
    etcd.ask(patience, move |mut client| {
        let (key, options) = (key.clone(), options.clone());
        async move { client.get(key, Some(options)).await }
    })
    .await
}

async fn read_together(etcd: &Etcd, reads: Vec<TxnOp>, patience: Patience) -> Result<TxnResponse, EtcdError> {
    let transaction = Txn::new().and_then(reads);
    etcd.ask(patience, move |mut client| {
        let transaction = transaction.clone();
        async move { client.txn(transaction).await }
    })
    .await
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
    fn keys_are_those_of_go() {
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
    fn nesting_is_seen_from_both_sides() {
        let name = |text: &str| text.parse::<ElectionName>().unwrap();
        assert!(name("p7").is_nested_with(&name("p7/sub")));
        assert!(name("p7/sub").is_nested_with(&name("p7")));
        assert!(!name("p7").is_nested_with(&name("p77")));
        assert!(!name("p7").is_nested_with(&name("p7")));
    }
}
