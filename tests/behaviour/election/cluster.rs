//! A cluster of three members, of which some stand still.

use super::{NAME, client, soon, timings, win};
use crate::support::guardian::{Folder, Port, Program};
use crate::support::{DEADLINE, Stalls, wait_until};
use fencegate::leader::clock::BootInstant;
use fencegate::leader::{Election, Leadership, Loss};
use std::process::Command;
use std::time::Duration;

struct Cluster {
    // Before the folder: fields are dropped in this order.
    members: Vec<Program>,
    ports: Vec<Port>,
    _folder: Folder,
}

impl Cluster {
    fn start() -> Self {
        let folder = Folder::new("etcd");
        let ports: Vec<Port> = (0..3).map(|_| Port::claim()).collect();
        let peers: Vec<Port> = (0..3).map(|_| Port::claim()).collect();
        let peer = |index: usize| format!("http://127.0.0.1:{}", peers[index].number());
        let all: Vec<String> = (0..3).map(|index| format!("m{index}={}", peer(index))).collect();
        let start = |index: usize| {
            let command = [
                "etcd".to_owned(),
                format!("--name=m{index}"),
                format!("--data-dir={}", folder.join(&format!("m{index}")).display()),
                format!("--listen-client-urls={}", url(&ports[index])),
                format!("--advertise-client-urls={}", url(&ports[index])),
                format!("--listen-peer-urls={}", peer(index)),
                format!("--initial-advertise-peer-urls={}", peer(index)),
                format!("--initial-cluster={}", all.join(",")),
            ];
            Program::start(&command, &folder, &folder.join("log"), "KILL")
        };
        let members = (0..3).map(start).collect();
        let cluster = Self { members, ports, _folder: folder };
        (0..3).for_each(|index| cluster.wait_for(index));
        cluster
    }

    /// Waits until the member takes part: its health is a linearizable read.
    fn wait_for(&self, index: usize) {
        wait_until("the member is healthy", DEADLINE, || {
            let endpoint = format!("--endpoints={}", url(&self.ports[index]));
            let health =
                Command::new("etcdctl").env("ETCDCTL_API", "3").args([&endpoint, "endpoint", "health"]).output();
            health.unwrap().status.success()
        });
    }

    async fn lead(&self, ttl: u64) -> Leadership {
        let urls: Vec<String> = self.ports.iter().map(url).collect();
        let members: Vec<&str> = urls.iter().map(String::as_str).collect();
        win(&Election::new(client(&members), NAME.parse().unwrap(), "ours", timings(ttl))).await
    }
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

/// One of the three is etcd's own leader, and one is the member that is asked first.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_outlives_each_member_that_stands_still() {
    let mut cluster = Cluster::start();
    let leadership = cluster.lead(10).await;
    for index in 0..3 {
        cluster.members[index].pause();
        for _ in 0..2 {
            let before = leadership.deadline();
            wait_until("the lease is renewed", DEADLINE, || leadership.deadline() > before);
        }
        cluster.members[index].signal("CONT");
        cluster.wait_for(index);
    }
    assert_eq!(leadership.why_lost(), None);
}

/// The member that still answers cannot know what the others have decided.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_leadership_is_lost_by_the_deadline() {
    const SLACK: Duration = Duration::from_millis(500);
    let mut cluster = Cluster::start();
    let leadership = cluster.lead(3).await;
    let stalls = Stalls::watch();
    cluster.members[0].pause();
    cluster.members[1].pause();
    let loss = soon(leadership.lost()).await;
    let (now, deadline) = (BootInstant::now(), leadership.deadline());
    let slack = SLACK + stalls.total();
    assert!(matches!(loss, Loss::Unreachable { .. }), "{loss:?}");
    assert!(deadline <= now && now < deadline + slack, "{now:?} is not {deadline:?}");
}
