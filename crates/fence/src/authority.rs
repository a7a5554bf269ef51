//! The authority over tokens: etcd, for resources whose policy names an election.
//!
//! Owns the check of the current leader before a fence is raised, and the observation of leader changes. Must
//! never let a token raise a fence because of earlier knowledge: every raise queries etcd again, and
//! observed leaders are only a reason to query.

use super::fence_error::{FenceError, Issued};
use super::obstacle::Obstacle;
use super::session::{Epoch, Token};
use crate::background::Background;
use crate::supervise::supervise;
use async_trait::async_trait;
use fencegate_leader::coordinator::Coordinator;
use fencegate_leader::etcd::{Etcd, EtcdError, leader};
use fencegate_leader::{ElectionName, Error, Observer, Patience};
use fencegate_policy::Resource;
use futures_util::StreamExt;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// Limits of one query. A session waits for its answer.
const PATIENCE: Patience = Patience { limit: Duration::from_secs(3), member: Duration::from_millis(500) };
/// First and maximum pause before an election that could not be followed is followed again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Maximum number of followed elections of keys. Leaders of other elections are queried when a token would raise the fence.
const MOST_OF_KEYS: usize = 1000;

/// The leaders' tokens, by election. None: the election has no leader. Elections with an unknown leader are missing.
pub type Leaders = HashMap<ElectionName, Option<Token>>;

/// The source of elections: the current leader of each, and its successors.
#[async_trait]
pub trait Elections: fmt::Debug + Send + Sync {
    /// The token of the election's leader, if any, as of a moment after the call began (linearizable). Cancel-safe.
    async fn leader(&self, election: &ElectionName) -> Result<Option<Token>, EtcdError>;

    /// Begins to follow the election.
    fn follow(&self, election: &ElectionName) -> Box<dyn Following>;
}

/// A followed election.
#[async_trait]
pub trait Following: Send {
    /// First returns the leader's current token, then each change. Fast successive changes may be reported as one. After an error
    /// the election is no longer followed. Cancel-safe.
    async fn next(&mut self) -> Result<Option<Token>, Error>;
}

/// The elections of one etcd.
#[derive(Debug)]
struct InEtcd(Arc<Etcd>);

#[async_trait]
impl Elections for InEtcd {
    async fn leader(&self, election: &ElectionName) -> Result<Option<Token>, EtcdError> {
        let (found, _) = leader(&self.0, election, PATIENCE).await?;
        Ok(found.map(|leader| leader.token.get()))
    }

    fn follow(&self, election: &ElectionName) -> Box<dyn Following> {
        Box::new(self.0.observe(election))
    }
}

#[async_trait]
impl Following for Observer {
    async fn next(&mut self) -> Result<Option<Token>, Error> {
        match StreamExt::next(self).await {
            Some(leader) => Ok(leader?.map(|leader| leader.token.get())),
            // An observer never ends.
            None => std::future::pending().await,
        }
    }
}

/// The elections whose tokens may raise fences. Its methods need a tokio runtime with timers and I/O.
#[derive(Debug)]
pub struct Authority {
    /// None while no etcd is set. All databases share this authority, so a reload changes it for all at once.
    elections: RwLock<Option<Arc<dyn Elections>>>,
    /// Runs the tasks that follow elections.
    background: Background,
    leaders: watch::Sender<Leaders>,
    /// The tasks that follow elections.
    followed: Mutex<HashMap<ElectionName, AbortHandle>>,
    wanted: Mutex<FollowedElections>,
}

/// The elections to follow.
#[derive(Debug, Default)]
struct FollowedElections {
    /// Elections that policies name.
    named: BTreeSet<ElectionName>,
    /// By database, the elections of keys to which a session is admitted.
    of_keys: HashMap<String, BTreeSet<ElectionName>>,
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.followed.lock().drain().for_each(|(_, task)| task.abort());
    }
}

impl Authority {
    /// An authority without elections.
    pub fn new(background: Background) -> Arc<Self> {
        Arc::new(Authority {
            elections: RwLock::default(),
            background,
            leaders: watch::Sender::default(),
            followed: Mutex::default(),
            wanted: Mutex::default(),
        })
    }

    /// An authority over elections of any kind, which follows none yet.
    pub fn over(elections: Arc<dyn Elections>, background: Background) -> Arc<Self> {
        let authority = Authority::new(background);
        authority.set_elections(Some(elections));
        authority
    }

