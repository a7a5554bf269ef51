//! System calls of the proxy that fail or transfer a part. The proxy continues or refuses. It never aborts, loses no
//! acknowledged write and passes no stale one.

use crate::support::commit_order::CommitOrder;
use crate::support::guardian::Folder;
use crate::support::link::{Fault, Link};
use crate::support::postgres::SUPERUSER;
use crate::support::programs::run;
use crate::support::ticks::{self, POLICIES, TABLE, WRITE, ok, refused, session};
use crate::support::wait::wait_for;
use crate::support::wire::error_in;
use crate::support::{Address, DEADLINE, Postgres, Proxy, ProxyOptions, Wire, message, seed, wait_until};
use crate::torture::history::{History, Outcome, Write, now};
use fencegate_testing::dice::Dice;
use futures_util::future::join_all;
use nix::errno::Errno;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

const CLIENTS: u64 = 5;
const WRITES: usize = 40;
/// Time limit of a connection and of a write.
const PATIENCE: Duration = Duration::from_secs(10);

/// A proxy whose system calls fail from [`Self::begin`] to [`Self::end`].
struct World {
    // Fields are dropped in this order.
    proxy: Proxy,
    postgres: Postgres,
    folder: Folder,
}

impl World {
    /// Every n-th call with one of these names fails, where n is `every`. Without an error, it transfers one byte.
    /// None if the machine is not x86-64.
    fn start(every: u32, error: Option<Errno>, calls: &[&str]) -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let folder = Folder::new("faults");
        let tool = folder.join("faults").display().to_string();
        run(Command::new("cc").args(["-o", &tool, concat!(env!("CARGO_MANIFEST_DIR"), "/tests/soak/faults/faults.c")]));
        let error = error.map_or(0, |error| error as i32).to_string();
        let mut under = vec![tool, folder.path().display().to_string(), every.to_string(), error];
        under.extend(calls.iter().map(|&call| call.to_owned()));
        under.push("--".into());
        let postgres = ticks::server();
        let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().policies(POLICIES).under(under));
        Some(Self { proxy, postgres, folder })
    }

    fn begin(&self) {
        File::create(self.folder.join("on")).unwrap();
    }

    /// Waits until a call has failed.
    fn end(&self) {
        let failed = || fs::metadata(self.folder.join("done")).is_ok_and(|done| done.len() > 0);
        wait_until("a call has failed", DEADLINE, failed);
        fs::remove_file(self.folder.join("on")).unwrap();
    }

    /// The proxy serves the next leader, stops as requested, and has not panicked.
    fn assert_unharmed(mut self, token: i64) {
        let writes = || {
            let mut wire = Wire::connect(&self.proxy.address()).ok()?;
            let options = format!("-c lease.fence={token}");
            let login = wire.start(&[("user", SUPERUSER), ("database", "postgres"), ("options", &options)], "");
            (error_in(&login).is_none() && error_in(&wire.query(WRITE)).is_none()).then_some(())
        };
        wait_for("the next leader writes", DEADLINE, writes);
        refused(&mut session(&self.proxy.address(), token - 1), WRITE, "LF001");
        assert_eq!(self.proxy.terminate(), 0);
        let log = self.proxy.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// Several leaders write while calls fail.
fn endure(every: u32, error: Option<Errno>, calls: &[&str]) {
    let Some(world) = World::start(every, error, calls) else { return };
    world.begin();
    let highest = judge_leaders(&world.postgres, &world.proxy.address());
    world.end();
    world.assert_unharmed(highest + 2);
}

/// Several leaders write through the proxy. Returns the highest token.
fn judge_leaders(postgres: &Postgres, address: &Address) -> i64 {
    let mut order = CommitOrder::start(postgres, "postgres");
    let highest = AtomicI64::new(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let writes = runtime.block_on(join_all((0..CLIENTS).map(|number| lead(address, number, &highest)))).concat();
    let rows = order.take(TABLE).into_iter();
    let rows = rows.map(|mut row| (row.number("token"), row.columns.remove("note").unwrap().unwrap()));
    let history = History::new(writes, rows.collect());
    println!("{history}");
    assert!(history.count_tokens() > 1, "nothing was tested");
    assert_eq!(history.violations(), [""; 0]);
    assert!(history.is_linearizable());
    highest.into_inner()
}

/// A leader that sometimes loses to a successor. Returns its writes with a known outcome.
async fn lead(address: &Address, number: u64, highest: &AtomicI64) -> Vec<Write> {
    let mut dice = Dice::new(seed() + number);
    let (mut writes, mut client, mut token) = (Vec::new(), None, 0);
    for write in 0..WRITES {
        if token == 0 || dice.chance(10) {
            (client, token) = (None, highest.fetch_add(1, Ordering::Relaxed) + 1);
        }
        if client.is_none() {
            client = connect(address, token).await;
        }
        let Some(session) = &client else { continue };
        let invoke = now();
        let value = format!("{number}/{invoke}/{write}");
        let insert = format!("INSERT INTO ticks (note) VALUES ('{value}')");
        let done = async {
            match dice.below(3) {
                0 => session.batch_execute(&insert).await,
                1 => session.batch_execute(&format!("BEGIN; {insert}; COMMIT")).await,
                _ => session.execute("INSERT INTO ticks (note) VALUES ($1)", &[&value]).await.map(drop),
            }
        };
        let outcome = timeout(PATIENCE, done).await.map_or(Outcome::Unknown, |done| Outcome::of(done.err()));
        let returned = Some(now());
        match outcome {
            Outcome::Unknown => client = None,
            _ => {
                writes.push(Write { client: number.to_string(), token, value, invoke, returned, outcome, commit: None })
            }
        }
        if outcome == Outcome::CutOff {
            client = None;
        } else if let Some(session) = &client {
            let _ = timeout(PATIENCE, session.batch_execute("ROLLBACK")).await;
        }
    }
    writes
}

async fn connect(address: &Address, token: i64) -> Option<Client> {
    let (host, port) = address.host_and_port();
    let mut config = tokio_postgres::Config::new();
    config.host(host).port(port.parse().unwrap()).user("postgres").dbname("postgres");
    config.options(format!("-c lease.fence={token}"));
    let (client, connection) = timeout(PATIENCE, config.connect(NoTls)).await.ok()?.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// Only for files and pipes: epoll(7) permits a program to conclude from a short transfer that a socket has no more.
#[test]
fn short_reads_and_writes() {
    endure(1, None, &["read", "readv", "write", "writev"]);
}

#[test]
fn single_bytes_from_clients_and_servers() {
    let postgres = ticks::server();
    let link = Link::to(postgres.port());
    let server = format!("127.0.0.1:{}", link.port());
    let options = ProxyOptions::default().policies(POLICIES).upstream(&format!("postgres://{server}"));
    let mut proxy = Proxy::start_with(&postgres, &options.control(&format!("postgres://{SUPERUSER}@{server}/")));
    let clients = Link::to(proxy.address().host_and_port().1.parse().unwrap());
    [&link, &clients].iter().for_each(|it| it.suffer(Fault::SingleBytes));
    judge_leaders(&postgres, &Address::Tcp((Ipv4Addr::LOCALHOST, clients.port()).into()));
    assert_eq!(proxy.terminate(), 0);
}

#[test]
fn interrupted_calls() {
    endure(3, Some(Errno::EINTR), &["accept4", "connect", "epoll_wait", "openat", "read"]);
}

const SENDS: [&str; 3] = ["sendmsg", "sendto", "writev"];

#[test]
fn failed_sends() {
    endure(40, Some(Errno::ENOBUFS), &SENDS);
}

/// A client must not take the answer to its second query for that to the first.
#[test]
fn a_lost_query_or_answer_ends_the_session() {
    // The first send goes to the server, the second to the client.
    for every in [1, 2] {
        let Some(world) = World::start(every, Some(Errno::ENOBUFS), &SENDS) else { return };
        let mut leader = session(&world.proxy.address(), 5);
        ok(&mut leader, WRITE);
        world.begin();
        leader.send(&message::query("SELECT 1 / 0"));
        world.end();
        leader.send(&message::query(WRITE));
        let answer: Vec<_> = leader.read_until_ready().iter().map(|frame| frame.tag as char).collect();
        assert!(!answer.contains(&'C'), "{answer:?}");
        world.assert_unharmed(7);
    }
}

#[test]
fn failed_receives() {
    endure(40, Some(Errno::EINTR), &["readv", "recvfrom"]);
}

#[test]
fn no_descriptors() {
    endure(5, Some(Errno::EMFILE), &["accept4", "openat", "socket"]);
}

/// Long texts are parsed in another process. While the system refuses to start one, they are refused.
#[test]
fn no_process_for_long_texts() {
    let calls = ["clone", "clone3", "fork", "socketpair", "vfork"];
    let Some(world) = World::start(1, Some(Errno::EAGAIN), &calls) else { return };
    let address = world.proxy.address();
    let long = format!("SELECT 1 WHERE 1 IN (1{}); {WRITE}", ", 1".repeat(20_000));
    let [mut old, mut leader] = [5, 6].map(|token| session(&address, token));
    ok(&mut leader, WRITE);
    world.begin();
    for _ in 0..3 {
        refused(&mut leader, &long, "LF004");
        refused(&mut old, &long, "LF004");
        ok(&mut leader, WRITE);
        ok(&mut session(&address, 6), "SELECT 1");
    }
    world.end();
    ok(&mut leader, &long);
    refused(&mut old, &long, "LF001");
    world.assert_unharmed(7);
}

/// Long messages do not need as much memory as they have bytes.
#[test]
fn little_memory() {
    const LEFT: u64 = 48 << 20;
    let postgres = ticks::server();
    let mut proxy = Proxy::start(&postgres, POLICIES, &[]);
    let [mut old, mut leader] = [5, 6].map(|token| session(&proxy.address(), token));
    ok(&mut leader, WRITE);
    let limit = format!("--as={}", proxy.address_space() + LEFT);
    run(Command::new("prlimit").args(["--pid", &proxy.pid().to_string(), &limit]));
    let long = format!("INSERT INTO ticks (note) VALUES ('{}')", "x".repeat(100 << 20));
    for sent in [&mut old, &mut leader] {
        sent.send(&message::query(&long));
        println!("{:?}", error_in(&sent.read_until_ready()));
    }
    ok(&mut session(&proxy.address(), 6), WRITE);
    refused(&mut session(&proxy.address(), 5), WRITE, "LF001");
    assert_eq!(proxy.terminate(), 0);
}
