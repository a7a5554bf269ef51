//! An in-memory store of the fence: one database that several proxies share. Tests can start and end its server
//! processes, and let them write.
//!
//! Must answer as PostgreSQL does; `fence::store` runs the same operations on both. Needs no runtime: each operation
//! runs when it is first polled. Does not simulate other processes that hold resource locks, nor privileges except
//! [`Server::forbid`] and [`Server::forbid_to_end`].

mod in_memory;
mod server;
mod shown;

pub use server::{Disk, Server};
