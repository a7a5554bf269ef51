//! The proxy works when the system refuses to start more threads.

use super::world::{WRITE, World};
use crate::support::fenced::{code, ok};
use crate::support::message::query;
use crate::support::{DEADLINE, programs};
use std::process::Command;

/// In bytes. Too little for the stack of another thread, but enough for small sessions.
const TOO_LITTLE: u64 = 1 << 20;

const CHANGED: &str = "version: 1\nresources:\n  - {name: other, tables: [public.jobs]}\n";

/// Work that needs a thread uses an existing one. The limit is on memory, because root is exempt from limits on
/// processes.
#[test]
fn long_texts_are_read_and_settings_are_reloaded() {
    let mut world = World::new();
    let proxy = &world.fenced.proxy;
    let limit = format!("--as={}", proxy.address_space() + TOO_LITTLE);
    programs::run(Command::new("prlimit").args(["--pid", &proxy.pid().to_string(), &limit]));
    let text = |number: usize| format!("SELECT '{}', {number}", "x".repeat(20_000));
    for number in 0..10 {
        let (mut one, mut other) = (world.hostile(), world.hostile());
        one.send(&query(&text(2 * number)));
        ok(&mut other, &text(2 * number + 1));
        assert_eq!(one.read_until_ready().last().map(|frame| frame.tag), Some(b'Z'), "the session was not terminated");
        assert_eq!(code(&mut one, &format!("{}; {WRITE}", text(number))), "LF001");
        world.is_unharmed();
    }
    let proxy = &mut world.fenced.proxy;
    proxy.write_policies(CHANGED);
    proxy.sighup();
    proxy.wait_for_log("policy_changed", DEADLINE);
    let log = world.fenced.proxy.log();
    assert!(!log.contains("panicked"), "{log}");
}
