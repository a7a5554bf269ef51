//! A session of PostgreSQL that works under a leader's token.
//!
//! Must never outlive the leadership: but closing it does not stop a statement that the server runs
//! already. What such a statement writes is the storage's to reject.

use super::leadership::Leadership;
use super::loss::Loss;
use std::ops::{Deref, DerefMut};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Socket};
use tracing::debug;

/// A client whose session carries the token, and ends with the leadership; then it answers that it is closed.
#[derive(Debug)]
pub struct FencedClient(Client);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no leadership to work under.
    #[error("leadership is lost: {0}")]
    Lost(Loss),
    /// The server cannot be reached, or refuses.
    #[error("no session under the token: {0}")]
    Database(#[from] tokio_postgres::Error),
}

impl Leadership {
    /// Connects with `lease.fence` set to the token from the start, beside the options that `config` has; use
    /// `tokio_postgres::NoTls` where the connection needs no TLS. The session ends when leadership is lost, or the
    /// client is dropped. It does not keep leadership: hold on to the [`Leadership`]. Cancel-safe.
    ///
    /// # Errors
    /// When leadership is lost, or the server cannot be reached or refuses.
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
