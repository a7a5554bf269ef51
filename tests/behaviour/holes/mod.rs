//! Possible holes of a fencing proxy, one by one, with real proxies. Each test opens the hole as far as possible, and
//! shows that no stale write passes. `docs/internals/verification.md` lists the holes and their tests. Holes that no
//! client can reach are tested in `tests/behaviour/fence`.

mod identity;
mod login;
mod outage;
mod process;
mod strings;
mod two_phase;

use crate::support::ticks::{self, POLICIES};
use crate::support::{Options, Postgres, Proxy, ProxyOptions};

const CONTROL_ROLE: &str = "fencer";
const APPLICATION_ROLE: &str = "app";

/// A server whose control role and application role are not superusers, and a proxy.
fn with_ordinary_roles() -> (Postgres, Proxy) {
    let postgres = Postgres::start(Options::default());
    postgres.sql(&format!("CREATE ROLE {CONTROL_ROLE} LOGIN; CREATE ROLE {APPLICATION_ROLE} LOGIN"));
    ticks::init(&postgres, CONTROL_ROLE);
    let control = postgres.control_url().replace("postgres@", &format!("{CONTROL_ROLE}@"));
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().policies(POLICIES).control(&control));
    (postgres, proxy)
}
