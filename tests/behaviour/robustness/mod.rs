//! Hostile clients, servers and texts: bounded memory, a clear error, and no harm to other sessions.
//!
//! Each test has a bystander, whose session continues through the same proxy.

mod bombs;
mod clients;
mod encodings;
mod floods;
mod servers;
mod statements;
mod threads;
mod world;
