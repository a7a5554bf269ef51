//! TLS with clients, as their server.
//!
//! Owns the proxy's certificate, its key and the verification of clients. Must never use sessions or print a key.

mod clients;

pub use clients::Acceptor;
