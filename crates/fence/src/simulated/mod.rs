//! The fence's store in memory: one database that several proxies share, with server processes that one can begin, let
//! write, and end.
//!
//! Must answer as PostgreSQL does; `fence::store` runs the same operations on both. Needs no runtime: each operation is done
//! when it is first polled. Knows no strangers who hold locks of resources, and no privileges but [`Server::forbid`] and
//! [`Server::forbid_to_end`].

mod faults;
mod in_memory;
mod leases;
mod server;
mod shown;

pub use server::{Disk, Server};
