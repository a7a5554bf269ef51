//! The log, for machines: what each event says, how storms are kept out of it, and what is never in it.

mod events;
pub mod line;
mod schema;
mod secrets;
mod sessions;
mod storms;
mod unread;
