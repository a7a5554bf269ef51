//! A throwaway etcd: one member, in a folder of its own.

use super::guardian::{Folder, Port, Program};
use super::programs::run;
use super::wait::{DEADLINE, wait_for};
use std::path::Path;
use std::process::Command;

/// A member that runs; stopped and removed when dropped.
pub struct Etcd {
    // Before the folder: fields are dropped in this order.
    member: Option<Program>,
    folder: Folder,
    client: Port,
    peer: Port,
    /// In the folder; another one after a restore.
    data: String,
}

impl Etcd {
    pub fn start() -> Self {
        let mut etcd = Self {
            member: None,
            folder: Folder::new("etcd"),
            client: Port::claim(),
            peer: Port::claim(),
            data: "data".into(),
        };
        etcd.start_again();
        etcd
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client.number())
    }

    pub fn port(&self) -> u16 {
        self.client.number()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// STOP silences it as a paused machine would; CONT resumes it.
    pub fn signal(&mut self, name: &str) {
        self.member.as_mut().expect("etcd runs").signal(name);
    }

    /// It dies without a chance to say anything.
    pub fn kill9(&mut self) {
        let mut member = self.member.take().expect("etcd runs");
        member.signal("KILL");
        member.wait();
    }

    /// Starts a member that was killed, with the data that it had.
    pub fn start_again(&mut self) {
        assert!(self.member.is_none(), "etcd runs already");
        let (url, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer.number()));
        let data = self.folder.join(&self.data).display().to_string();
        let command = [
            "etcd".to_owned(),
            format!("--data-dir={data}"),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ];
        self.member = Some(Program::start(&command, &self.folder, &self.folder.join("log"), "KILL"));
        wait_for("etcd is healthy", DEADLINE, || {
            let health = self.etcdctl(&["endpoint", "health"]).output().unwrap();
            health.status.success().then_some(())
        });
    }

    /// Writes everything it holds to a file.
    pub fn save_snapshot(&self, name: &str) {
        run(&mut self.etcdctl(&["snapshot", "save", &self.folder.join(name).display().to_string()]));
    }

    /// Kills it, and starts it again from a snapshot: its revisions go back.
    pub fn restore_snapshot(&mut self, name: &str) {
        self.kill9();
        let data = format!("{}-restored", self.data);
        let peer = format!("http://127.0.0.1:{}", self.peer.number());
        run(self
            .etcdctl(&["snapshot", "restore", &self.folder.join(name).display().to_string()])
            .arg(format!("--data-dir={}", self.folder.join(&data).display()))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=default={peer}")));
        self.data = data;
        self.start_again();
    }

    /// etcd's own client.
    pub fn etcdctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD")) {
            command.env_remove(name);
        }
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.url())).args(arguments);
        command
    }
}
