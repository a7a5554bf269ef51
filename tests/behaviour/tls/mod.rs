//! TLS on both sides, with real clients and servers: admission, verification of certificates, and the errors.

mod certificates;
mod clients;
mod control;
mod direct;
mod fence;
mod reload;
mod scram;
mod server;
mod settings;
mod world;

pub use world::psql;
