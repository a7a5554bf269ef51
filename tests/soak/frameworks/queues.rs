//! Queues in tables, with the policies of docs/use/queues.md: every session adds jobs, and the leader processes them.

use crate::frameworks::world::{Outcome, run};
use crate::support::fenced::init;
use crate::support::proxy::fencegate;
use crate::support::{Options, Postgres, Proxy, programs};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PAGE: &str = include_str!("../../../docs/use/queues.md");

/// A server with the queue's schema, which an exempt role has created through the proxy.
struct Queue {
    // Before the server: fields are dropped in this order.
    proxy: Proxy,
    postgres: Postgres,
    command: fn() -> Command,
}

impl Queue {
    fn start(policy: &str, command: fn() -> Command) -> Self {
        let postgres = Postgres::start(Options::default());
        postgres.sql("CREATE ROLE migrator SUPERUSER LOGIN");
        postgres.sql("CREATE DATABASE app");
        init(&postgres, "app");
        let proxy = Proxy::start(&postgres, policy, &[]);
        let queue = Self { proxy, postgres, command };
        queue.run_as("migrator", None).lines();
        queue
    }

    fn run_as(&self, user: &str, token: Option<i64>) -> Outcome {
        let mut command = (self.command)();
        command.stdin(Stdio::null()).env("PGUSER", user);
        if user == "migrator" {
            command.env("QUEUE_MIGRATES", "1");
        }
        if let Some(token) = token {
            command.env("QUEUE_TOKEN", token.to_string());
        }
        run(&mut command, &self.proxy.address(), None)
    }

    /// Output of the program with that token; None: without a token.
    fn told(&self, token: Option<i64>) -> Vec<String> {
        self.run_as("postgres", token).lines()
    }

    fn install_guard(&self, policy: &str) {
        let folder = crate::support::guardian::Folder::new("queue");
        std::fs::write(folder.join("policy.yaml"), policy).unwrap();
        let control = self.postgres.control_url() + "app";
        let arguments = ["guard", "install", "--control", &control, "--policies"];
        programs::run(fencegate().args(arguments).arg(folder.path()));
    }
}

/// The policy in that section.
fn policy(section: &str) -> String {
    let (_, section) = PAGE.split_once(&format!("\n## {section}\n")).expect("the section");
    let (_, block) = section.split_once("```yaml\n").expect("its policy");
    let block = block.split("```").next().unwrap_or_default();
    format!("version: 1\n{block}exempt_roles: [migrator]\n")
}

fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/soak/frameworks/queues").join(name)
}

fn node(name: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["120", "node"]).arg(script(name));
    command.env("NODE_PATH", programs::node_folder().join("node_modules"));
    command
}

fn procrastinate() -> Command {
    let mut command = Command::new("timeout");
    command.arg("120").arg(programs::python()).arg(script("with_procrastinate.py"));
    command
}

#[test]
fn with_pg_boss() {
    let policy = policy("pg-boss");
    let queue = Queue::start(&policy, || node("pg_boss.js"));
    for guarded in [false, true] {
        assert_eq!(queue.told(Some(2)), ["sent true", "fetched 1", "leads"], "{guarded}");
        assert_eq!(queue.told(Some(1)), ["sent true", "fetched 0", "leads not LF001"], "{guarded}");
        assert_eq!(queue.told(None), ["sent true", "fetched 0", "leads not LF002"], "{guarded}");
        // The job that was sent in the meantime.
        assert_eq!(queue.told(Some(2))[..2], ["sent true", "fetched 1"], "{guarded}");
        queue.install_guard(&policy);
    }
}

#[test]
fn with_graphile_worker() {
    let policy = policy("graphile-worker");
    let queue = Queue::start(&policy, || node("graphile_worker.js"));
    let ended = "runOnce resolved";
    assert_eq!(queue.told(Some(2)), ["added", "worked", ended]);
    assert_eq!(queue.told(Some(1)), ["added", "getJob LF001", ended]);
    assert_eq!(queue.told(None), ["added", "getJob LF002", ended]);
    assert_eq!(queue.told(Some(2)), ["added", "worked", "worked", "worked", ended]);
    // graphile-worker adds jobs with an upsert, which fires triggers for UPDATE.
    queue.install_guard(&policy);
    assert_eq!(queue.told(Some(2)), ["added", "worked", ended]);
    assert_eq!(queue.told(None), ["not added LF002", "getJob LF002", ended]);
}

#[test]
fn with_procrastinate() {
    let policy = policy("procrastinate");
    let queue = Queue::start(&policy, procrastinate);
    for guarded in [false, true] {
        assert_eq!(queue.told(Some(2)), ["deferred", "worked", "worker ended"], "{guarded}");
        assert_eq!(queue.told(Some(1)), ["deferred", "worker failed LF001"], "{guarded}");
        assert_eq!(queue.told(None), ["deferred", "worker failed LF002"], "{guarded}");
        assert_eq!(queue.told(Some(2)), ["deferred", "worked", "worked", "worked", "worker ended"], "{guarded}");
        queue.install_guard(&policy);
    }
}

/// With the guard, the policy needs only the table: the first call of a new leader raises the token.
#[test]
fn with_procrastinate_and_the_guard_alone() {
    let named = policy("procrastinate");
    let policy: Vec<&str> = named.lines().filter(|line| !line.trim_start().starts_with("functions:")).collect();
    let policy = policy.join("\n");
    let queue = Queue::start(&policy, procrastinate);
    queue.install_guard(&policy);
    for leader in [2, 3] {
        assert_eq!(queue.told(Some(leader)), ["deferred", "worked", "worker ended"], "{leader}");
    }
    assert_eq!(queue.told(Some(2)), ["deferred", "worker failed LF001"]);
    assert_eq!(queue.told(None), ["deferred", "worker failed LF002"]);
}
