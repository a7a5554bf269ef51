//! The SQL about leases. See `leases.sql` for who writes them.
//!
//! Must never write or lock one: whoever leads may hold its row for as long as its transaction takes.

use crate::sql::quote;

/// The holder of lease `l` leads, by the database's clock.
pub(super) const IN_FORCE: &str = "NOT l.released AND l.expires > clock_timestamp()";

/// The columns of a lease. Without a token it was never acquired.
fn question() -> String {
    let times = ["acquired", "renewed", "expires"].map(|it| format!("extract(epoch FROM l.{it}) AS {it}")).join(", ");
    format!(
        "SELECT l.election, l.token, l.released, {IN_FORCE} AS in_force, l.shown AS holder, l.role, {times} \
         FROM fencegate_state.lease l WHERE l.token > 0"
    )
}

/// Those of the leases of these elections that there are.
pub fn leases(elections: &[&str]) -> String {
    let names: Vec<String> = elections.iter().map(|it| quote(it)).collect();
    format!("{} AND l.election = ANY (ARRAY[{}]::text[])", question(), names.join(", "))
}

/// The leases acquired last, at most `most`. The second statement's row: how many there are.
pub fn all_leases(most: usize) -> String {
    format!(
        "{} ORDER BY l.acquired DESC, l.election LIMIT {most}; \
         SELECT count(*) AS leases FROM fencegate_state.lease l WHERE l.token > 0",
        question()
    )
}
