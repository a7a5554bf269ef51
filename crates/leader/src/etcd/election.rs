//! Keys of an election, in the layout of Go's concurrency package, so that `etcdctl elect` and Go programs can take
//! part. Each candidate puts `<election>/<its lease in hex>`. The key with the lowest create_revision belongs to the
//! leader, and that revision is the fencing token.
//!
//! Other clients use a single key, `<election>` itself, which a candidate puts under a lease if it is absent. That key
//! counts as a candidate too.
//!
//! Owns the definition of a candidate. Must never count another key below the election as one.

use super::connection::{Etcd, EtcdError};
use crate::{ElectionName, Leader, Patience, Token};
use etcd_client::{GetOptions, GetResponse, KeyValue, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Value of etcd's RangeRequest.
const NO_LIMIT: i64 = 0;

/// Keys per request when searching for a candidate among other keys. One transaction cannot create more keys.
const PAGE: i64 = 10_000;

impl From<&KeyValue> for Leader {
    fn from(pair: &KeyValue) -> Self {
        let (key, value) = (pair.key().to_owned(), pair.value().to_owned());
        Leader { token: Token(pair.create_revision()), key, value, lease: pair.lease() }
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
