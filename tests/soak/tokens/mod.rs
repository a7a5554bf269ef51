//! docs/lead/other-tokens.md is correct for Redis and ZooKeeper: its code runs unchanged, except for ports.

mod redis;
mod zookeeper;

use crate::support::ticks::{self, WRITE, ok, refused, session};
use crate::support::wire::Wire;
use crate::support::{Postgres, Proxy};

const PAGE: &str = include_str!("../../../docs/lead/other-tokens.md");

/// A fence that accepts tokens from any source.
struct Fence {
    proxy: Proxy,
    _postgres: Postgres,
}

impl Fence {
    fn start() -> Self {
        let postgres = ticks::server();
        Self { proxy: ticks::proxy(&postgres), _postgres: postgres }
    }

    /// A session that has written under this token.
    fn writer(&self, token: i64) -> Wire {
        let mut wire = session(&self.proxy.address(), token);
        ok(&mut wire, WRITE);
        wire
    }

    /// The second holder shuts the first out.
    fn follows(&self, first: i64, second: i64) {
        let mut old = self.writer(first);
        self.writer(second);
        refused(&mut old, WRITE, "LF001");
    }
}
