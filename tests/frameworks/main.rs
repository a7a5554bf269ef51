//! What users of Django, SQLAlchemy and Active Record see: with a token their habits run through the proxy as they do
//! on the server; without one, or with a stale one, only what writes to the fenced table fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod active_record;
mod databases;
mod django;
mod sqlalchemy;

#[path = "../support/mod.rs"]
mod support;
mod world;
