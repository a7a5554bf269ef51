//! Configuring elections, and taking part in them.
//!
//! Must never leave a candidate without a caller: it would block those behind it.

use crate::candidacy::{Campaign, Settings, Waiting, Won, run};
use crate::clock::{InvalidTimings, Timings};
use crate::coordinator::{Coordinator, Share};
#[cfg(feature = "etcd")]
use crate::etcd::{Etcd, EtcdError, EtcdSettings};
use crate::lease_session::SharedLease;
#[cfg(feature = "postgres")]
use crate::postgres::parse;
use crate::{ElectionName, Error, InvalidName, Leadership, LeaseSession, Lost, Meter, Observer, Patience};
use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// TTL of a lease unless another is set.
const TTL: Duration = Duration::from_secs(10);

/// A coordinator of any type that can also share one lease among elections.
trait Service: Source {
    fn share(self: Arc<Self>, timings: Timings) -> Arc<dyn Source>;
}

impl<C: Share> Service for C {
    fn share(self: Arc<Self>, timings: Timings) -> Arc<dyn Source> {
        Arc::new(SharedLease::new(self, timings))
    }
}

/// Why an election cannot be configured. Retrying does not help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The connection string of the database is invalid.
    #[cfg(feature = "postgres")]
    #[error("invalid connection string: {0}")]
    Database(#[source] tokio_postgres::Error),
    /// The etcd members are invalid.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The name of the election is missing or invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The times do not fit together.
    #[error(transparent)]
    Timings(#[from] InvalidTimings),
}

/// Settings of an election. Start with [`Election::postgres`], [`Election::etcd`] or [`Election::on`]; end with
/// [`build`](Self::build) or [`session`](Self::session).
#[must_use = "call build() or session()"]
pub struct ElectionBuilder {
    service: Result<Arc<dyn Service>, BuildError>,
    name: String,
    holder: Option<String>,
    ttl: Duration,
    renewal: Option<Duration>,
    attempt: Option<Duration>,
    meter: Option<Arc<dyn Meter>>,
}

impl fmt::Debug for ElectionBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ElectionBuilder { name, holder, ttl, .. } = self;
        let mut shown = formatter.debug_struct("ElectionBuilder");
        shown.field("name", name).field("holder", holder).field("ttl", ttl).finish_non_exhaustive()
    }
}

impl Election {
    /// An election on leases in the database with this connection string, without TLS. For TLS, or to share one
    /// connection, see [`Self::on`].
    #[cfg(feature = "postgres")]
    pub fn postgres(url: &str) -> ElectionBuilder {
        match parse(url) {
            Ok(leases) => Election::on(leases),
            Err(error) => ElectionBuilder::new(Err(BuildError::Database(error))),
        }
    }

    /// An election on etcd with these members, such as `http://127.0.0.1:2379`. For TLS and passwords, or to share
    /// connections, see [`Self::on`].
    #[cfg(feature = "etcd")]
    pub fn etcd(members: impl IntoIterator<Item = impl Into<String>>) -> ElectionBuilder {
        let members = members.into_iter().map(Into::into).collect();
        match Etcd::new(&EtcdSettings { members, ..EtcdSettings::default() }) {
            Ok(etcd) => Election::on(etcd),
            Err(error) => ElectionBuilder::new(Err(error.into())),
        }
    }

    /// An election on this `Leases` or `Etcd`. All elections on the same one share its connections.
    pub fn on<C: Share>(coordinator: Arc<C>) -> ElectionBuilder {
        ElectionBuilder::new(Ok(coordinator))
    }
}

impl ElectionBuilder {
    fn new(service: Result<Arc<dyn Service>, BuildError>) -> Self {
        let name = String::new();
        ElectionBuilder { service, name, holder: None, ttl: TTL, renewal: None, attempt: None, meter: None }
    }

    /// Name of the election. Candidates with the same name compete.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        name.as_ref().clone_into(&mut self.name);
        self
    }

    /// Name of this candidate, which observers see while it leads. Default: host name and process ID.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// TTL of the lease, in whole seconds: another candidate can lead after this time if this machine fails. Default:
    /// 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Interval between renewals. Default: a third of the TTL.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renewal = Some(interval);
        self
    }

    /// Time for one connection or etcd member to answer a renewal before another is tried too. Default: a ninth of the
    /// TTL.
    pub fn attempt_limit(mut self, limit: Duration) -> Self {
        self.attempt = Some(limit);
        self
    }

    /// Reports the events of the candidate to this meter.
    pub fn meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Checks the settings. Sends no request yet.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn build(self) -> Result<Election, BuildError> {
        let name: ElectionName = self.name.parse()?;
        let timings = self.timings()?;
        let holder = self.holder.unwrap_or_else(usual_holder);
        Ok(self.service?.election(Settings { name, holder, timings, meter: self.meter }))
    }

    /// Checks the settings, for elections that share a lease. Ignores the name. Sends no request yet.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn session(self) -> Result<LeaseSession, BuildError> {
        let timings = self.timings()?;
        let holder = self.holder.unwrap_or_else(usual_holder);
        Ok(LeaseSession { source: self.service?.share(timings), holder, timings, meter: self.meter })
    }

    fn timings(&self) -> Result<Timings, InvalidTimings> {
        Timings::new(self.ttl, self.renewal.unwrap_or(self.ttl / 3), self.attempt.unwrap_or(self.ttl / 9))
    }
}

