//! Long messages that are announced but not sent, or sent but not read.

use super::flood::{answered, beside};
use crate::support::fenced::{Fenced, code, ok};
use crate::support::{DEADLINE, Options, ProxyOptions, Wire, message, wait_until};

const SCHEMA: &str = "CREATE TABLE jobs (n int); CREATE TABLE free (t text)";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";
const MIB: usize = 1 << 20;
/// After this many checks without progress, no more data will be accepted.
const LOOKS: usize = 20;

fn start() -> Fenced {
    Fenced::start_with(Options::default(), SCHEMA, &ProxyOptions::default().policies(POLICIES))
}

/// A query that announces that many bytes, sends some of them, and stalls.
fn stalled(world: &Fenced, announced: usize, sent: usize) -> Wire {
    let mut wire = world.login();
    let mut text = message::header(b'Q', announced as i32);
    text.extend(b"SELECT '");
    text.resize(sent, b'x');
    wire.send(&text);
    wire
}

fn insert(bytes: usize) -> String {
    format!("INSERT INTO free VALUES ('{}')", "x".repeat(bytes))
}

#[test]
fn announced_and_stalled() {
    let world = start();
    let (mut writer, text) = (world.login(), insert(3 * MIB / 2));
    for (announced, sent) in [(16 * MIB - 64, 5 * MIB / 4), (16 * MIB - 64, 4 * MIB), (3 * MIB, 2 * MIB)] {
        let _stalled: Vec<_> = (0..40).map(|_| stalled(&world, announced, sent)).collect();
        let what = format!("40 sessions announce {announced} bytes and stall after {sent}");
        answered(&what, 5, || drop(ok(&mut writer, &text)));
    }
}

/// The clients are slow, but never stall for long.
#[test]
fn announced_and_sent_drop_by_drop() {
    let world = start();
    let (mut writer, text) = (world.login(), insert(3 * MIB / 2));
    let mut drops: Vec<Vec<Wire>> =
        (0..4).map(|_| (0..10).map(|_| stalled(&world, 16 * MIB - 64, 5 * MIB / 4)).collect()).collect();
    let drops = std::sync::Mutex::new(&mut drops);
    let step = |_: &_| {
        let mut wires = drops.lock().unwrap();
        wires.iter_mut().flatten().for_each(|wire| {
            wire.try_send(b"x");
        });
    };
    beside("drop by drop", (4, 0), step, 5, || drop(ok(&mut writer, &text)));
}

/// The server does not read messages after a running statement.
#[test]
fn behind_a_statement_that_runs() {
    let world = start();
    let (mut writer, text) = (world.login(), insert(3 * MIB / 2));
    let long = message::parse("", &format!("SELECT '{}'", "x".repeat(15 * MIB)), &[]);
    let behind = || {
        let mut wire = world.login();
        wire.send(&[message::unnamed("SELECT pg_sleep(600)", &[]), message::sync()].concat());
        (wire, 0)
    };
    let mut held: Vec<(Wire, usize)> = (0..6).map(|_| behind()).collect();
    let (mut refused, mut worked) = (0, 0);
    wait_until("no more data is accepted", DEADLINE, || {
        let mut taken = 0;
        for (wire, sent) in &mut held {
            let more = if *sent < long.len() { wire.try_send(&long[*sent..]).unwrap_or(0) } else { 0 };
            *sent += more;
            taken += more;
        }
        let before = std::mem::replace(&mut worked, world.proxy.processor_time());
        refused = if taken == 0 && worked == before { refused + 1 } else { 0 };
        refused == LOOKS
    });
    answered("behind statements that run", 5, || drop(ok(&mut writer, &text)));
    assert_eq!(code(&mut writer, "INSERT INTO jobs VALUES (1)"), "LF002");
}
