//! Elections on leases in PostgreSQL, through the functions that `fencegate init` creates.
//!
//! Owns the queries, and what their results prove. Must never give one holder's name to two candidates: the database
//! gives the same holder the same token. Must never trust a notification: it only means "read again". There is no
//! queue: the first candidate that calls after the end of a lease gets the next one.

mod link;

pub use link::Connect;
pub(crate) use link::is_transient;

use crate::clock::BootInstant;
use crate::coordinator::{Candidate, Coordinator, Lease, Observe, PAUSE, Sealed, Share, Turn, log_awaited};
use crate::{ElectionName, Error, Leader, Lost, Observer, Patience, Token};
use link::{Changes, Link, Open};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Config, NoTls, Row};

const ACQUIRE: &str = "SELECT token FROM fencegate.acquire($1, $2, make_interval(secs => $3))";
const RENEW: &str = "SELECT fencegate.renew($1, $2, make_interval(secs => $3))";
/// Returns no row for a lease that another transaction has locked.
const RENEW_ALL: &str =
    "SELECT election, expires IS NOT NULL FROM fencegate.renew_all($1, $2, make_interval(secs => $3))";
const RELEASE: &str = "SELECT fencegate.release($1, $2)";
/// For an unknown token: the response to ACQUIRE may have been lost.
const RELEASE_OF_HOLDER: &str =
    "SELECT fencegate.release($1, leader.token) FROM fencegate.leader($1) WHERE leader.holder = $2";
const PROCLAIM: &str = "SELECT fencegate.proclaim($1, $2, $3)";
const RUNNING: &str = "SELECT election, holder, token, expires FROM fencegate.leases()";
const LEADER: &str = "SELECT holder, token, extract(epoch FROM expires - clock_timestamp())::float8 \
    FROM fencegate.leader($1)";

/// A query parameter.
type Value = (Arc<dyn ToSql + Send + Sync>, Type);

/// A current lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningLease {
    /// Election that the lease decides.
    pub election: String,
    /// Name of the holder, or the value that it proclaims.
    pub holder: String,
    /// The fencing token.
    pub token: Token,
    /// Expiry time by the database's clock, unless the lease is renewed.
    pub expires: SystemTime,
}

/// A database whose leases decide elections. All elections of a process share its single connection.
pub struct Leases<C> {
    link: Arc<Link<C>>,
}

impl<C> fmt::Debug for Leases<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Leases").finish_non_exhaustive()
    }
}

/// Leases in the database with this connection string, without TLS.
pub(crate) fn parse(url: &str) -> Result<Arc<Leases<(Config, NoTls)>>, tokio_postgres::Error> {
    Ok(Leases::new((url.parse()?, NoTls)))
}

impl<C: Connect> Leases<C> {
    /// Connects at the first query.
    pub fn new(connect: C) -> Arc<Self> {
        Arc::new(Leases { link: Link::new(connect) })
    }

    /// Current leases of the elections that this role may lead, ordered by election. Cancel-safe.
    ///
    /// # Errors
    /// The database does not answer or refuses.
    pub async fn running(&self, patience: Patience) -> Result<Vec<RunningLease>, Error> {
        let (rows, _) = ask(&self.link, RUNNING, Vec::new(), patience).await?;
        let read = |row: &Row| {
            let holder = name_in(column(row, 1)?).0.to_owned();
            let token = Token(column(row, 2)?);
            Ok(RunningLease { election: column(row, 0)?, holder, token, expires: column(row, 3)? })
        };
        rows.iter().map(read).collect()
    }

    /// Time until the current lease ends, or a short time if there is none. Logs the leader if it has changed.
    async fn rest(&self, candidate: &Candidate, awaited: &mut Option<Token>, patience: Patience) -> Duration {
        let Ok(Some((leader, rest))) = leader(&self.link, &candidate.election, patience).await else { return PAUSE };
        log_awaited(candidate, &leader, awaited);
        // Add a margin, so that the next query does not come before the end.
        rest + Duration::from_millis(5)
    }
}

impl<C: Connect> Sealed for Leases<C> {}

impl<C: Connect> Coordinator for Leases<C> {
    /// Assigns the candidate a number. There is no queue and no lease before the win, so the place lives as long as the
    /// database answers.
    async fn enrol(
        &self,
        election: &ElectionName,
        holder: &str,
        ttl: Duration,
        patience: Patience,
    ) -> Result<(Candidate, BootInstant), Error> {
        // The server reports an error if the role may not lead there.
        let (_, sent) = ask(&self.link, LEADER, vec![name(election)], patience).await?;
        let lease = RandomState::new().build_hasher().finish().cast_signed();
        let (election, holder) = (election.clone(), holder.to_owned());
        Ok((Candidate { election, holder, lease, token: 0, ttl }, sent + ttl))
    }

