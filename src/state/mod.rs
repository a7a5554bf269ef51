//! State that the sessions of a proxy share: the settings and policies in force, the registries of databases and
//! sessions, limits.
//!
//! Must never know of a socket.

pub mod audit;
pub mod connections;
pub mod context;
pub mod database;
pub mod databases;
pub mod health;
pub mod history;
pub mod lifecycle;
pub mod look;
pub mod room;
pub mod server_table;
pub mod servers;
pub mod sessions;
pub mod shared;
pub mod succession;
