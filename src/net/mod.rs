//! Sockets: listening, logging in, and the driver of a session.
//!
//! Owns every client and server socket. Must never decide which messages may pass: `session` does.

mod binding;
pub mod driver;
pub mod handshake;
mod identify;
pub mod listener;
pub mod login;
mod opening;
pub mod peer;
mod performing;
mod pooler;
pub mod proxy_header;
pub mod refused;
pub mod stream;
pub mod term;
pub mod upstream;