/// Unique on the network if host names are unique.
fn usual_holder() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    format!("{}-{}", host.display(), std::process::id())
}

/// An election, with the name and the lease timings of a candidate. Clones are candidates with the same name.
#[derive(Clone)]
pub struct Election(Arc<dyn AnyCampaign>);

/// A campaign on a coordinator of any type.
trait AnyCampaign: Send + Sync {
    fn run(self: Arc<Self>, waiting: Waiting, won: Won) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    fn observe(&self) -> Observer;
    fn settings(&self) -> &Settings;
}

impl<C: Coordinator> AnyCampaign for Campaign<C> {
    fn run(self: Arc<Self>, waiting: Waiting, won: Won) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(run(self, waiting, won))
    }

    fn observe(&self) -> Observer {
        self.coordinator.observe(&self.settings.name)
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// Makes the elections of one coordinator.
pub(crate) trait Source: Send + Sync {
    fn election(self: Arc<Self>, settings: Settings) -> Election;
}

impl<C: Coordinator> Source for C {
    fn election(self: Arc<Self>, settings: Settings) -> Election {
        if let Some(meter) = &settings.meter {
            meter.campaigns(&settings.name);
        }
        Election(Arc::new(Campaign { coordinator: self, settings }))
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { name, holder, timings, .. } = self.0.settings();
        formatter
            .debug_struct("Election")
            .field("name", name)
            .field("holder", holder)
            .field("timings", timings)
            .finish_non_exhaustive()
    }
}

impl Election {
    /// Name of the election.
    pub fn name(&self) -> &ElectionName {
        &self.0.settings().name
    }

    /// Follows the leaders of the election.
    pub fn observe(&self) -> Observer {
        self.0.observe()
    }

    /// Enters the queue and returns when this candidate leads. Keeps the lease alive while waiting. If the lease is
    /// lost while waiting (revoked, or this machine was suspended), a new candidate takes the last place. Cancel-safe:
    /// the candidate withdraws.
    ///
    /// # Errors
    /// The coordinator has not answered for a whole TTL or refuses, or the election is nested with another.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let won = self.campaign_until(pending::<()>()).await?;
        // None only for a candidate that stops or does not wait.
        won.ok_or(Error::Lost(Lost::Expired))
    }

    /// Like [`Self::campaign`], until `stop` completes. Then returns None, once the candidate has withdrawn or 5 s have
    /// passed; withdrawing continues in the background. For a process that is about to end. Cancel-safe: the candidate
    /// withdraws.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub async fn campaign_until(&self, stop: impl Future) -> Result<Option<Leadership>, Error> {
        self.run_candidacy(Waiting::ForTurn, stop).await
    }

    /// Leads if no other candidate does. Otherwise withdraws and returns None. Cancel-safe: the candidate withdraws.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        self.try_campaign_until(pending::<()>()).await
    }

    /// Like [`Self::try_campaign`], until `stop` completes, as [`Self::campaign_until`]. Cancel-safe: the candidate
    /// withdraws.
    ///
    /// # Errors
    /// As [`Self::campaign`].
    pub async fn try_campaign_until(&self, stop: impl Future) -> Result<Option<Leadership>, Error> {
        self.run_candidacy(Waiting::NotAtAll, stop).await
    }

    async fn run_candidacy(&self, waiting: Waiting, stop: impl Future) -> Result<Option<Leadership>, Error> {
        let (won, mut outcome) = oneshot::channel();
        let candidacy = tokio::spawn(self.0.clone().run(waiting, won));
        tokio::select! {
            // The task sends a result unless its runtime shuts down.
            leadership = &mut outcome => leadership.unwrap_or(Err(Error::Lost(Lost::Expired))),
            _ = stop => {
                drop(outcome);
                // Ignore the result: the candidate has withdrawn, or its lease ends by itself.
                let _ = timeout(Patience::USUAL.limit, candidacy).await;
                Ok(None)
            }
        }
    }
}
