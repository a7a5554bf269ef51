//! Elections on etcd, in the key layout of Go's concurrency package.
//!
//! Owns the requests, and what their responses prove. Must never conclude from an event that a candidate leads: every
//! conclusion needs a transaction that found the candidate's own key.

mod enrol;
mod place;

use crate::clock::BootInstant;
use crate::coordinator::{Candidate, Coordinator, Lease, PAUSE, Sealed, Share, Turn, log_awaited};
use crate::etcd::{Etcd, EtcdError, EtcdObserver, leader};
use crate::observer::Observe;
use crate::{ElectionName, Error, Leader, Lost, Observer, Patience, Token};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnResponse};
use place::Place;
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
        let Lease { id: lease, ttl, deadline } = enrol::grant(self, ttl, patience).await?;
        let patience = Patience { limit: deadline.remaining(), ..patience };
        let entered = enrol::enter(self, election, holder, lease, patience).await;
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
        match place::read(self, candidate, patience).await? {
            (Place::First, _) => Ok(Some(turn(candidate))),
            (Place::Behind(_), _) => Ok(None),
            (Place::Gone, _) => Err(Error::Gone),
        }
    }

    async fn await_turn(&self, candidate: &Candidate, patience: Patience) -> Result<Turn, Error> {
        let mut awaited = None;
        loop {
            match place::read(self, candidate, patience).await {
                Ok((Place::First, _)) => return Ok(turn(candidate)),
                Ok((Place::Behind(ahead), revision)) => {
                    if let Ok((Some(leader), _)) = leader(self, &candidate.election, patience).await
                        && leader.token.get() < candidate.token
                    {
                        log_awaited(candidate, &leader, &mut awaited);
                    }
                    place::change(self, vec![ahead, own_key(candidate).into()], revision, patience).await;
                }
                Ok((Place::Gone, _)) => return Err(Error::Gone),
                Err(Error::Unreachable { .. }) => sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn await_end(&self, candidate: &Candidate, patience: Patience) -> Lost {
        loop {
            match place::read(self, candidate, patience).await {
                Ok((Place::First, revision)) => {
                    place::change(self, vec![own_key(candidate).into()], revision, patience).await;
                }
                Ok((Place::Behind(_) | Place::Gone, _)) => {
                    return place::why_not_first(self, candidate, patience).await;
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
        enrol::grant(self, ttl, patience).await
    }

    async fn enter(
        &self,
        election: &ElectionName,
        holder: &str,
        lease: &Lease,
        patience: Patience,
    ) -> Result<(Candidate, BootInstant), Error> {
        let Lease { id, ttl, deadline } = *lease;
        let token = enrol::enter(self, election, holder, id, patience).await?;
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
