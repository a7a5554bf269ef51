//! Keys of an election, in the layout of Go's concurrency package, so that `etcdctl elect` and Go programs can take
//! part. Each candidate puts `<election>/<its lease in hex>`. The key with the lowest create_revision belongs to the
//! leader, and that revision is the fencing token.
//!
//! Other clients use a single key, `<election>` itself, which a candidate puts under a lease if it is absent. This key
//! counts as a candidate too.
//!
//! Owns the definition of a candidate. Must never count another key below the election as one.
//!
//! Also watches the leader. Must never trust its cache after a gap: when the watch breaks, it reads the whole election again.

use super::connection::{Etcd, EtcdError};
use crate::{ElectionName, Leader, Patience, Token};
use etcd_client::{
    GetOptions, GetResponse, KeyValue, ResponseHeader, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
    WatchOptions, WatchStream,
};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// No limit on the number of keys, in etcd's RangeRequest.
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

/// Pause after a broken watch, so that a watch that always breaks immediately does not cause a busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows the leader of one election.
#[derive(Debug)]
pub(crate) struct EtcdObserver {
    etcd: Arc<Etcd>,
    election: ElectionName,
    watch: Option<Watch>,
    /// True if the election has changed since the leader was last read.
    stale: bool,
}

impl EtcdObserver {
    pub(crate) fn new(etcd: Arc<Etcd>, election: ElectionName) -> Self {
        EtcdObserver { etcd, election, watch: None, stale: false }
    }

    /// Returns the current leader, then again whenever it may have changed. Cancel-safe.
    /// After an error, call it again: it then reads everything again.
    pub(crate) async fn next(&mut self) -> Result<Option<Leader>, EtcdError> {
        loop {
            let leader = if let Some(watch) = &mut self.watch {
                if !self.stale && !watch.sees_change().await {
                    self.watch = None;
                    sleep(PAUSE).await;
                    continue;
                }
                self.stale = true;
                reading(&self.etcd, &self.election, Patience::USUAL).await?.leader
            } else {
                let reading = reading(&self.etcd, &self.election, Patience::USUAL).await?;
                // The watch starts at the revision of the read, so it sees every later change.
                self.watch = Some(self.watch_after(reading.revision, reading.with_own_key).await?);
                reading.leader
            };
            self.stale = false;
            return Ok(leader);
        }
    }

    async fn watch_after(&self, revision: i64, with_own_key: bool) -> Result<Watch, EtcdError> {
        let election = self.election.clone();
        let stream = self.etcd.ask(Patience::USUAL, move |mut client| {
            let election = election.clone();
            let options = WatchOptions::new().with_start_revision(revision + 1);
            async move {
                let mut stream = client.watch(election.prefix(), Some(options.clone().with_prefix())).await?;
                if with_own_key {
                    stream.watch(election.as_str(), Some(options)).await?;
                }
                Ok(stream)
            }
        });
        Ok(Watch { stream: stream.await?, revision })
    }
}

/// A watch of keys, starting after the revision at which they were read.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) stream: WatchStream,
    pub(crate) revision: i64,
}

impl Watch {
    /// Waits for a change of the keys. Returns false if the watch has broken or cannot see changes: a member that has
    /// not reached the revision stays silent until then, and a member restored from an older backup may never reach it.
    /// Cancel-safe.
    pub(crate) async fn sees_change(&mut self) -> bool {
        while let Ok(Some(response)) = self.stream.message().await {
            let reached = response.header().map_or(0, ResponseHeader::revision);
            if response.canceled() || response.created() && reached < self.revision {
                return false;
            }
            if !response.events().is_empty() {
                return true;
            }
        }
        false
    }
}
