//! A PostgreSQL session under a leader's token.
//!
//! Must never outlive the leadership. Closing the session does not stop a statement that the server is already running;
//! the storage must reject its writes.

use crate::postgres::is_transient;
use crate::{Leadership, Lost};
use std::ops::{Deref, DerefMut};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Socket};
use tracing::debug;

/// A client whose session carries the token and ends with the leadership. It then reports that it is closed.
#[derive(Debug)]
pub struct FencedClient(Client);

/// Why no session could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Leadership has been lost.
    #[error("leadership was lost: {0}")]
    Lost(Lost),
    /// The server cannot be reached or refuses the session.
    #[error("cannot open a session under the token: {0}")]
    Database(#[from] tokio_postgres::Error),
}

impl ConnectError {
    /// True if another attempt may succeed: under the same leadership, or after another campaign if it is lost.
    pub fn is_retryable(&self) -> bool {
        match self {
            ConnectError::Lost(lost) => lost.is_retryable(),
            ConnectError::Database(error) => error.as_db_error().is_none_or(is_transient),
        }
    }
}

impl Leadership {
    /// Connects with `lease.fence` set to the token from the start, in addition to the options in `config`. For a
    /// connection without TLS, pass `tokio_postgres::NoTls`. The session ends when leadership is lost or the client is
    /// dropped. The client does not keep leadership alive: hold on to the [`Leadership`]. Cancel-safe.
    ///
    /// # Errors
    /// Leadership is lost, or the server cannot be reached or refuses the session.
    pub async fn connect<T>(&self, config: &Config, tls: T) -> Result<FencedClient, ConnectError>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let mut config = config.clone();
        let fence = format!("-c lease.fence={}", self.token());
        config.options(config.get_options().map_or(fence.clone(), |options| format!("{options} {fence}")));
        let (client, connection) = tokio::select! {
            biased;
            loss = self.lost() => return Err(ConnectError::Lost(loss)),
            connected = config.connect(tls) => connected?,
        };
        let lost = self.loss();
        tokio::spawn(async move {
            tokio::select! {
                _ = lost => {}
                ended = connection => if let Err(error) = ended {
                    debug!(%error, "the session under the token has ended");
                },
            }
        });
        Ok(FencedClient(client))
    }
}

impl Deref for FencedClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for FencedClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}
