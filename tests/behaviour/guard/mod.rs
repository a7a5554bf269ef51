//! The guard: what the gate cannot see is stopped inside the database, at every isolation level, through the proxy and
//! around it; and whoever leads is let through.

mod bypasses;
mod command;
mod full_queue;
mod keyed;
mod lasting;
mod leases;
mod moved;
mod plan;
mod replication;
mod roles;
mod settings;
mod snapshots;
mod takeover;
mod unseen;
pub mod world;
