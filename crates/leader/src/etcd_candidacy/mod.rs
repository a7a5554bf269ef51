//! Elections on etcd, in the key layout of Go's concurrency package.
//!
//! Owns the requests, and what their responses prove. Must never
//! - conclude from an event that a candidate leads: every conclusion needs a transaction that found the candidate's own key;
//! - miss that two elections are nested: one transaction puts the key and reads both sides, so that of two concurrent entries the
//!   later one sees the other.

use crate::clock::BootInstant;
use crate::coordinator::{Candidate, Coordinator, Lease, Observe, PAUSE, Sealed, Share, Turn, log_awaited};
use crate::etcd::{Etcd, EtcdError, EtcdObserver, Watch, leader};
use crate::{ElectionName, Error, Leader, Lost, Observer, Patience, Token};
use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse, TxnResponse, WatchOptions,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// gRPC code 5 (not found): etcd's response for a lease that has ended.
const NOT_FOUND: i32 = 5;

impl Sealed for Etcd {}

impl Coordinator for Etcd {
    async fn enrol(
        &self,
        election: &ElectionName,
        holder: &str,
        ttl: Duration,
        patience: Patience,
    ) -> Result<(Candidate, BootInstant), Error> {
        let Lease { id: lease, ttl, deadline } = grant(self, ttl, patience).await?;
        let patience = Patience { limit: deadline.remaining(), ..patience };
        let entered = enter(self, election, holder, lease, patience).await;
        if let Err(Error::Refused { .. } | Error::Nested { .. }) = entered {
            // If this fails, the lease ends by itself.
            let _ = revoke(self, lease, patience).await;
        }
        Ok((Candidate { election: election.clone(), holder: holder.to_owned(), lease, token: entered?, ttl }, deadline))
    }

    async fn renew(&self, candidate: &Candidate, patience: Patience) -> Result<BootInstant, Error> {
        Ok(keep_alive(self, candidate.lease, patience).await? + candidate.ttl)
    }

    async fn try_turn(&self, candidate: &Candidate, patience: Patience) -> Result<Option<Turn>, Error> {
        match read(self, candidate, patience).await? {
            (Place::First, _) => Ok(Some(turn(candidate))),
            (Place::Behind(_), _) => Ok(None),
            (Place::Gone, _) => Err(Error::Gone),
        }
    }

