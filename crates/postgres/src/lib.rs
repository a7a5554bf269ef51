//! Connections to PostgreSQL: encryption with libpq's `sslmode`, passwords, literals and rows.
//!
//! Owns how the proxy connects as a client. Must never use sessions, or print a key or a password.

mod passfile;
pub mod sql;
pub mod sql_file;
pub mod tls;

pub use passfile::password;
pub use tls::hosts::connect_tcp;
pub use tls::server::{RootCertificateError, ServerTls, SslMode, is_system};
