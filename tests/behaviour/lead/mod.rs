//! `fencegate lead` on a real etcd and on leases in PostgreSQL: a command and all its processes run only while
//! leadership lasts.
//!
//! Commands are small shell scripts that write files, and the tests wait for these files.

mod campaign;
mod command;
mod conflict;
mod death;
mod log;
mod loss;
pub mod stage;
mod standstill;
mod terminal;
