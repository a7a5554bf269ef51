//! Sockets: listening, logging in, and the driver of a session.
//!
//! Owns every socket of a client and of the server behind it. Must never decide what passes: `session` does.

mod alarm;
mod binding;
pub mod driver;
mod farewell;
pub mod handshake;
pub mod listener;
pub mod login;
mod opening;
pub mod peer;
mod perform;
pub mod stream;
pub mod term;
pub mod upstream;
