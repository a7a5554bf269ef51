//! Watching the leader of an election.
//!
//! Must never trust its memory after a gap: whenever the watch breaks, the whole election is read again.

use super::connection::{Etcd, EtcdError, Patience};
use super::election::{ElectionName, Leader, reading};
use etcd_client::{WatchOptions, WatchStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// After a watch has broken: one that breaks as soon as it begins must not make this spin.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows the leader of one election.
#[derive(Debug)]
pub struct Observer {
    etcd: Arc<Etcd>,
    election: ElectionName,
    watch: Option<WatchStream>,
    /// Something has changed since the leader was last read.
    stale: bool,
    /// What was last returned.
    known: Option<Option<Leader>>,
}

impl Observer {
    /// An observer that has seen nothing yet.
    pub fn new(etcd: Arc<Etcd>, election: ElectionName) -> Self {
        Observer { etcd, election, watch: None, stale: false, known: None }
    }

    /// The leader as it is now, at first, and then each time that another leads, that nobody does any more, or that
    /// it proclaims another value. Changes that follow each other fast may be seen as one. Cancel-safe.
    /// After an error call again, which reads everything anew.
    pub async fn next(&mut self) -> Result<Option<Leader>, EtcdError> {
        loop {
            let leader = if let Some(watch) = &mut self.watch {
                if !self.stale && !sees_change(watch).await {
                    self.watch = None;
                    sleep(PAUSE).await;
                    continue;
                }
                self.stale = true;
                reading(&self.etcd, &self.election, Patience::USUAL).await?.leader
            } else {
                let reading = reading(&self.etcd, &self.election, Patience::USUAL).await?;
                // Sees whatever has changed since it was read.
                self.watch = Some(self.watch_from(reading.revision + 1, reading.with_own_key).await?);
                reading.leader
            };
            self.stale = false;
            if self.known.as_ref() != Some(&leader) {
                self.known = Some(leader.clone());
                return Ok(leader);
            }
        }
    }

    async fn watch_from(&self, revision: i64, with_own_key: bool) -> Result<WatchStream, EtcdError> {
        let election = self.election.clone();
        self.etcd
            .ask(Patience::USUAL, move |mut client| {
                let election = election.clone();
                let options = WatchOptions::new().with_start_revision(revision);
                async move {
                    let mut watch = client.watch(election.prefix(), Some(options.clone().with_prefix())).await?;
                    if with_own_key {
                        watch.watch(election.as_str(), Some(options)).await?;
                    }
                    Ok(watch)
                }
            })
            .await
    }
}

/// Waits for a change of the watched keys. False when the watch has broken.
pub(crate) async fn sees_change(watch: &mut WatchStream) -> bool {
    while let Ok(Some(response)) = watch.message().await {
        if response.canceled() {
            return false;
        }
        if !response.events().is_empty() {
            return true;
        }
    }
    false
}
