use super::*;
use crate::clock::BootInstant;
use crate::coordinator::{Observe, Sealed};
use crate::etcd::{Etcd, EtcdSettings};
use crate::{Leader, Observer, Patience};
use std::future::pending;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A coordinator that deletes each place as soon as it is taken.
#[derive(Default)]
struct TakesAway {
    given: AtomicUsize,
    /// Delete the place even before it is returned.
    at_once: bool,
}

struct NoLeader;

impl Observe for NoLeader {
    async fn next(&mut self) -> Result<Option<Leader>, Error> {
        pending().await
    }
}

impl Sealed for TakesAway {}

impl Coordinator for TakesAway {
    async fn enrol(
        &self,
        election: &ElectionName,
        holder: &str,
        ttl: Duration,
        _: Patience,
    ) -> Result<(Candidate, BootInstant), Error> {
        self.given.fetch_add(1, Relaxed);
        // Simulates the time of a response.
        sleep(Duration::from_millis(1)).await;
        if self.at_once {
            return Err(Error::Gone);
        }
        let (election, holder) = (election.clone(), holder.to_owned());
        Ok((Candidate { election, holder, lease: 1, token: 1, ttl }, BootInstant::now() + ttl))
    }

    async fn renew(&self, _: &Candidate, _: Patience) -> Result<BootInstant, Error> {
        Err(Error::Gone)
    }

    async fn try_turn(&self, _: &Candidate, _: Patience) -> Result<Option<Turn>, Error> {
        Err(Error::Gone)
    }

    async fn await_turn(&self, _: &Candidate, _: Patience) -> Result<Turn, Error> {
        Err(Error::Gone)
    }

    async fn await_end(&self, _: &Candidate, _: Patience) -> Lost {
        Lost::Revoked
    }

    async fn proclaim(&self, _: &Candidate, _: Vec<u8>, _: Patience) -> Result<(), Error> {
        Err(Error::Gone)
    }

    async fn withdraw(&self, _: &Candidate, _: Patience) -> Result<(), Error> {
        Ok(())
    }

    fn observe(self: &Arc<Self>, _: &ElectionName) -> Observer {
        Observer::new(NoLeader)
    }
}

#[tokio::test(start_paused = true)]
async fn lost_places_are_retaken_at_growing_intervals() {
    for at_once in [false, true] {
        let coordinator = Arc::new(TakesAway { at_once, ..TakesAway::default() });
        let timings = Timings::new(Duration::from_secs(10), Duration::from_secs(3), Duration::from_secs(1)).unwrap();
        let settings = Settings { name: "e".parse().unwrap(), holder: "h".into(), timings, meter: None };
        let campaign = Arc::new(Campaign { coordinator: coordinator.clone(), settings });
        let (won, outcome) = oneshot::channel();
        let candidacy = tokio::spawn(run(campaign, Waiting::ForTurn, won));
        sleep(Duration::from_secs(60)).await;
        let given = coordinator.given.load(Relaxed);
        assert!((10..30).contains(&given), "{given} places in a minute");
        drop(outcome);
        candidacy.await.unwrap();
        assert_eq!(coordinator.given.load(Relaxed), given, "the campaign has ended");
    }
}

/// Keeps a lease with this remaining time while the coordinator is unreachable.
async fn keep_unanswered(left: Duration) -> Lost {
    // The port of the discard service: nothing listens there.
    let members = vec!["http://127.0.0.1:9".into()];
    let etcd = Etcd::new(&EtcdSettings { members, ..EtcdSettings::default() }).unwrap();
    let timings = Timings::new(Duration::from_secs(2), Duration::from_millis(600), Duration::from_millis(200)).unwrap();
    let candidate =
        Candidate { election: "e".parse().unwrap(), holder: "h".into(), lease: 1, token: 1, ttl: timings.ttl() };
    let (keeper_state, _) = watch::channel(State::new(BootInstant::now() + left));
    // Blocks the thread, as if the process were stopped.
    std::thread::sleep(Duration::from_millis(50));
    keep(&*etcd, &candidate, &timings, &keeper_state, None).await
}

#[tokio::test]
async fn a_suspension_past_the_deadline_expires_the_lease() {
    assert_eq!(keep_unanswered(Duration::from_millis(20)).await, Lost::Expired);
}

#[tokio::test]
async fn a_refused_waiter_receives_the_reason() {
    let loss = keep_unanswered(Duration::from_millis(500)).await;
    assert!(matches!(&loss, Lost::Unreachable { reason } if reason.contains("127.0.0.1:9")), "{loss}");
}
