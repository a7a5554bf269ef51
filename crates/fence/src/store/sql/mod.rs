//! The statements of the fence, as text: a file for each of its tables, and for server processes and their locks.
//!
//! Owns quoting and all text sent to the database. Each function's text is one simple Query: its statements are one
//! READ COMMITTED transaction, and each statement has its own snapshot. The same holds for an EXECUTE of a prepared
//! statement: the server takes the snapshot when the EXECUTE begins, after all locks of the earlier statements.
//! The rows of pg_stat_get_activity are fixed at the first read in a transaction. Reads that need current rows are
//! therefore separate Queries.

pub mod admission;
pub mod catalog;
pub mod epoch;
pub mod init_lock;
pub mod lease;
pub mod lock;
pub mod prepared;
pub mod privilege;
pub mod process;
pub mod proxy;
pub mod table_lock;

macro_rules! is_of_this_database {
    () => {
        "((a.system_identifier, a.database) \
           = (fencegate.own_system_identifier(), fencegate.own_database()) IS NOT FALSE)"
    };
}

/// True if row `a` of `admission` or `proxy` was written for this database of this cluster, or if that is unknown.
const IS_OF_THIS_DATABASE: &str = is_of_this_database!();

/// True if row `a` belongs to a live process: the row was written for this database, the pid exists, and its backend_start is
/// the same or hidden. PostgreSQL never turns NOT IN into a join: it reads the processes once and hashes them, whatever the
/// statistics of the table.
const LIVING: &str = concat!(
    "(",
    is_of_this_database!(),
    " AND (a.pid, a.backend_start) NOT IN (SELECT s.pid, s.backend_start FROM pg_stat_get_activity(NULL) s \
       WHERE s.datid = fencegate.own_database() IS NOT FALSE) IS NOT TRUE)"
);

pub(super) const THIS_DATABASE: &str = "(SELECT oid FROM pg_database WHERE datname = current_database())";

/// True if the epoch of row `a` is below this one. The arguments are SQL.
fn below(resource: &str, generation: &str, token: &str) -> String {
    format!("a.resource = {resource} AND (a.generation, a.token) < ({generation}, {token})")
}
