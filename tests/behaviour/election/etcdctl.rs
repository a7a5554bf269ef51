//! etcd's own client can take part in the same elections.

use super::{LONG, NAME, current, election, keys, queue_up, soon, wait_for_keys, win};
use crate::support::etcd::Etcd;
use crate::support::guardian::{Folder, Program};
use crate::support::{DEADLINE, wait_until};
use std::path::PathBuf;

/// `etcdctl elect`, which holds leadership until it is interrupted.
struct Elect {
    // Before the folder: fields are dropped in this order.
    program: Program,
    log: PathBuf,
    _folder: Folder,
}

impl Elect {
    fn start(server: &Etcd, arguments: &[&str]) -> Self {
        let folder = Folder::new("elect");
        let log = folder.join("log");
        let endpoints = format!("--endpoints={}", server.url());
        let command = [&["env", "ETCDCTL_API=3", "etcdctl", &endpoints, "elect"], arguments].concat();
        Elect { program: Program::start(&command, &log, "KILL"), log, _folder: folder }
    }

    fn has_said(&self, word: &str) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|log| log.lines().any(|line| line == word))
    }

    fn wait_to_say(&self, word: &str) {
        wait_until(format!("etcdctl prints {word}"), DEADLINE, || self.has_said(word));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ours_waits_for_theirs() {
    let server = Etcd::start();
    let mut theirs = Elect::start(&server, &[NAME, "theirs"]);
    theirs.wait_to_say("theirs");
    let campaign = queue_up(&server, &election(&server, "ours", LONG));
    assert!(!campaign.is_finished());
    theirs.program.signal("INT");
    let leadership = soon(campaign).await.unwrap().unwrap();
    assert_eq!(keys(&server).len(), 1, "theirs has gone");
    let leader = current(&server).await.unwrap();
    assert_eq!((leader.token, leader.value.as_slice()), (leadership.token(), &b"ours"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn theirs_waits_for_ours() {
    let server = Etcd::start();
    let leadership = win(&election(&server, "ours", LONG)).await;
    let theirs = Elect::start(&server, &[NAME, "theirs"]);
    wait_for_keys(&server, 2);
    assert!(!theirs.has_said("theirs"));
    leadership.resign().await.unwrap();
    theirs.wait_to_say("theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn theirs_observes_ours() {
    let server = Etcd::start();
    let theirs = Elect::start(&server, &["-l", NAME]);
    let leadership = win(&election(&server, "ours", LONG)).await;
    theirs.wait_to_say("ours");
    leadership.proclaim("ours, and more").await.unwrap();
    theirs.wait_to_say("ours, and more");
}
