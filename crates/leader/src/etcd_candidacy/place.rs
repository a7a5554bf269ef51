//! A candidate's place in the queue, and waiting until it may have changed.
//!
//! Must never treat an event as a proof: an event only says that it is time to read again.

use super::{commit, in_place};
use crate::coordinator::{Candidate, PAUSE};
use crate::etcd::{Etcd, EtcdError, Watch, leader};
use crate::{Error, Lost, Patience};
use etcd_client::{
    Compare, CompareOp, GetOptions, ResponseHeader, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use tokio::time::sleep;

/// Value of etcd's RangeRequest.
const NO_LIMIT: i64 = 0;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The candidate leads.
    First,
    /// The candidate is behind this key, the last one ahead of it.
    Behind(Vec<u8>),
    /// The candidate has no place.
    Gone,
}

/// Reads the place and its revision in one transaction, so that both are consistent.
pub(super) async fn read(etcd: &Etcd, candidate: &Candidate, patience: Patience) -> Result<(Place, i64), Error> {
    let Candidate { election, lease, token, .. } = candidate;
    // The first key is nearly always a candidate's.
    let mut limit = 1;
    loop {
        let ahead = GetOptions::new()
            .with_prefix()
            .with_max_create_revision(token - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_limit(limit)
            .with_keys_only();
        let ahead = TxnOp::get(election.prefix(), Some(ahead));
        let in_place = [in_place(candidate), Compare::lease(election.key(*lease), CompareOp::Equal, *lease)];
        let response = commit(etcd, Txn::new().when(in_place).and_then([ahead]), patience).await?;
        let revision = response.header().map_or(0, ResponseHeader::revision);
        if !response.succeeded() {
            return Ok((Place::Gone, revision));
        }
        let Some(TxnOpResponse::Get(ahead)) = response.op_responses().into_iter().next() else {
            return Err(Error::Refused { reason: "etcd's response lacks the requested range".into() });
        };
        match ahead.kvs().iter().find(|pair| election.is_candidate(pair.key(), pair.lease())) {
            Some(pair) => return Ok((Place::Behind(pair.key().to_owned()), revision)),
            None if !ahead.more() => return Ok((Place::First, revision)),
            None => limit = NO_LIMIT,
        }
    }
}

/// Returns when one of the keys has changed after the revision, or may have: the watch could not be created or has
/// broken. A recreated key may have lost its lease and then belongs to no candidate.
pub(super) async fn change(etcd: &Etcd, keys: Vec<Vec<u8>>, revision: i64, patience: Patience) {
    let seen = match watch(etcd, keys, revision, patience).await {
        Ok(mut watch) => watch.sees_change().await,
        Err(_) => false,
    };
    if !seen {
        sleep(PAUSE).await;
    }
}

async fn watch(etcd: &Etcd, keys: Vec<Vec<u8>>, revision: i64, patience: Patience) -> Result<Watch, EtcdError> {
    let options = WatchOptions::new().with_start_revision(revision + 1);
    let request = move |mut client: etcd_client::Client| {
        let (keys, options) = (keys.clone(), options.clone());
        async move {
            let (first, others) = keys.split_first().ok_or_else(|| etcd_client::Error::Internal("no key".into()))?;
            let mut stream = client.watch(first.clone(), Some(options.clone())).await?;
            for key in others {
                stream.watch(key.clone(), Some(options.clone())).await?;
            }
            Ok(stream)
        }
    };
    Ok(Watch { stream: etcd.ask(patience, request).await?, revision })
}

/// Returns why a candidate that led is no longer first. The loss itself is certain, so the reason is worth only one
/// attempt.
pub(super) async fn why_not_first(etcd: &Etcd, candidate: &Candidate, patience: Patience) -> Lost {
    let patience = Patience { limit: patience.member, ..patience };
    if let Ok((Some(leader), _)) = leader(etcd, &candidate.election, patience).await
        && leader.token.get() < candidate.token
    {
        return Lost::Superseded { token: leader.token };
    }
    let lease = candidate.lease;
    let request = move |mut client: etcd_client::Client| async move { client.lease_time_to_live(lease, None).await };
    match etcd.ask(patience, request).await {
        Ok(lease) if lease.ttl() <= 0 => Lost::Revoked,
        _ => Lost::KeyGone,
    }
}
