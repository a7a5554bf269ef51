//! The database behind the fences: control connections, statements, and what they answer.

mod blockers;
pub(super) mod control;
mod init;
mod probe;
pub(super) mod sql;
mod words;

pub use control::is_missing;
pub(crate) use control::{column, is_true};
pub use init::{InitError, InitReport, init};
pub use probe::probe;
pub(crate) use sql::{named, quote};
pub(crate) use words::text;
