//! The fence's store in memory: one database that several proxies share, with server processes that tests can start,
//! let write, and end.
//!
//! Must answer as PostgreSQL does; `fence::store` runs the same operations on both. Needs no runtime: each operation
//! runs when it is first polled. Simulates no strangers that hold locks of resources, and no privileges except
//! [`Server::forbid`] and [`Server::forbid_to_end`].

mod in_memory;
mod server;
mod shown;

pub use server::{Disk, Server};
