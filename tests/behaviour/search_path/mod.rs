//! Unqualified names: the proxy queries the server for the search path, and never mistakes a fenced table for another
//! table.

mod hostile;
mod ordinary;
mod own;
mod random;
mod shadows;
mod tenants;

use crate::support::Wire;
use crate::support::fenced::code_in;
use crate::support::message::{sync, unnamed};

/// The code of a statement that fails in the extended protocol, or an empty text.
fn extended(wire: &mut Wire, sql: &str) -> String {
    code_in(&wire.exchange(&[unnamed(sql, &[]), sync()].concat()))
}
