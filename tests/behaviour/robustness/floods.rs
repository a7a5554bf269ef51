//! Clients that send without end and never read a response.

use super::world::{WRITE, World, codes};
use crate::support::message::{
    self, bind_text, close_statement, describe_statement, execute, flush, parse, query, sync,
};
use crate::support::{DEADLINE, Wire, share, wait_until};

/// Maximum additional memory of the proxy compared with small messages, in KiB.
const ALLOWED: u64 = 16 * 1024;
/// A client that can send this much was not blocked.
const ENOUGH: usize = 24 << 20;
/// The client is blocked if the proxy accepted nothing in this many checks and was idle in between.
const LOOKS: usize = 20;

/// Sends the message repeatedly until it is no longer accepted. Returns the number of bytes accepted.
fn flood(world: &World, wire: &mut Wire, message: &[u8]) -> usize {
    let many = message.repeat((64 << 10) / message.len() + 1);
    let (mut sent, mut refused, mut worked) = (0, 0, 0);
    wait_until("the proxy accepts no more", DEADLINE, || {
        while sent < ENOUGH {
            let Some(taken) = wire.try_send(&many[sent % many.len()..]) else {
                let before = std::mem::replace(&mut worked, world.fenced.proxy.processor_time());
                refused = if worked == before { refused + 1 } else { 0 };
                return refused == LOOKS;
            };
            sent += taken;
            refused = 0;
        }
        true
    });
    sent
}

fn floods(messages: Vec<(&str, Vec<u8>)>) {
    let mut world = World::new();
    for (what, message) in share(messages, 5) {
        let mut wire = world.hostile();
        let sent = flood(&world, &mut wire, &message);
        println!("{what}: {sent} bytes");
        world.is_unharmed();
        world.is_within_memory(ALLOWED);
    }
    world.ends_well(ALLOWED);
}

#[test]
fn a_flood_of_small_messages() {
    floods(vec![
        ("Sync", sync()),
        ("Flush", flush()),
        ("Parse", parse("", "SELECT 1", &[])),
        ("Parse and Flush", [parse("", "SELECT 1", &[]), flush()].concat()),
        ("Bind", [bind_text("", "", &[]), flush()].concat()),
        ("Describe and Sync", [describe_statement("x"), sync()].concat()),
        ("Close", close_statement("x")),
        ("a pipeline", [message::unnamed("SELECT repeat('x', 100)", &[]), sync()].concat()),
        ("Query", query("SELECT 1")),
        ("empty Query", query("")),
        ("CopyData", message::copy_data(b"x")),
    ]);
}

/// The proxy answers these itself. Only its own limit prevents the answers from accumulating.
#[test]
fn a_flood_of_rejected_queries() {
    floods(vec![("a stale write", query(WRITE)), ("an unreadable one", query("SELECT"))]);
}

/// The server uses only the first bytes of a name, and so must the proxy.
#[test]
fn a_flood_of_long_names() {
    let name = "n".repeat(3 << 20);
    floods(vec![
        ("Parse", parse(&name, "SELECT 1", &[])),
        ("Bind", [parse("", "SELECT 1", &[]), bind_text(&name[..60_000], "", &[])].concat()),
        ("Close", close_statement(&name[..9_000])),
        ("Execute", [message::unnamed("SELECT 1", &[]), execute(&name[..9_000], 0), sync()].concat()),
    ]);
}

/// The proxy's memory for statements is bounded for any number of prepared statements.
#[test]
#[ignore = "takes long: make soak"]
fn a_flood_of_statements_with_many_names() {
    const STATEMENTS: usize = 200;
    let mut world = World::new();
    let mut wire = world.hostile();
    // Too long for the cache of texts. The names in such a statement take half a MiB of the proxy's memory.
    let tables: Vec<_> = (0..7_000).map(|number| format!("table{number}")).collect();
    // The server looks up the tables when the statement runs.
    let text = format!("TRUNCATE {}", tables.join(","));
    for number in 0..STATEMENTS {
        let frames = wire.exchange(&[parse(&format!("s{number}"), &text, &[]), sync()].concat());
        assert_eq!(codes(&frames), Vec::<String>::new());
    }
    world.is_unharmed();
    drop(wire);
    // Memory for the statements, and for the tree of one of them.
    world.ends_well(80 * 1024);
}
