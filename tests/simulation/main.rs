//! The proxy in a simulated world: the released state machines of sessions, fences and watchers, on one thread, with
//! virtual time and faults drawn from a seed.
//!
//! Owns the phases of a history. First, some proxies in front of one server, nodes that lead and are deposed, and
//! faults. Then a calm phase, in which the current leader must be able to write. Then the end, at which nothing may be
//! left. The same seed produces the same history.
//!
//! Not simulated: real sockets and their buffers (net/), login and TLS, rules and triggers, encodings, roles, procedures;
//! functions, except for some that write, set the search path, or use large objects. From the guard, only its decision on a
//! write is simulated. Tests with real servers cover these.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod coverage;
mod disaster;
mod elections;
mod judge;
mod locks;
mod node;
mod pipe;
mod process;
mod proxy;
mod server;
mod sql;
mod store;
mod unit;
mod world;

use client::{Client, Outcome};
use coverage::{Combination, Reached};
use fencegate_testing::length::number;
use node::Node;
use proxy::Proxy;
use sql::{Sql, Table};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::State;
use tokio::time::{sleep, timeout};
use unit::{Unit, write};
use world::{Plan, World, pass};

/// After the faults end, the current leader must have written within this time.
const WRITES_WITHIN: Duration = Duration::from_secs(30);
/// Every waiting client must receive its reply within this time.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// A proxy must have no state left within this time after its last session.
const CLEARS_UP_WITHIN: Duration = Duration::from_secs(15);

/// A sixth faster than the C library's: every history creates and drops a separate world.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The result of one history.
struct History {
    wrong: Option<String>,
    seen: BTreeMap<&'static str, u64>,
    tried: BTreeSet<Combination>,
    story: Vec<String>,
}

/// Runs the history of that seed.
fn history(seed: u64, tells: bool) -> History {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::new(seed, Plan::draw(seed), tells);
        live(&world).await;
        let story = world.story();
        world.end();
        History { wrong: world.judge.wrong(), seen: world.judge.seen(), tried: world.coverage.take(), story }
    })
}

async fn live(world: &Arc<World>) {
    (0..world.plan.proxies).for_each(|_| world.add_proxy(Proxy::start(world)));
    let disasters: Vec<_> = world.plan.disasters.clone();
    let disasters: Vec<_> = disasters.into_iter().map(|it| tokio::spawn(disaster::befall(world.clone(), it))).collect();
    let nodes: Vec<_> = (0..world.plan.nodes).map(|number| tokio::spawn(Node::new(world, number).live())).collect();
    sleep(Duration::from_millis(world.plan.length)).await;
    for disaster in disasters {
        disaster.await.unwrap();
    }
    world.end_faults();
    for proxy in running(world) {
        world.keep_up(&proxy).await;
    }
    if world.judge.wrong().is_none() && timeout(WRITES_WITHIN, write_by_all(world)).await.is_err() {
        world.judge.object(format!("the rightful leader has not written within {WRITES_WITHIN:?}"));
    }
    world.wake_proxies().await;
    // Some nodes wait for row locks of stalled clients that no fence covers.
    world.end_stalls();
    for node in nodes {
        match timeout(ANSWERED_WITHIN, node).await {
            Ok(ended) => ended.unwrap(),
            Err(_) => world.judge.object("a client waits for ever".to_owned()),
        }
    }
    if world.judge.wrong().is_none() {
        clear_up(world).await;
    }
}

/// The proxies that have neither crashed nor are suspended.
fn running(world: &World) -> Vec<Arc<Proxy>> {
    world.proxies().into_iter().filter(|proxy| proxy.gate.state() == State::Runs).collect()
}

/// A new leader writes to all resources, through all running proxies.
async fn write_by_all(world: &Arc<World>) {
    let mut dice = world.dice();
    let mut token = world.elections.win(world, &mut dice).await;
    world.say(|| format!("the rightful leader has {token}"));
    for proxy in running(world) {
        for table in world.plan.fenced() {
            while !writes(world, &proxy, token, *table).await {
                pass(&mut dice, 200).await;
                // An attempt may take longer than the lease.
                if !world.elections.renew(world, token) {
                    token = world.elections.win(world, &mut dice).await;
                }
            }
        }
    }
}

