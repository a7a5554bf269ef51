//! Elections on a real etcd: leading, waiting, and the end of leadership.

mod cluster;
mod etcdctl;
pub mod loss;
mod nested;
mod outage;
mod phantom;
mod queue;
mod renewal;
mod run;
mod session;
mod shared;

use crate::support::etcd::Etcd;
use crate::support::programs::run;
use crate::support::{DEADLINE, Stalls, wait_until};
use fencegate_leader::etcd::{Etcd as Client, EtcdSettings, leader};
use fencegate_leader::{Election, ElectionBuilder, Error, Leader, Leadership, Lost, Patience};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

const NAME: &str = "/test/leader";
/// Long enough that neither a renewal nor an expiry affects the test.
const LONG: u64 = 300;

type Campaign = JoinHandle<Result<Leadership, Error>>;

fn client(members: &[&str]) -> Arc<Client> {
    let members = members.iter().map(|&url| url.to_owned()).collect();
    Client::new(&EtcdSettings { members, ..EtcdSettings::default() }).unwrap()
}

fn candidate(members: &[&str], holder: &str, ttl: u64) -> ElectionBuilder {
    Election::etcd(members.iter().copied()).name(NAME).holder(holder).ttl(Duration::from_secs(ttl))
}

fn election(server: &Etcd, holder: &str, ttl: u64) -> Election {
    candidate(&[&server.url()], holder, ttl).build().unwrap()
}

async fn win(election: &Election) -> Leadership {
    soon(election.campaign()).await.unwrap()
}

/// Campaigns in a separate task, and returns when the candidate is in the queue.
fn queue_up(server: &Etcd, election: &Election) -> Campaign {
    let (before, election) = (keys(server).len(), election.clone());
    let campaign = tokio::spawn(async move { election.campaign().await });
    wait_for_keys(server, before + 1);
    campaign
}

/// True if the reason for the loss is the coordinator's silence. If the machine stalled during the last renewal, the
/// reason may be an expired lease instead.
pub fn is_silence(loss: &Lost, stalled: Duration) -> bool {
    matches!(loss, Lost::Unreachable { .. }) || *loss == Lost::Expired && stalled >= Duration::from_millis(50)
}

/// Checks that all leaderships are lost because of the coordinator's silence. `stalls` must be watched since before the
/// silence.
pub async fn silence_ends(leaderships: &[Leadership], stalls: Stalls) {
    let mut losses = Vec::new();
    for leadership in leaderships {
        losses.push(soon(leadership.lost()).await);
    }
    let stalled = stalls.total();
    assert!(losses.iter().all(|loss| is_silence(loss, stalled)), "{losses:?}, stalled for {stalled:?}");
}

/// Waits until each leadership is renewed.
pub async fn renewed(leaderships: &[Leadership]) {
    let states: Vec<_> = leaderships.iter().map(Leadership::subscribe).collect();
    for mut state in states {
        soon(state.changed()).await.unwrap();
        assert_eq!(state.borrow().check(), Ok(()));
    }
}

/// Waits for an event without its own time limit.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("it happens in time")
}

/// The keys of all candidates, in queue order.
fn keys(server: &Etcd) -> Vec<String> {
    let order = ["--sort-by=CREATE", "--order=ASCEND"];
    let arguments = ["get", "--prefix", &format!("{NAME}/"), "--keys-only"];
    let output = run(server.etcdctl(&arguments).args(order)).stdout;
    String::from_utf8(output).unwrap().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn wait_for_keys(server: &Etcd, count: usize) {
    wait_until(format!("the election has {count} candidates"), DEADLINE, || keys(server).len() == count);
}

fn lease(key: &str) -> &str {
    key.rsplit_once('/').unwrap().1
}

/// The leader according to etcd.
async fn current(server: &Etcd) -> Option<Leader> {
    leader(&client(&[&server.url()]), &NAME.parse().unwrap(), Patience::USUAL).await.unwrap().0
}
