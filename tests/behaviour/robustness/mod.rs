//! Hostile clients, hostile servers and hostile texts: bounded memory, a clear error, and no other session harmed.
//!
//! Each test has a bystander, whose session goes on through the same proxy.

mod bombs;
mod clients;
mod encodings;
mod floods;
mod servers;
mod statements;
mod threads;
mod world;
