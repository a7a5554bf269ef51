//! TTL and renewal interval of a lease.
//!
//! Must never accept a combination that loses leadership to a single lost message.

use crate::Patience;
use std::time::Duration;

/// The shortest TTL that etcd grants with its default election timeout.
const SHORTEST_TTL: Duration = Duration::from_secs(2);
/// With a longer TTL, a crashed leader would block its successors for too long.
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// Below the response time of a member, every request would go to all members.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(10);

/// Validated timings of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timings {
    ttl: Duration,
    renewal: Duration,
    attempt: Duration,
}

/// Why a combination is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum InvalidTimings {
    /// The TTL is too short, too long, or has fractions of a second.
    #[error(
        "a TTL of {0:?} is invalid: it must be whole seconds from {SHORTEST_TTL:?} (etcd's minimum) to {LONGEST_TTL:?}"
    )]
    Ttl(Duration),
    /// The attempt limit is too short.
    #[error("{0:?} is too short for one attempt: the minimum is {SHORTEST_ATTEMPT:?}")]
    Attempt(Duration),
    /// Renewals would follow each other faster than they may take.
    #[error("a renewal every {renewal:?} is too frequent, because one attempt may take {attempt:?}")]
    Renewal { renewal: Duration, attempt: Duration },
    /// No time remains for a second attempt.
    #[error(
        "a renewal every {renewal:?} with {attempt:?} per attempt leaves no time for a second attempt before the last \
         third of a TTL of {ttl:?}: one lost message would end leadership; renew more often, or give an attempt less time"
    )]
    NoRetry { ttl: Duration, renewal: Duration, attempt: Duration },
}

impl Timings {
    /// A lease with this TTL and renewal interval. `attempt` is the time for one member before the next is queried too.
    ///
    /// # Errors
    /// The TTL is not whole seconds from 2 s to 1 h, or a renewal and a second attempt do not fit into its first two
    /// thirds.
    pub(crate) fn new(ttl: Duration, renewal: Duration, attempt: Duration) -> Result<Self, InvalidTimings> {
        if ttl.subsec_nanos() != 0 || !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
            Err(InvalidTimings::Ttl(ttl))
        } else if attempt < SHORTEST_ATTEMPT {
            Err(InvalidTimings::Attempt(attempt))
        } else if renewal < attempt {
            Err(InvalidTimings::Renewal { renewal, attempt })
        } else if renewal.saturating_add(attempt.saturating_mul(2)) > ttl * 2 / 3 {
            Err(InvalidTimings::NoRetry { ttl, renewal, attempt })
        } else {
            Ok(Timings { ttl, renewal, attempt })
        }
    }

    /// Lifetime of the lease after a renewal.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Interval between renewals.
    pub(crate) fn renewal(&self) -> Duration {
        self.renewal
    }

    /// Time for one member before another is queried too.
    pub(crate) fn attempt(&self) -> Duration {
        self.attempt
    }

    /// Limits for a request that the lease does not depend on: a TTL in total.
    pub(crate) fn patience(&self) -> Patience {
        Patience { limit: self.ttl, member: self.attempt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The builder's default timings.
    fn usual(ttl: Duration) -> Result<Timings, InvalidTimings> {
        Timings::new(ttl, ttl / 3, ttl / 9)
    }

    #[test]
    fn every_valid_ttl_has_default_timings() {
        for seconds in [2, 3, 10, 3600] {
            assert!(usual(SECOND * seconds).is_ok(), "{seconds} s");
        }
        for ttl in [Duration::ZERO, SECOND, SECOND * 5 / 2, SECOND * 3601, Duration::MAX] {
            assert_eq!(usual(ttl), Err(InvalidTimings::Ttl(ttl)));
        }
    }

    #[test]
    fn timings_without_room_for_a_retry_are_rejected() {
        let (ttl, renewal) = (SECOND * 9, SECOND * 3);
        assert!(Timings::new(ttl, renewal, SECOND * 3 / 2).is_ok());
        let attempt = SECOND * 8 / 5;
        assert_eq!(Timings::new(ttl, renewal, attempt), Err(InvalidTimings::NoRetry { ttl, renewal, attempt }));
        let attempt = Duration::MAX;
        let renewal = Duration::MAX;
        assert_eq!(Timings::new(ttl, renewal, attempt), Err(InvalidTimings::NoRetry { ttl, renewal, attempt }));
    }

    #[test]
    fn timings_that_would_flood_the_coordinator_are_rejected() {
        let (ttl, attempt) = (SECOND * 9, Duration::from_millis(500));
        let renewal = attempt / 2;
        assert_eq!(Timings::new(ttl, renewal, attempt), Err(InvalidTimings::Renewal { renewal, attempt }));
        let attempt = Duration::from_millis(1);
        assert_eq!(Timings::new(ttl, SECOND, attempt), Err(InvalidTimings::Attempt(attempt)));
    }
}
