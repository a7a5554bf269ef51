//! The statements of the fence, as text: a file for each of its tables, and for server processes and their locks.
//!
//! Owns quoting and everything that is said to the database. Each function's text is one simple
//! Query: its statements are one transaction, READ COMMITTED, and each has a snapshot of its own.
//! The rows that a backend sees of pg_stat_get_activity are fixed at the first look in a
//! transaction; that is why looks are Queries of their own.

pub mod admission;
pub mod epoch;
pub mod lease;
pub mod lock;
pub mod privilege;
pub mod process;
pub mod proxy;

use crate::fence::session::Epoch;
use crate::sql::quote;

/// A row of `admission a` belongs to a living process: the pid is there, and its backend_start is
/// the same or hidden.
const LIVING: &str = "EXISTS (SELECT FROM pg_stat_get_activity(NULL) s WHERE s.pid = a.pid \
     AND (s.backend_start IS NULL OR s.backend_start = a.backend_start))";

const THIS_DATABASE: &str = "(SELECT oid FROM pg_database WHERE datname = current_database())";

fn below(row: &str, resource: &str, bound: Epoch) -> String {
    format!(
        "{row}.resource = {} AND ({row}.generation, {row}.token) < ({}, {})",
        quote(resource),
        bound.generation,
        bound.token
    )
}
