//! Where a candidate stands in the queue, and waiting until that may have changed.
//!
//! Must never take an event for a proof: an event only says that it is time to read again.

use super::{PAUSE, commit, in_place};
use crate::etcd::{Etcd, EtcdError, Patience, leader};
use crate::leader::coordinator::{Candidate, CoordinatorError};
use crate::leader::loss::Loss;
use etcd_client::{
    EventType, GetOptions, ResponseHeader, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchFilterType,
    WatchOptions, WatchStream,
};
use tokio::time::sleep;

/// A candidate's place.
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
    let ahead = GetOptions::new()
        .with_prefix()
        .with_max_create_revision(candidate.token - 1)
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_limit(1)
        .with_keys_only();
    let ahead = TxnOp::get(candidate.election.prefix(), Some(ahead));
    let response = commit(etcd, Txn::new().when([in_place(candidate)]).and_then([ahead]), patience).await?;
    let revision = response.header().map_or(0, ResponseHeader::revision);
    if !response.succeeded() {
        return Ok((Place::Gone, revision));
    }
    match response.op_responses().first() {
        Some(TxnOpResponse::Get(ahead)) => match ahead.kvs().first() {
            Some(pair) => Ok((Place::Behind(pair.key().to_owned()), revision)),
            None => Ok((Place::First, revision)),
        },
        _ => Err(CoordinatorError::Refused { reason: "the answer to a range has none".into() }),
    }
}

/// Returns when one of the keys has been deleted after the revision, or may have been: the watch could not be set up,
/// or has broken.
pub(super) async fn deletion(etcd: &Etcd, keys: Vec<Vec<u8>>, revision: i64, patience: Patience) {
    let seen = match watch(etcd, keys, revision + 1, patience).await {
        Ok(mut watch) => sees_deletion(&mut watch).await,
        Err(_) => false,
    };
    if !seen {
        sleep(PAUSE).await;
    }
}

async fn watch(etcd: &Etcd, keys: Vec<Vec<u8>>, revision: i64, patience: Patience) -> Result<WatchStream, EtcdError> {
    let options = WatchOptions::new().with_start_revision(revision).with_filters([WatchFilterType::NoPut]);
    let request = move |mut client: etcd_client::Client| {
        let (keys, options) = (keys.clone(), options.clone());
        async move {
            let (first, others) = keys.split_first().ok_or_else(|| etcd_client::Error::Internal("no key".into()))?;
            let mut watch = client.watch(first.clone(), Some(options.clone())).await?;
            for key in others {
                watch.watch(key.clone(), Some(options.clone())).await?;
            }
            Ok(watch)
        }
    };
    etcd.ask(patience, request).await
}

/// False when the watch has broken.
async fn sees_deletion(watch: &mut WatchStream) -> bool {
    while let Ok(Some(response)) = watch.message().await {
        if response.canceled() {
            return false;
        }
        if response.events().iter().any(|event| event.event_type() == EventType::Delete) {
            return true;
        }
    }
    false
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
