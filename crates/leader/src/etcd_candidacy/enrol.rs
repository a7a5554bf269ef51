//! Entering an election: the lease, the key, and the check for nested elections.
//!
//! Must never miss that two elections are nested: one transaction puts the key and reads both sides, so that of two
//! concurrent entries the later one sees the other.

use super::transact;
use crate::clock::BootInstant;
use crate::coordinator::Lease;
use crate::etcd::Etcd;
use crate::{ElectionName, Error, Patience};
use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use std::time::Duration;

/// Number of keys next to an election that are searched for candidates of an outer one.
const NEIGHBOURS: i64 = 500;

/// Grants a new lease. Repeated requests may grant several; leases without a key block no candidate.
pub(super) async fn grant(etcd: &Etcd, ttl: Duration, patience: Patience) -> Result<Lease, Error> {
    let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
    let grant = etcd.ask(patience, move |mut client| async move {
        let sent = BootInstant::now();
        client.lease_grant(seconds, None).await.map(|granted| (sent, granted))
    });
    let (sent, granted) = grant.await?;
    let ttl = ttl.min(Duration::from_secs(granted.ttl().try_into().unwrap_or(0)));
    Ok(Lease { id: granted.id(), ttl, deadline: sent + ttl })
}

/// Puts the candidate's key unless an earlier attempt has. Its create_revision is the place in the queue.
pub(super) async fn enter(
    etcd: &Etcd,
    election: &ElectionName,
    holder: &str,
    lease: i64,
    patience: Patience,
) -> Result<i64, Error> {
    let key = election.key(lease);
    let outer = outer_prefixes(election);
    let is_new = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
    let put = TxnOp::put(key.clone(), holder, Some(PutOptions::new().with_lease(lease)));
    let reads = reads(election, &outer);
    let transaction = Txn::new().when([is_new]).and_then([vec![put], reads.clone()].concat()).or_else(reads);
    let response = transact(etcd, transaction, patience).await.map_err(|error| match error.denial() {
        Some(why) => Error::Refused { reason: format!("{why}; {}", needed(election, &outer)) },
        None => error.into(),
    })?;

    let mut answers = response.op_responses().into_iter().filter_map(range);
    let candidates = answers.next().map(|mut answer| answer.take_kvs()).unwrap_or_default();
    let inner = candidates.iter().find(|pair| is_inner_candidate(pair, election));
    let outer = outer.iter().zip(answers).find_map(|(prefix, answer)| candidate_below(prefix, &answer));
    if let Some(key) = inner.map(|pair| text(pair.key())).or(outer) {
        return Err(Error::Nested { election: election.clone(), key });
    }
    let own = candidates.iter().find(|pair| pair.key() == key.as_bytes());
    own.map(KeyValue::create_revision).ok_or(Error::Gone)
}

/// Prefixes of the elections that would wait for this one's leader: `/a/` and `/a/b/` for `/a/b/c`.
fn outer_prefixes(election: &ElectionName) -> Vec<String> {
    let name = election.as_str();
    name.match_indices('/').filter(|(index, _)| *index > 0).map(|(index, _)| name[..=index].to_owned()).collect()
}

/// All keys of the election; and below each outer prefix, the keys that start like the hex of a lease.
fn reads(election: &ElectionName, outer: &[String]) -> Vec<TxnOp> {
    let own = TxnOp::get(election.prefix(), Some(GetOptions::new().with_prefix().with_keys_only()));
    let outer = outer.iter().map(|prefix| {
        let options = GetOptions::new().with_range(format!("{prefix}g")).with_limit(NEIGHBOURS).with_keys_only();
        TxnOp::get(format!("{prefix}0"), Some(options))
    });
    std::iter::once(own).chain(outer).collect()
}

/// Permissions that the etcd user needs for this request.
fn needed(election: &ElectionName, outer: &[String]) -> String {
    let outer = outer.iter().map(|prefix| format!(", and to read the keys from {prefix}0 to {prefix}g"));
    let own = format!("its user needs permission to read and write the prefix {}", election.prefix());
    own + &outer.collect::<String>()
}

fn range(answer: TxnOpResponse) -> Option<GetResponse> {
    match answer {
        TxnOpResponse::Get(answer) => Some(answer),
        _ => None,
    }
}

/// True for a candidate's key of an election inside this one: of `/a/b` or `/a/b/c` inside `/a`.
fn is_inner_candidate(pair: &KeyValue, election: &ElectionName) -> bool {
    let below = pair.key().strip_prefix(election.prefix().as_bytes()).unwrap_or_default();
    pair.lease() != 0 && below.ends_with(format!("/{:x}", pair.lease()).as_bytes())
}

/// A key named after its own lease belongs to a candidate.
fn candidate_below(prefix: &str, neighbours: &GetResponse) -> Option<String> {
    let is_candidate =
        |pair: &&KeyValue| pair.lease() != 0 && pair.key() == format!("{prefix}{:x}", pair.lease()).as_bytes();
    neighbours.kvs().iter().find(is_candidate).map(|pair| text(pair.key()))
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outer_prefix_is_checked() {
        let prefixes = |name: &str| outer_prefixes(&name.parse().unwrap());
        assert_eq!(prefixes("/cron/shard/leader"), ["/cron/", "/cron/shard/"]);
        assert_eq!(prefixes("a/b"), ["a/"]);
        assert!(prefixes("a").is_empty());
    }
}
