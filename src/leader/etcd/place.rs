//! Where a candidate stands in the queue, and waiting until that may have changed.
//!
//! Must never take an event for a proof: an event only says that it is time to read again.

use super::{PAUSE, commit, in_place};
use crate::etcd::{Etcd, EtcdError, Patience, Watch, leader};
use crate::leader::coordinator::{Candidate, CoordinatorError};
use crate::leader::loss::Loss;
use etcd_client::{
    Compare, CompareOp, GetOptions, ResponseHeader, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use tokio::time::sleep;

/// As etcd's RangeRequest has it.
const NO_LIMIT: i64 = 0;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It leads.
    First,
    /// Behind this key: the last that stands before it.
    Behind(Vec<u8>),
    /// It has none.
    Gone,
}

/// The place, and the revision at which it was read: one transaction, so that both are true of the same moment.
pub(super) async fn read(
    etcd: &Etcd,
    candidate: &Candidate,
    patience: Patience,
) -> Result<(Place, i64), CoordinatorError> {
    let Candidate { election, lease, token, .. } = candidate;
    // Nearly always the first of them is a candidate's.
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
            return Err(CoordinatorError::Refused { reason: "the answer to a range has none".into() });
        };
        match ahead.kvs().iter().find(|pair| election.is_candidate(pair.key(), pair.lease())) {
            Some(pair) => return Ok((Place::Behind(pair.key().to_owned()), revision)),
            None if !ahead.more() => return Ok((Place::First, revision)),
            None => limit = NO_LIMIT,
        }
    }
}

/// Returns when one of the keys has changed after the revision, or may have: the watch could not be set up, or has broken.
/// A key that is put anew may have lost its lease, and is nobody's then.
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

/// Why a candidate that led is no longer first. That it is not has been seen: the reason is worth one attempt.
pub(super) async fn why_not_first(etcd: &Etcd, candidate: &Candidate, patience: Patience) -> Loss {
    let patience = Patience { limit: patience.member, ..patience };
    if let Ok((Some(leader), _)) = leader(etcd, &candidate.election, patience).await
        && leader.token < candidate.token
    {
        return Loss::Superseded { token: leader.token };
    }
    let lease = candidate.lease;
    let request = move |mut client: etcd_client::Client| async move { client.lease_time_to_live(lease, None).await };
    match etcd.ask(patience, request).await {
        Ok(lease) if lease.ttl() <= 0 => Loss::Revoked,
        _ => Loss::KeyGone,
    }
}
