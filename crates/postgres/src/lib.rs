//! Connections to PostgreSQL: encryption with libpq's `sslmode`, passwords, literals and rows.
//!
//! Owns how the proxy connects as a client. Must never use sessions, or print a key or a password.

mod passfile;
mod race;
mod server_tls;
pub mod sql;
pub mod sql_file;
pub mod tls;

pub use passfile::password;
pub use race::connect_tcp;
pub use server_tls::{RootCertificateError, ServerTls, SslMode, is_system};