    /// Uses the elections of this etcd from now on. None: tokens of elections raise no fence.
    pub fn set_etcd(&self, etcd: Option<Arc<Etcd>>) {
        self.set_elections(etcd.map(|etcd| Arc::new(InEtcd(etcd)) as Arc<dyn Elections>));
    }

    fn set_elections(&self, elections: Option<Arc<dyn Elections>>) {
        let wanted = self.wanted.lock();
        self.followed.lock().drain().for_each(|(_, task)| task.abort());
        self.leaders.send_if_modified(|leaders| !std::mem::take(leaders).is_empty());
        *self.elections.write() = elections;
        self.follow_wanted(&wanted);
    }

    /// None while no etcd is set.
    pub(super) fn elections(&self) -> Option<Arc<dyn Elections>> {
        self.elections.read().clone()
    }

    /// Follows exactly these elections, which policies name, in addition to those of keys.
    pub fn follow(&self, elections: &BTreeSet<ElectionName>) {
        let mut wanted = self.wanted.lock();
        wanted.named.clone_from(elections);
        self.follow_wanted(&wanted);
    }

    /// Follows exactly these elections of keys for the database. In total, at most [`MOST_OF_KEYS`] are followed.
    pub(super) fn follow_keys(&self, database: &str, elections: BTreeSet<ElectionName>) {
        let mut wanted = self.wanted.lock();
        if wanted.of_keys.get(database).is_none_or(|before| *before != elections) {
            wanted.of_keys.insert(database.to_owned(), elections);
            wanted.of_keys.retain(|_, elections| !elections.is_empty());
            self.follow_wanted(&wanted);
        }
    }

    fn follow_wanted(&self, wanted: &FollowedElections) {
        let Some(source) = self.elections() else { return };
        let of_keys = wanted.of_keys.values().flatten().take(MOST_OF_KEYS);
        let elections: BTreeSet<&ElectionName> = wanted.named.iter().chain(of_keys).collect();
        let mut followed = self.followed.lock();
        followed.retain(|election, task| {
            let stays = elections.contains(election);
            if !stays {
                task.abort();
                self.leaders.send_if_modified(|leaders| leaders.remove(election).is_some());
            }
            stays
        });
        for election in elections {
            followed.entry(election.clone()).or_insert_with(|| {
                let (source, election, leaders) = (source.clone(), election.clone(), self.leaders.clone());
                supervise(&self.background, "follow_election", move || {
                    follow(source.clone(), election.clone(), leaders.clone())
                })
            });
        }
    }

    /// The observed leaders. They may be outdated, so they never justify an admission or a raise.
    pub fn leaders(&self) -> watch::Receiver<Leaders> {
        self.leaders.subscribe()
    }

    /// Returns true if the token is that of the election's observed leader.
    pub(super) fn leads(&self, election: &ElectionName, token: Token) -> bool {
        self.leaders.borrow().get(election) == Some(&Some(token))
    }

    /// Returns true if etcd answers: the leader of every followed election is known. If none is followed, queries an arbitrary
    /// election. None: no etcd is set. Cancel-safe.
    pub async fn is_up(&self) -> Option<bool> {
        let elections = self.elections()?;
        let followed: Vec<_> = self.followed.lock().keys().cloned().collect();
        Some(match (followed.is_empty(), "/fencegate".parse()) {
            (true, Ok(any)) => elections.leader(&any).await.is_ok(),
            _ => followed.iter().all(|election| self.leaders.borrow().contains_key(election)),
        })
    }