    async fn renew(&self, candidate: &Candidate, patience: Patience) -> Result<BootInstant, Error> {
        let Candidate { election, token, ttl, .. } = candidate;
        let (_, sent) = match token {
            0 => ask(&self.link, "SELECT 1", Vec::new(), patience).await?,
            token => ask(&self.link, RENEW, vec![name(election), number(*token), seconds(*ttl)], patience).await?,
        };
        Ok(sent + *ttl)
    }

    async fn try_turn(&self, candidate: &Candidate, patience: Patience) -> Result<Option<Turn>, Error> {
        let parameters = vec![name(&candidate.election), text(identity(candidate)), seconds(candidate.ttl)];
        let (rows, sent) = ask(&self.link, ACQUIRE, parameters, patience).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Turn { token: Token(column(row, 0)?), deadline: Some(sent + candidate.ttl) }))
    }

    async fn await_turn(&self, candidate: &Candidate, patience: Patience) -> Result<Turn, Error> {
        let (mut changes, mut awaited) = (self.link.changes(), None);
        loop {
            match self.try_turn(candidate, patience).await {
                Ok(Some(turn)) => return Ok(turn),
                Ok(None) => {
                    let rest = self.rest(candidate, &mut awaited, patience).await;
                    tokio::select! {
                        () = changes.of(candidate.election.as_str()) => {}
                        () = sleep(rest) => {}
                    }
                }
                Err(Error::Unreachable { .. }) => sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn await_end(&self, candidate: &Candidate, patience: Patience) -> Lost {
        let mut changes = self.link.changes();
        loop {
            match leader(&self.link, &candidate.election, patience).await {
                Ok(Some((leader, _))) if leader.token.get() == candidate.token => {
                    changes.of(candidate.election.as_str()).await;
                }
                Ok(Some((leader, _))) => return Lost::Superseded { token: leader.token },
                Ok(None) => return Lost::Revoked,
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    async fn proclaim(&self, candidate: &Candidate, value: Vec<u8>, patience: Patience) -> Result<(), Error> {
        let shown = String::from_utf8(value)
            .map_err(|_| Error::Refused { reason: "the proclaimed value must be UTF-8".into() })?;
        let parameters = vec![name(&candidate.election), number(candidate.token), text(shown)];
        let (rows, _) = ask(&self.link, PROCLAIM, parameters, patience).await?;
        match rows.first().map(|row| column(row, 0)).transpose()? {
            Some(true) => Ok(()),
            _ => Err(Error::Gone),
        }
    }

    async fn withdraw(&self, candidate: &Candidate, patience: Patience) -> Result<(), Error> {
        let election = name(&candidate.election);
        let released = match candidate.token {
            0 => ask(&self.link, RELEASE_OF_HOLDER, vec![election, text(identity(candidate))], patience).await,
            token => ask(&self.link, RELEASE, vec![election, number(token)], patience).await,
        };
        released.map(drop)
    }

    fn observe(self: &Arc<Self>, election: &ElectionName) -> Observer {
        Observer::new(LeaseObserver::new(self.link.clone(), election.clone()))
    }
}

/// Leases in PostgreSQL are never shared: each place has its own. One statement renews all of them.
impl<C: Connect> Share for Leases<C> {
    async fn grant(&self, ttl: Duration, _: Patience) -> Result<Lease, Error> {
        Ok(Lease { id: 0, ttl, deadline: BootInstant::now() + ttl })
    }

    async fn enter(
        &self,
        election: &ElectionName,
        holder: &str,
        lease: &Lease,
        patience: Patience,
    ) -> Result<(Candidate, BootInstant), Error> {
        self.enrol(election, holder, lease.ttl, patience).await
    }

    async fn renew_all(
        &self,
        lease: &Lease,
        candidates: &[Candidate],
        patience: Patience,
    ) -> Result<Vec<Result<BootInstant, Error>>, Error> {
        let leading = || candidates.iter().filter(|candidate| candidate.token != 0);
        let elections: Vec<String> = leading().map(|candidate| candidate.election.to_string()).collect();
        let tokens: Vec<i64> = leading().map(|candidate| candidate.token).collect();
        let arrays: [Value; 2] = [(Arc::new(elections), Type::TEXT_ARRAY), (Arc::new(tokens), Type::INT8_ARRAY)];
        let [elections, tokens] = arrays;
        let (rows, sent) = ask(&self.link, RENEW_ALL, vec![elections, tokens, seconds(lease.ttl)], patience).await?;
        let renewed = rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?)));
        let renewed: HashMap<&str, bool> = renewed.collect::<Result<_, Error>>()?;
        let of = |candidate: &Candidate| match renewed.get(candidate.election.as_str()) {
            _ if candidate.token == 0 => Ok(sent + candidate.ttl),
            Some(true) => Ok(sent + candidate.ttl),
            Some(false) => Err(Error::Gone),
            None => {
                let reason = "another transaction has locked the lease".into();
                Err(Error::Unreachable { limit: patience.limit, reason })
            }
        };
        Ok(candidates.iter().map(of).collect())
    }

    async fn leave(&self, candidate: &Candidate, patience: Patience) -> Result<(), Error> {
        self.withdraw(candidate, patience).await
    }

    async fn revoke(&self, _: &Lease, _: Patience) -> Result<(), Error> {
        Ok(())
    }
}

/// Holder name in the database, unique per candidate.
fn identity(candidate: &Candidate) -> String {
    format!("{}#{:016x}", candidate.holder, candidate.lease)
}

/// Splits a holder into name and candidate number. Another program's holder is all name, with the number 0.
fn name_in(holder: &str) -> (&str, i64) {
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16);
    let parts = holder.rsplit_once('#').and_then(|(name, digits)| Some((name, number(digits)?.cast_signed())));
    parts.unwrap_or((holder, 0))
}

/// The leader, and the remaining time of its lease. Cancel-safe.
async fn leader<C: Connect>(
    link: &Arc<Link<C>>,
    election: &ElectionName,
    patience: Patience,
) -> Result<Option<(Leader, Duration)>, Error> {
    let (rows, _) = ask(link, LEADER, vec![name(election)], patience).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (holder, token, rest): (String, i64, f64) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
    let (name, lease) = name_in(&holder);
    let leader = Leader { token: Token(token), key: election.as_str().into(), value: name.into(), lease };
    Ok(Some((leader, Duration::try_from_secs_f64(rest).unwrap_or_default())))
}

/// The rows, and when the answered query was sent. Cancel-safe: the query may take effect.
async fn ask<C: Connect>(
    link: &Arc<Link<C>>,
    question: &'static str,
    parameters: Vec<Value>,
    patience: Patience,
) -> Result<(Vec<Row>, BootInstant), Error> {
    let parameters: Arc<[Value]> = parameters.into();
    link.ask(patience, move |open: Arc<Open>| {
        let parameters = parameters.clone();
        async move {
            let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
                parameters.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect();
            let sent = BootInstant::now();
            let rows: Result<Vec<Row>, tokio_postgres::Error> = open.client.query_typed(question, &parameters).await;
            rows.map(|rows| (rows, sent))
        }
    })
    .await
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, Error> {
    row.try_get(index).map_err(|error| Error::Refused { reason: error.to_string() })
}

fn name(election: &ElectionName) -> Value {
    text(election.as_str().to_owned())
}

fn text(text: String) -> Value {
    (Arc::new(text), Type::TEXT)
}

fn number(number: i64) -> Value {
    (Arc::new(number), Type::INT8)
}

fn seconds(time: Duration) -> Value {
    (Arc::new(time.as_secs_f64()), Type::FLOAT8)
}

/// How long to wait for a notification while there is no leader.
const LONG: Duration = Duration::from_secs(60);

/// Follows the leader of one election. The reported key is the election, and the lease is the candidate's number; 0 for
/// holders of other programs.
pub(crate) struct LeaseObserver<C> {
    link: Arc<Link<C>>,
    election: ElectionName,
    changes: Changes,
    /// Time of the next read at the latest; None: immediately.
    look: Option<Instant>,
}

impl<C: Connect> LeaseObserver<C> {
    fn new(link: Arc<Link<C>>, election: ElectionName) -> Self {
        let changes = link.changes();
        LeaseObserver { link, election, changes, look: None }
    }
}

impl<C: Connect> Observe for LeaseObserver<C> {
    async fn next(&mut self) -> Result<Option<Leader>, Error> {
        if let Some(look) = self.look {
            tokio::select! {
                () = self.changes.of(self.election.as_str()) => {}
                () = sleep_until(look) => {}
            }
            // Reset before reading, so that a notification is not lost if the read is canceled.
            self.look = None;
        }
        let found = leader(&self.link, &self.election, Patience::USUAL).await?;
        let rest = found.as_ref().map_or(LONG, |(_, rest)| *rest + Duration::from_millis(5));
        self.look = Some(Instant::now() + rest);
        Ok(found.map(|(leader, _)| leader))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_name_is_recovered_from_its_identity() {
        let candidate = |lease| {
            let election = "e".parse().unwrap();
            Candidate { election, holder: "node#1".into(), lease, token: 0, ttl: Duration::ZERO }
        };
        for lease in [0, 1, i64::MAX, i64::MIN, -1] {
            assert_eq!(name_in(&identity(&candidate(lease))), ("node#1", lease));
        }
        for other in ["", "#", "a#1", "a#00000000000000001", "a#000000000000000g", "a"] {
            assert_eq!(name_in(other), (other, 0));
        }
    }
}
