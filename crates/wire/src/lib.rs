//! The PostgreSQL frontend/backend protocol, version 3, as far as a relay needs it.
//!
//! Owns the format of frames, startup packets, and the few messages that the proxy reads or writes. Must never buffer a
//! whole message because of its size, nor depend on fences.
//!
//! Protocol facts are from the PostgreSQL documentation, chapter "Frontend/Backend Protocol".

pub mod client_error;
pub mod error;
pub mod frame;
pub mod message;
pub mod startup;
pub mod tag;
