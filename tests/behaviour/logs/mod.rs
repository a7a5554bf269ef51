//! The machine-readable log: the content of each event, limits on repeated lines, and what it must never contain.

mod events;
pub mod line;
mod schema;
mod secrets;
mod sessions;
mod storms;
mod unread;
