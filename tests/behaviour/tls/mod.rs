//! TLS on both sides, with real clients and servers: who gets in, what a certificate is worth, and what those are told
//! that do not get in.

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
