//! A throwaway etcd of three members. A test can stop each member.

use super::guardian::{Folder, Port, Program};
use super::programs::forget_settings;
use super::wait::{DEADLINE, wait_until};
use std::process::Command;

/// Three running members; stopped and removed when dropped.
pub struct EtcdCluster {
    // Before the folder: fields are dropped in this order.
    members: Vec<Program>,
    ports: Vec<Port>,
    peers: Vec<Port>,
    folder: Folder,
}

impl EtcdCluster {
    pub const MEMBERS: usize = 3;

    pub fn start() -> Self {
        let ports = || (0..Self::MEMBERS).map(|_| Port::claim()).collect();
        let mut cluster = Self { members: Vec::new(), ports: ports(), peers: ports(), folder: Folder::new("etcd") };
        cluster.members = (0..Self::MEMBERS).map(|index| cluster.run(index)).collect();
        (0..Self::MEMBERS).for_each(|index| cluster.wait_for(index));
        cluster
    }

    fn run(&self, index: usize) -> Program {
        let peer = |index: usize| url(&self.peers[index]);
        let all: Vec<String> = (0..Self::MEMBERS).map(|index| format!("m{index}={}", peer(index))).collect();
        let command = [
            "etcd".to_owned(),
            format!("--name=m{index}"),
            format!("--data-dir={}", self.folder.join(&format!("m{index}")).display()),
            format!("--listen-client-urls={}", url(&self.ports[index])),
            format!("--advertise-client-urls={}", url(&self.ports[index])),
            format!("--listen-peer-urls={}", peer(index)),
            format!("--initial-advertise-peer-urls={}", peer(index)),
            format!("--initial-cluster={}", all.join(",")),
        ];
        Program::start(&command, &self.folder.join("log"), "KILL")
    }

    pub fn urls(&self) -> Vec<String> {
        self.ports.iter().map(url).collect()
    }

    /// Suspends the member, and returns when every thread has stopped.
    pub fn pause(&mut self, index: usize) {
        self.members[index].pause();
    }

    pub fn resume(&mut self, index: usize) {
        self.members[index].signal("CONT");
    }

    /// Kills the member without a clean shutdown.
    pub fn kill9(&mut self, index: usize) {
        self.members[index].signal("KILL");
        self.members[index].wait();
    }

    /// Restarts a killed member with its data.
    pub fn start_again(&mut self, index: usize) {
        self.members[index] = self.run(index);
    }

    /// Waits until the member has joined the cluster: its health check is a linearizable read.
    pub fn wait_for(&self, index: usize) {
        wait_until("the member is healthy", DEADLINE, || {
            let mut etcdctl = Command::new("etcdctl");
            forget_settings(&mut etcdctl);
            let endpoint = format!("--endpoints={}", url(&self.ports[index]));
            etcdctl.env("ETCDCTL_API", "3").args([&endpoint, "endpoint", "health"]);
            etcdctl.output().unwrap().status.success()
        });
    }
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}
