//! Forty leaders under load, over two proxies, while the token is raised five times per second: the server's log of
//! commits has the tokens in order and every acknowledged commit. With a gate that knows the highest token but does not
//! drain, the commits are out of order. This shows that the load needs the drain, and that the check detects its
//! absence.

mod leader;

use crate::support::commit_order::{CommitOrder, Inserted};
use crate::support::ticks::{self, out_of_order};
use crate::support::{DEADLINE, length};
use leader::{Door, Leader, Reign};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const LEADERS: usize = 40;
const BETWEEN_ELECTIONS: Duration = Duration::from_millis(200);
/// Minimum number of tokens that must write, regardless of the time that takes.
const ENOUGH_REIGNS: usize = 30;

#[test]
fn forty_leaders_commit_in_the_order_of_their_tokens() {
    let postgres = ticks::server();
    let proxies = [ticks::proxy(&postgres), ticks::proxy(&postgres)];
    let mut order = CommitOrder::start(&postgres, "postgres");
    let doors: Vec<Door> = proxies.iter().map(|proxy| Door::Proxy(proxy.address())).collect();
    let acknowledged = rule(&doors, Duration::from_secs(length(5, 60)));

    let rows = order.take(ticks::TABLE);
    let tokens: Vec<i64> = rows.iter().map(|row| row.number("token")).collect();
    assert_eq!(out_of_order(&tokens), 0, "of {} writes", tokens.len());
    let committed = notes(&rows);
    let lost: Vec<&String> = acknowledged.iter().filter(|note| !committed.contains(note.as_str())).collect();
    assert!(lost.is_empty(), "acknowledged but not in the log: {lost:?}");
    let reigns: HashSet<i64> = tokens.iter().copied().collect();
    println!("{} writes under {} tokens, {} of them acknowledged", tokens.len(), reigns.len(), acknowledged.len());
    // With fewer tokens, little could be out of order.
    assert!(reigns.len() >= ENOUGH_REIGNS, "{} tokens wrote", reigns.len());
}

#[test]
fn a_gate_without_a_drain_allows_commits_out_of_order() {
    const ENOUGH: Duration = Duration::from_secs(5);
    let postgres = ticks::server();
    let mut order = CommitOrder::start(&postgres, "postgres");
    let doors = [Door::memory(postgres.address())];
    rule(&doors, ENOUGH);

    let tokens: Vec<i64> = order.take(ticks::TABLE).iter().map(|row| row.number("token")).collect();
    println!("{} of {} writes out of order", out_of_order(&tokens), tokens.len());
    assert!(out_of_order(&tokens) > 0, "of {} writes", tokens.len());
}

/// Lets each leader write through one of the doors. Returns the acknowledged writes.
fn rule(doors: &[Door], time: Duration) -> Vec<String> {
    let reign = Reign::default();
    thread::scope(|scope| {
        let leader = |number: usize| Leader::new(number, LEADERS, &doors[number % doors.len()], &reign);
        let leaders: Vec<_> = (0..LEADERS).map(|number| scope.spawn(move || leader(number).run())).collect();
        let start = Instant::now();
        let enough = || start.elapsed() >= time && reign.ruled.lock().unwrap().len() >= ENOUGH_REIGNS;
        while !enough() && start.elapsed() < time + DEADLINE && leaders.iter().all(|leader| !leader.is_finished()) {
            thread::sleep(BETWEEN_ELECTIONS);
            reign.token.fetch_add(1, Ordering::SeqCst);
        }
        reign.over.store(true, Ordering::SeqCst);
        leaders.into_iter().flat_map(|leader| leader.join().unwrap()).collect()
    })
}

fn notes(rows: &[Inserted]) -> HashSet<&str> {
    rows.iter().filter_map(|row| row.columns["note"].as_deref()).collect()
}
