//! Time limits of requests to a coordinator.

use std::time::Duration;

/// Time limits for a response.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Total limit.
    pub limit: Duration,
    /// Limit for one member, before the next one is queried too. A late response still counts.
    pub member: Duration,
}

impl Patience {
    /// For requests that do not depend on a lease: 5 s in total.
    pub const USUAL: Patience = Patience { limit: Duration::from_secs(5), member: Duration::from_secs(1) };
}
