//! The proxy buffers no message because of its size, and only a little for a client that does not read.

use crate::support::message::{copy_data, copy_done, query};
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Target, Via, length, wait_until};
use std::sync::Mutex;

crate::routes!(a_very_long_row, a_row_that_nobody_reads, a_reader_that_stops, long_messages_of_copy_data);

/// Maximum additional memory of the proxy compared with small messages, in KiB.
const ALLOWED: u64 = 8 * 1024;

/// The server needs several gigabytes for a row of that size, so only one test runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn a_very_long_row(via: Via) {
    // As close to the server's limit as its own buffers allow.
    let size = lengths(100_000_000, 1_000_000_000);
    within_memory(via, |target| {
        let mut wire = target.login();
        wire.send(&query(&format!("SELECT repeat('x', {size})")));
        let mut frames = Vec::new();
        while frames.last().is_none_or(|(tag, _)| *tag != b'Z') {
            frames.push(wire.skip_frame().expect("the session goes on"));
        }
        let columns_and_length = 6;
        assert!(frames.contains(&(b'D', size + columns_and_length)), "{frames:?}");
    });
}

fn a_row_that_nobody_reads(via: Via) {
    // More than the kernel keeps for two sockets.
    let size = lengths(50_000_000, 100_000_000);
    within_memory(via, |target| {
        let mut wire = target.login();
        wire.send(&query(&format!("SELECT repeat('x', {size})")));
        wait_until_blocked(target);
        while wire.skip_frame().expect("the session goes on").0 != b'Z' {}
    });
}

fn a_reader_that_stops(via: Via) {
    let lines_sent = lengths(100, 1000);
    within_memory(via, |target| {
        let mut wire = target.login();
        let copy = format!("COPY (SELECT repeat('x', 1000000) FROM generate_series(1, {lines_sent})) TO STDOUT");
        wire.send(&query(&copy));
        wait_until_blocked(target);
        let mut lines = 0;
        loop {
            match wire.skip_frame().expect("the session goes on").0 {
                b'd' => lines += 1,
                b'Z' => break,
                _ => {}
            }
        }
        assert_eq!(lines, lines_sent);
    });
}

fn long_messages_of_copy_data(via: Via) {
    // Several messages of many lines. A single value of that size would fill the server's memory.
    const LINE: usize = 10_000;
    const MESSAGES: usize = 4;
    let lines = lengths(2_500, 25_000);
    within_memory(via, |target| {
        target.postgres.sql("CREATE UNLOGGED TABLE t (line text)");
        let line = [vec![b'x'; LINE - 1], vec![b'\n']].concat();
        let data = copy_data(&line.repeat(lines));
        let mut wire = target.login();
        wire.send(&query("COPY t FROM STDIN WHERE length(line) < 10"));
        wire.read_until(b'G');
        (0..MESSAGES).for_each(|_| wire.send(&data));
        let frames = wire.exchange(&copy_done());
        assert_eq!(error_in(&frames), None);
        assert_eq!(frames.last().unwrap().tag, b'Z');
    });
}

fn lengths(small: u64, full: u64) -> usize {
    usize::try_from(length(small, full)).unwrap()
}

fn within_memory(via: Via, work: impl Fn(&Target)) {
    // Ignore poisoning by a failed test: each test starts its own servers.
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let target = via.start(Options::default());
    let mut wire = target.login();
    (0..100).for_each(|_| assert_eq!(error_in(&wire.query("SELECT repeat('x', 10000)")), None));
    let peak = || target.proxy.as_ref().map_or(0, |proxy| proxy.peak_memory());
    let before = peak();
    work(&target);
    let grown = peak().saturating_sub(before);
    assert!(grown < ALLOWED, "the proxy grew by {grown} KiB");
}

/// Returns when the server has been unable to send for a long time.
fn wait_until_blocked(target: &Target) {
    const LOOKS: usize = 20;
    let query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'";
    let mut blocked = 0;
    wait_until("the server waits for its client", DEADLINE, || {
        blocked = if target.postgres.value(query) == "1" { blocked + 1 } else { 0 };
        blocked == LOOKS
    });
}
