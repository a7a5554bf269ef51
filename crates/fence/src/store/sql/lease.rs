//! SQL for leases. Only the functions in `leases.sql` write them.
//!
//! Must never write or lock a lease, because a leader's transaction may hold the row for as long as it runs.

use fencegate_postgres::sql::quote;
use fencegate_postgres::sql_file::Value::{Count, Sql};

/// The existing leases of these elections.
pub fn leases(elections: &[&str]) -> String {
    let names: Vec<String> = elections.iter().map(|it| quote(it)).collect();
    sql_file!("lease/leases.sql").with(&[("elections", Sql(&names.join(", ")))])
}

/// The most recently acquired leases, at most `most`. The second statement's row is their total number.
pub fn all_leases(most: usize) -> String {
    sql_file!("lease/all_leases.sql").with(&[("most", Count(most))])
}
