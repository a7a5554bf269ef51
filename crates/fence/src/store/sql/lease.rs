//! SQL for leases. Only the functions in `leases.sql` write them.
//!
//! Must never write or lock a lease, because a leader's transaction may hold the row for as long as it runs.

use fencegate_postgres::sql::quote;

/// True if the holder of lease `l` leads, by the database's clock.
pub(super) const IN_FORCE: &str = "NOT l.released AND l.expires > clock_timestamp()";

/// The columns of a lease. A lease without a token was never acquired.
fn question() -> String {
    let times = ["acquired", "renewed", "expires"].map(|it| format!("extract(epoch FROM l.{it}) AS {it}")).join(", ");
    format!(
        "SELECT l.election, l.token, l.released, {IN_FORCE} AS in_force, l.shown AS holder, l.role, {times} \
         FROM fencegate_state.lease l WHERE l.token > 0"
    )
}

/// The existing leases of these elections.
pub fn leases(elections: &[&str]) -> String {
    let names: Vec<String> = elections.iter().map(|it| quote(it)).collect();
    format!("{} AND l.election = ANY (ARRAY[{}]::text[])", question(), names.join(", "))
}

/// The most recently acquired leases, at most `most`. The second statement's row is their total number.
pub fn all_leases(most: usize) -> String {
    format!(
        "{} ORDER BY l.acquired DESC, l.election LIMIT {most}; \
         SELECT count(*) AS leases FROM fencegate_state.lease l WHERE l.token > 0",
        question()
    )
}
