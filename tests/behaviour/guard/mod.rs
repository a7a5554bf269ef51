//! The guard stops writes that the proxy cannot see, at every isolation level, through the proxy and around it. The
//! guard does not stop the leader.

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