/// Returns false if the write must be retried.
async fn writes(world: &Arc<World>, proxy: &Arc<Proxy>, token: i64, table: Table) -> bool {
    let mut dice = world.dice();
    let mut client = Client::connect(world, proxy, "the rightful leader", Some(token.to_string()));
    if !client.is_ready().await {
        return false;
    }
    let write = write(world, &mut dice, table, client.ids.next());
    let unit = Unit::simple(vec![Sql::Begin, write, Sql::Commit]);
    let outcome = client.say(&[unit]).await;
    client.close();
    match outcome {
        Outcome::Done => true,
        Outcome::Failed(code) if code == "LF001" => {
            // The token is stale: a client has presented a higher one, or the fence was reset.
            world.elections.resign(world, token);
            false
        }
        _ => false,
    }
}

/// Waits until no session has left any state. The history then ends.
async fn clear_up(world: &Arc<World>) {
    let clears_up = async {
        while left(world).is_some() {
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(CLEARS_UP_WITHIN, clears_up).await.ok();
    if let Some(left) = left(world) {
        world.judge.object(left);
    }
}

fn left(world: &World) -> Option<String> {
    let (processes, admitted) = (world.server.processes(), world.server.store.has_admitted());
    let sessions = world.proxies().iter().filter(|proxy| proxy.has_sessions()).count();
    (processes > 0 || admitted || sessions > 0)
        .then(|| format!("left: {processes} processes, admissions: {admitted}, proxies with sessions: {sessions}"))
}

/// The CPU time of this thread, in seconds, which does not depend on other processes.
fn used() -> f64 {
    let used = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    Duration::from(used).as_secs_f64()
}

/// Runs histories for FENCEGATE_SIMULATE seconds, starting at a seed; or the one in FENCEGATE_HISTORY, with its trace.
#[test]
fn no_history_breaks_a_promise() {
    if let Some(seed) = number("FENCEGATE_HISTORY") {
        let History { wrong, story, .. } = history(seed, true);
        println!("{}\nhistory {seed}: {}", story.join("\n"), wrong.as_deref().unwrap_or("nothing is wrong"));
        assert!(wrong.is_none());
        return;
    }
    let first = number("FENCEGATE_SEED").unwrap_or(1);
    let limit = Duration::from_secs(number("FENCEGATE_SIMULATE").unwrap_or(20));
    println!("FENCEGATE_SEED={first}");
    let (since, mut seen, mut histories) = (Instant::now(), BTreeMap::<&str, u64>::new(), 0);
    let mut reached = Reached::default();
    while since.elapsed() < limit {
        let seed = first + histories;
        let History { wrong, seen: more, tried, .. } = history(seed, false);
        if let Some(wrong) = wrong {
            let History { wrong: again, story, .. } = history(seed, true);
            let story = story[story.len().saturating_sub(80)..].join("\n");
            assert_eq!(again.as_ref(), Some(&wrong), "the history is not reproducible");
            panic!("{story}\nFENCEGATE_HISTORY={seed}: {wrong} (after {histories} histories)");
        }
        histories += 1;
        reached.add(seed, &tried);
        for (what, times) in more {
            *seen.entry(what).or_default() += times;
        }
    }
    let surprises = reached.report(histories);
    println!("{histories} histories, {:.0} in a second of its processor: {seen:#?}", histories as f64 / used());
    assert_eq!(surprises, [""; 0]);
}

/// Each line of `rare.txt` has a seed and a situation with an event that its history reaches, as `make simulate` prints
/// them after `rare`.
#[test]
fn rare_situations() {
    let lines: Vec<_> = include_str!("rare.txt").lines().map(|line| line.split_once(' ').unwrap()).collect();
    let mut tried = HashMap::new();
    let mut missed = lines.clone();
    missed.retain(|(seed, wanted)| {
        let seed: u64 = seed.parse().unwrap();
        let tried = tried.entry(seed).or_insert_with(|| {
            let History { wrong, tried, .. } = history(seed, false);
            assert_eq!(wrong, None, "FENCEGATE_HISTORY={seed}");
            tried
        });
        !tried.iter().any(|it| coverage::name(it) == *wanted)
    });
    // A change of the session or the simulator changes histories.
    assert!(missed.len() < lines.len() / 2, "replace rare.txt by lines of `make simulate`; missed: {missed:#?}");
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 1..30 {
        let (one, two) = (history(seed, true).story, history(seed, true).story);
        let differs = one.iter().zip(&two).position(|(one, two)| one != two);
        assert!(
            one == two,
            "history {seed} differs at {differs:?}: {:?} and {:?}",
            one.get(differs.unwrap_or(0)),
            two.get(differs.unwrap_or(0))
        );
    }
}
