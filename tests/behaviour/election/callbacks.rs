//! The callback API: work ends before a loss is reported.

use super::{LONG, election, keys, lease, run, soon, wait_for_keys};
use crate::support::etcd::Etcd;
use crate::support::{DEADLINE, wait_until};
use fencegate_leader::Leader;
use fencegate_leader::{Callbacks, Leadership, Loss};
use std::sync::{Arc, Mutex};

/// What was called, in order; the work itself ends at once, or never.
#[derive(Clone, Default)]
struct Recorder {
    calls: Arc<Mutex<Vec<String>>>,
    works_on: bool,
}

impl Recorder {
    fn note(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

/// Says when the work is dropped.
struct Work<'recorder>(&'recorder Recorder);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.note("work ended");
    }
}

impl Callbacks for Recorder {
    async fn started_leading(&self, _leadership: Leadership) {
        let _work = Work(self);
        self.note("started");
        if self.works_on {
            std::future::pending::<()>().await;
        }
    }

    fn stopped_leading(&self, loss: Loss) {
        self.note(loss.label());
    }

    fn new_leader(&self, leader: Option<Leader>) {
        let name = leader.map_or("nobody".into(), |leader| String::from_utf8(leader.value).unwrap());
        self.note(format!("leader: {name}"));
    }
}

fn without_leaders(calls: Vec<String>) -> Vec<String> {
    calls.into_iter().filter(|call| !call.starts_with("leader")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_ends_gives_leadership_up() {
    let server = Etcd::start();
    let recorder = Recorder::default();
    let loss = soon(election(&server, "ours", LONG).run(&recorder)).await.unwrap();
    assert_eq!(loss, Loss::Resigned);
    assert_eq!(without_leaders(recorder.calls()), ["started", "work ended", "resigned"]);
    assert!(keys(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_ends_the_work_before_it_is_reported() {
    let server = Etcd::start();
    let recorder = Recorder { works_on: true, ..Recorder::default() };
    let (election, callbacks) = (election(&server, "ours", LONG), recorder.clone());
    let run_to_its_end = tokio::spawn(async move { election.run(&callbacks).await });
    let called = |call: &str| recorder.calls().iter().any(|found| found == call);
    wait_until("it leads, and sees so", DEADLINE, || called("started") && called("leader: ours"));
    run(&mut server.etcdctl(&["lease", "revoke", lease(&keys(&server)[0])]));
    assert_eq!(soon(run_to_its_end).await.unwrap().unwrap(), Loss::Revoked);
    assert_eq!(without_leaders(recorder.calls()), ["started", "work ended", "revoked"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_leadership_ends_it() {
    let server = Etcd::start();
    let recorder = Recorder { works_on: true, ..Recorder::default() };
    let (election, callbacks) = (election(&server, "ours", LONG), recorder.clone());
    let running = tokio::spawn(async move { election.run(&callbacks).await });
    wait_until("it leads", DEADLINE, || recorder.calls().contains(&"started".to_owned()));
    running.abort();
    wait_for_keys(&server, 0);
    assert!(recorder.calls().contains(&"work ended".to_owned()));
}