    async fn await_turn(&self, candidate: &Candidate, patience: Patience) -> Result<Turn, Error> {
        let mut awaited = None;
        loop {
            match read(self, candidate, patience).await {
                Ok((Place::First, _)) => return Ok(turn(candidate)),
                Ok((Place::Behind(ahead), revision)) => {
                    if let Ok((Some(leader), _)) = leader(self, &candidate.election, patience).await
                        && leader.token.get() < candidate.token
                    {
                        log_awaited(candidate, &leader, &mut awaited);
                    }
                    change(self, vec![ahead, own_key(candidate).into()], revision, patience).await;
                }
                Ok((Place::Gone, _)) => return Err(Error::Gone),
                Err(Error::Unreachable { .. }) => sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn await_end(&self, candidate: &Candidate, patience: Patience) -> Lost {
        loop {
            match read(self, candidate, patience).await {
                Ok((Place::First, revision)) => {
                    change(self, vec![own_key(candidate).into()], revision, patience).await;
                }
                Ok((Place::Behind(_) | Place::Gone, _)) => {
                    return why_not_first(self, candidate, patience).await;
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    async fn proclaim(&self, candidate: &Candidate, value: Vec<u8>, patience: Patience) -> Result<(), Error> {
        let options = PutOptions::new().with_lease(candidate.lease);
        let put = TxnOp::put(own_key(candidate), value, Some(options));
        let transaction = Txn::new().when([in_place(candidate)]).and_then([put]);
        let response = commit(self, transaction, patience).await?;
        if response.succeeded() { Ok(()) } else { Err(Error::Gone) }
    }

    async fn withdraw(&self, candidate: &Candidate, patience: Patience) -> Result<(), Error> {
        revoke(self, candidate.lease, patience).await?;
        // Another client may have put a value without a lease there. The key would then stay and block the others
        // forever.
        self.leave(candidate, patience).await
    }

    fn observe(self: &Arc<Self>, election: &ElectionName) -> Observer {
        Observer::new(EtcdObserver::new(self.clone(), election.clone()))
    }
}

impl Share for Etcd {
    async fn grant(&self, ttl: Duration, patience: Patience) -> Result<Lease, Error> {
        grant(self, ttl, patience).await
    }

    async fn enter(
        &self,
        election: &ElectionName,
        holder: &str,
        lease: &Lease,
        patience: Patience,
    ) -> Result<(Candidate, BootInstant), Error> {
        let Lease { id, ttl, deadline } = *lease;
        let token = enter(self, election, holder, id, patience).await?;
        Ok((Candidate { election: election.clone(), holder: holder.to_owned(), lease: id, token, ttl }, deadline))
    }

    async fn renew_all(
        &self,
        lease: &Lease,
        candidates: &[Candidate],
        patience: Patience,
    ) -> Result<Vec<Result<BootInstant, Error>>, Error> {
        let deadline = keep_alive(self, lease.id, patience).await? + lease.ttl;
        let lives = |candidate: &Candidate| candidate.lease == lease.id;
        Ok(candidates.iter().map(|it| if lives(it) { Ok(deadline) } else { Err(Error::Gone) }).collect())
    }

    async fn leave(&self, candidate: &Candidate, patience: Patience) -> Result<(), Error> {
        let is_ours = (candidate.token != 0).then(|| in_place(candidate));
        let delete = TxnOp::delete(own_key(candidate), None);
        let transaction = Txn::new().when(is_ours.into_iter().collect::<Vec<_>>()).and_then([delete]);
        commit(self, transaction, patience).await.map(drop)
    }

    async fn revoke(&self, lease: &Lease, patience: Patience) -> Result<(), Error> {
        revoke(self, lease.id, patience).await
    }
}

impl Observe for EtcdObserver {
    async fn next(&mut self) -> Result<Option<Leader>, Error> {
        Ok(EtcdObserver::next(self).await?)
    }
}

impl From<EtcdError> for Error {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::Unreachable { limit, reason } => Error::Unreachable { limit, reason },
            // The client reports a returned TTL of 0 or less in this way.
            EtcdError::Refused(etcd_client::Error::LeaseKeepAliveError(_)) => Error::Gone,
            EtcdError::Refused(etcd_client::Error::GRpcStatus(status)) if status.code() as i32 == NOT_FOUND => {
                Error::Gone
            }
            EtcdError::Refused(etcd_client::Error::GRpcStatus(status)) => {
                Error::Refused { reason: status.message().to_owned() }
            }
            error => Error::Refused { reason: error.to_string() },
        }
    }
}

/// The candidate leads through the lease with which it has waited.
fn turn(candidate: &Candidate) -> Turn {
    Turn { token: Token(candidate.token), deadline: None }
}

fn own_key(candidate: &Candidate) -> String {
    candidate.election.key(candidate.lease)
}

/// Condition: the candidate's key exists and has not been recreated.
fn in_place(candidate: &Candidate) -> Compare {
    Compare::create_revision(own_key(candidate), CompareOp::Equal, candidate.token)
}

async fn commit(etcd: &Etcd, transaction: Txn, patience: Patience) -> Result<TxnResponse, Error> {
    Ok(transact(etcd, transaction, patience).await?)
}

async fn transact(etcd: &Etcd, transaction: Txn, patience: Patience) -> Result<TxnResponse, EtcdError> {
    let request = move |mut client: etcd_client::Client| {
        let transaction = transaction.clone();
        async move { client.txn(transaction).await }
    };
    etcd.ask(patience, request).await
}

/// Returns when the answered keep-alive was sent.
async fn keep_alive(etcd: &Etcd, lease: i64, patience: Patience) -> Result<BootInstant, Error> {
    let renewal = etcd.ask(patience, move |mut client| async move {
        // Each attempt has its own send time: only that of the answered one counts.
        let sent = BootInstant::now();
        client.lease_keep_alive(lease).await.map(|_| sent)
    });
    Ok(renewal.await?)
}

async fn revoke(etcd: &Etcd, lease: i64, patience: Patience) -> Result<(), Error> {
    let revoked = etcd.ask(patience, move |mut client| async move { client.lease_revoke(lease).await }).await;
    match revoked.map_err(Error::from) {
        Ok(_) | Err(Error::Gone) => Ok(()),
        Err(error) => Err(error),
    }
}

/// No limit on the number of keys, in etcd's RangeRequest.
const NO_LIMIT: i64 = 0;

#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// The candidate leads.
    First,
    /// The candidate is behind this key, the last one ahead of it.
    Behind(Vec<u8>),
    /// The candidate has no place.
    Gone,
}

/// Reads the place and its revision in one transaction, so that both are consistent.
async fn read(etcd: &Etcd, candidate: &Candidate, patience: Patience) -> Result<(Place, i64), Error> {
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
async fn change(etcd: &Etcd, keys: Vec<Vec<u8>>, revision: i64, patience: Patience) {
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
async fn why_not_first(etcd: &Etcd, candidate: &Candidate, patience: Patience) -> Lost {
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

/// Maximum number of keys next to an election that are searched for candidates of an outer one.
const MAX_NEIGHBORS: i64 = 500;

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
        let options = GetOptions::new().with_range(format!("{prefix}g")).with_limit(MAX_NEIGHBORS).with_keys_only();
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
