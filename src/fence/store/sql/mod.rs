//! The statements of the fence, as text: a file for each of its tables, and for server processes and their locks.
//!
//! Owns quoting and everything that is said to the database. Each function's text is one simple
//! Query: its statements are one transaction, READ COMMITTED, and each has a snapshot of its own.
//! That is so as well where the statement is an EXECUTE of what the connection has prepared: the server takes the snapshot when
//! the EXECUTE begins, so after all locks of the statements before it.
//! The rows that a backend sees of pg_stat_get_activity are fixed at the first look in a
//! transaction; that is why looks are Queries of their own.

pub mod admission;
pub mod epoch;
pub mod lease;
pub mod lock;
pub mod prepared;
pub mod privilege;
pub mod process;
pub mod proxy;

/// A row of `admission a` belongs to a living process: the pid is there, and its backend_start is
/// the same or hidden. NOT IN is never joined: the processes are read once and hashed, whatever the plan knows of the table.
const LIVING: &str = "((a.pid, a.backend_start) NOT IN ( \
     SELECT s.pid, s.backend_start FROM pg_stat_get_activity(NULL) s) IS NOT TRUE)";

const THIS_DATABASE: &str = "(SELECT oid FROM pg_database WHERE datname = current_database())";

/// The epoch of row `a` is below this one; the arguments are SQL.
fn below(resource: &str, generation: &str, token: &str) -> String {
    format!("a.resource = {resource} AND (a.generation, a.token) < ({generation}, {token})")
}
