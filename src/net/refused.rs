//! Why no session was established, and the error for the client.
//!
//! Not cancel-safe: a client that has received only a part of the error loses its connection.

use super::peer::Peer;
use crate::state::lifecycle::CANNOT_CONNECT_NOW;
use fencegate_postgres::tls::{ConfiguredIn, Diagnosis, diagnose};
use fencegate_wire::error::{ErrorText, Severity, field};
use fencegate_wire::frame::body;
use std::io;

/// The length of a SQLSTATE, in bytes.
const SQLSTATE: usize = 5;

/// Why no session was established.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The client closed the connection before it sent a packet.
    #[error("the client closed the connection before it sent a packet")]
    Left,
    /// The client closed the connection instead of authenticating. Health checks of load balancers do this, and psql
    /// before it asks its user for a password.
    #[error("the client closed the connection when the server requested authentication")]
    Unauthenticated,
    /// The client was at fault or disconnected; with the SQLSTATE that it received, if any.
    #[error("{0}")]
    Client(String, Option<&'static str>),
    /// The server refused the session with an error that the client has received; with its SQLSTATE.
    #[error("refused by the server")]
    Server(Option<String>),
    /// The server is unreachable or disconnected.
    #[error("server: {0}")]
    Upstream(io::Error),
}

impl Refused {
    /// The side at fault, as the metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Refused::Left | Refused::Unauthenticated | Refused::Client(..) => "client",
            Refused::Server(_) => "server",
            Refused::Upstream(_) => "upstream",
        }
    }

    /// The SQLSTATE that the client received.
    pub fn code(&self) -> Option<&str> {
        match self {
            Refused::Left | Refused::Unauthenticated => None,
            Refused::Client(_, code) => *code,
            Refused::Server(code) => code.as_deref(),
            Refused::Upstream(error) if error.kind() == io::ErrorKind::InvalidData => Some("08P01"),
            Refused::Upstream(_) => Some(CANNOT_CONNECT_NOW),
        }
    }

    /// A refusal without an error message to the client.
    pub fn silently(why: impl Into<String>) -> Self {
        Refused::Client(why.into(), None)
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Refused::silently(error.to_string())
    }
}

/// Sends the client the reason for the refusal.
pub async fn refuse<T>(client: &mut Peer, text: ErrorText) -> Result<T, Refused> {
    text.put(&mut client.writer.output, Severity::Fatal);
    client.writer.flush().await?;
    client.writer.close().await?;
    Err(Refused::Client(text.message, Some(text.code)))
}

/// If the server disconnected or violated the protocol, the client receives an error.
pub async fn report_upstream_failure<T>(client: &mut Peer, result: Result<T, Refused>) -> Result<T, Refused> {
    if let Err(Refused::Upstream(error)) = &result {
        let text = match (tls_text(error), error.kind()) {
            (Some(text), _) => text,
            (None, io::ErrorKind::InvalidData) => {
                ErrorText::new("08P01", format!("the server broke the protocol: {error}"))
            }
            (None, _) => ErrorText::new(CANNOT_CONNECT_NOW, "server closed the connection unexpectedly"),
        };
        refuse::<()>(client, text).await.ok();
    }
    result
}

/// Forwards the error with which the server refuses a session.
pub async fn pass_refusal<T>(client: &mut Peer, error: &[u8]) -> Result<T, Refused> {
    let code = field(body(error), b'C').filter(|code| code.len() == SQLSTATE);
    let code = code.map(|code| String::from_utf8_lossy(code).into_owned());
    client.writer.output.extend_from_slice(error);
    client.writer.flush().await?;
    client.writer.close().await?;
    Err(Refused::Server(code))
}

/// The message of an error of a connection to the server.
pub fn message(error: &io::Error) -> String {
    tls_text(error).map_or_else(|| error.to_string(), |text| text.message)
}

/// The error for clients if TLS with the server fails.
pub fn tls_text(error: &io::Error) -> Option<ErrorText> {
    let Diagnosis { message, hint } = diagnose(error, ConfiguredIn::Settings)?;
    let message = format!("could not connect to the server behind the proxy: {message}");
    Some(ErrorText::new(CANNOT_CONNECT_NOW, message).hint(hint))
}
