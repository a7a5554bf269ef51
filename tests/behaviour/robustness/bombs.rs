//! Texts that cost far more than their length: they crash nothing, delay no other session, and leave no memory behind.

use super::world::{WRITE, World, codes};
use crate::support::fenced::value;
use crate::support::message::{bind_text, execute, parse, query, sync};
use crate::support::{Stalls, share};
use fencegate_testing::bombs::bombs;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum memory of the proxy itself for one text, in KiB. A separate process has the same limit.
const MEMORY: u64 = 64 << 10;

/// Maximum memory in KiB that may remain, without the buffers of the sessions.
const LEFT: u64 = 16 << 10;

/// Hundredths of a second of processor time, in all threads and without optimization. An unbounded text takes minutes.
const PROCESSOR_TIME: u64 = 500;

#[test]
fn every_simple_query_has_a_bound() {
    each_has_a_bound(|text| query(&format!("{text}; {WRITE}")), |codes| codes.len() == 1);
}

#[test]
fn every_extended_query_has_a_bound() {
    each_has_a_bound(
        |text| [parse("", text, &[]), bind_text("", "", &[]), execute("", 0), sync()].concat(),
        |codes| codes.len() <= 1,
    );
}

fn each_has_a_bound(message: impl Fn(&str) -> Vec<u8>, is_answer: impl Fn(&[String]) -> bool) {
    let mut world = World::new();
    let pid = world.fenced.proxy.pid();
    for (what, text) in share(bombs(), 8) {
        let (memory, time) = (resident(pid), world.fenced.proxy.processor_time());
        forget_peak(pid);
        let mut wire = world.hostile();
        wire.send(&message(&text));
        world.is_unharmed();
        let frames = wire.read_until_ready();
        drop(wire);
        world.is_unharmed();
        let time = world.fenced.proxy.processor_time() - time;
        let peak = world.fenced.proxy.peak_memory().saturating_sub(memory);
        let left = resident(pid).saturating_sub(memory);
        let codes = codes(&frames);
        println!("{what}: {} bytes, {time} ticks, {peak} KiB, {left} KiB left, {codes:?}", text.len());
        assert!(is_answer(&codes), "{what}: {codes:?}");
        assert!(time < PROCESSOR_TIME, "{what}: {time} ticks");
        assert!(peak < MEMORY, "{what}: {peak} KiB");
        assert!(left < LEFT, "{what}: {left} KiB left");
    }
    world.ends_well(MEMORY);
}

/// Other clients are served while strangers send the most expensive texts.
#[test]
fn other_sessions_are_served_meanwhile() {
    const STRANGERS: usize = 4;
    let world = World::new();
    let bombs = share(bombs(), 8);
    let over = AtomicBool::new(false);
    let stalls = Stalls::watch();
    let longest = std::thread::scope(|scope| {
        for stranger in 0..STRANGERS {
            let (world, bombs, over) = (&world, &bombs, &over);
            scope.spawn(move || {
                let mut wire = world.hostile();
                for (_, text) in bombs.iter().skip(stranger).step_by(STRANGERS) {
                    wire.query(&format!("{text}; {WRITE}"));
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        let mut wire = world.fenced.login();
        let mut longest = Duration::ZERO;
        while !over.load(Ordering::Relaxed) {
            let asked = Instant::now();
            assert_eq!(value(&mut wire, "SELECT 'served'").as_deref(), Some("served"));
            longest = longest.max(asked.elapsed());
        }
        longest
    });
    println!("the longest wait was {longest:?}");
    assert!(longest < Duration::from_secs(2) + stalls.total(), "{longest:?}");
    world.ends_well(MEMORY * 2);
}

/// A text that ends its reader process is refused, and the next text has another reader.
#[test]
fn a_reader_that_ends_is_replaced() {
    let mut world = World::new();
    let mut wire = world.hostile();
    let list = vec!["12"; 20_000].join(",");
    let deadly = format!("UPDATE free SET ({}) = (SELECT {list})", vec!["n"; 20_000].join(","));
    for _ in 0..3 {
        assert_eq!(codes(&wire.query(&deadly)), ["LF004"]);
        let rows = wire.rows(&format!("SELECT 1 WHERE 12 IN ({list}) FOR UPDATE")).unwrap();
        assert_eq!(rows.len(), 1);
    }
    drop(wire);
    world.is_unharmed();
    world.ends_well(MEMORY);
}

fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Resets the peak memory of the process.
fn forget_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}