    /// Checks with etcd that the token is that of the election's current leader (linearizable). Cancel-safe.
    ///
    /// A newer leader may appear between the answer and the Publish. This is harmless: the Publish raises the fence to
    /// a token that was issued, and the newer leader's token raises it further.
    ///
    /// # Errors
    /// LF001 if the leader's token is higher; LF005 if it is lower, or there is no leader; LF006 if etcd does not
    /// answer, or is not set.
    pub(super) async fn confirm(
        &self,
        resource: &Resource,
        election: &ElectionName,
        target: Epoch,
    ) -> Result<(), FenceError> {
        let unavailable = |obstacle| FenceError::unavailable(&resource.name, obstacle);
        let elections = self.elections().ok_or_else(|| unavailable(Obstacle::NoEtcd(election.clone())))?;
        let issued = elections
            .leader(election)
            .await
            .map_err(|error| unavailable(Obstacle::Etcd { election: election.clone(), reason: error.to_string() }))?;
        let presented = target.token;
        match issued {
            Some(token) if token == presented => Ok(()),
            Some(token) if token > presented => {
                let (resource, highest) = (resource.name.clone(), Epoch { token, ..target });
                Err(FenceError::Stale { resource, presented, highest })
            }
            Some(token) => Err(FenceError::unissued(resource, presented, Issued::ToLeader(token))),
            None => Err(FenceError::unissued(resource, presented, Issued::ToNobody)),
        }
    }
}

/// Keeps the election's entry among the leaders current, until the task is aborted.
async fn follow(elections: Arc<dyn Elections>, election: ElectionName, leaders: watch::Sender<Leaders>) {
    let mut pause = PAUSE.0;
    let mut logged = None;
    // After a restart of this task, the leader may have changed.
    leaders.send_if_modified(|leaders| leaders.remove(&election).is_some());
    loop {
        let mut following = elections.follow(&election);
        let error: Error = loop {
            match following.next().await {
                Ok(token) => {
                    pause = PAUSE.0;
                    // The token may be the same, after an outage or because the leader has proclaimed another value.
                    if logged.replace(token) != Some(token) {
                        match token {
                            Some(token) => tracing::info!(%election, token, "leader_observed"),
                            None => tracing::info!(%election, "leader_gone"),
                        }
                    }
                    leaders.send_if_modified(|leaders| leaders.insert(election.clone(), token) != Some(token));
                }
                Err(error) => break error,
            }
        };
        tracing::warn!(%election, %error, "election_not_observed");
        // Forget the last known leader. The next observer reports the current one, even if it is the same.
        leaders.send_if_modified(|leaders| leaders.remove(&election).is_some());
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fencegate_leader::etcd::EtcdSettings;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn a_silent_etcd_reports_no_leader() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let members = vec![format!("http://{}", silent.local_addr().unwrap())];
        let etcd = InEtcd(Etcd::new(&EtcdSettings { members, ..EtcdSettings::default() }).unwrap());
        let election = "/jobs".parse().unwrap();
        let asked = etcd.leader(&election).await;
        assert!(matches!(asked, Err(EtcdError::Unreachable { limit, .. }) if limit == PATIENCE.limit), "{asked:?}");
        let followed = etcd.follow(&election).next().await;
        let usual = Patience::USUAL.limit;
        assert!(matches!(followed, Err(Error::Unreachable { limit, .. }) if limit == usual), "{followed:?}");
    }
    /// The first observer reports a leader and then panics. The second observes nothing.
    #[derive(Debug, Default)]
    struct Defective(AtomicU32);

    #[async_trait]
    impl Elections for Defective {
        async fn leader(&self, _: &ElectionName) -> Result<Option<Token>, EtcdError> {
            Ok(None)
        }

        fn follow(&self, _: &ElectionName) -> Box<dyn Following> {
            let observers = self.0.fetch_add(1, Ordering::Relaxed);
            Box::new(DefectiveObserver { is_first: observers == 0, has_reported: false })
        }
    }

    struct DefectiveObserver {
        is_first: bool,
        has_reported: bool,
    }

    #[async_trait]
    impl Following for DefectiveObserver {
        async fn next(&mut self) -> Result<Option<Token>, Error> {
            assert!(!self.has_reported, "a simulated defect");
            self.has_reported = true;
            if self.is_first { Ok(Some(5)) } else { std::future::pending().await }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_observer_that_panics_is_replaced_and_forgets_its_leader() {
        let elections = Arc::new(Defective::default());
        let authority = Authority::over(elections.clone(), Background::current());
        let mut leaders = authority.leaders();
        let election: ElectionName = "/jobs".parse().unwrap();
        authority.follow(&BTreeSet::from([election.clone()]));
        leaders.wait_for(|leaders| leaders.contains_key(&election)).await.unwrap();
        leaders.wait_for(|leaders| !leaders.contains_key(&election)).await.unwrap();
        sleep(PAUSE.1).await;
        assert_eq!(elections.0.load(Ordering::Relaxed), 2);
    }
}
