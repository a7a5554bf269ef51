//! Watches the leader of an election.
//!
//! Must never trust its cache after a gap: when the watch breaks, it reads the whole election again.

use super::connection::{Etcd, EtcdError};
use super::election::reading;
use crate::{ElectionName, Leader, Patience};
use etcd_client::{ResponseHeader, WatchOptions, WatchStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

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
