//! Names without a schema: the proxy queries the server for the search path, and never mistakes a fenced table for
//! another one.

mod hostile;
mod ordinary;
mod own;
mod random;
mod shadows;
mod tenants;

use crate::support::Wire;
use crate::support::fenced::code_in;
use crate::support::message::{sync, unnamed};

/// The code with which a statement fails in the extended protocol; the empty text where it does not.
fn extended(wire: &mut Wire, sql: &str) -> String {
    code_in(&wire.exchange(&[unnamed(sql, &[]), sync()].concat()))
}
