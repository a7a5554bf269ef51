//! Connecting to PostgreSQL.

use std::future::Future;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Connection, Error, Socket};

/// Opens connections to the database with the leases.
pub trait Connect: Send + Sync + 'static {
    /// The stream of an encrypted connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Opens a connection. Cancel-safe: a half-open connection is closed.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    fn connect(&self) -> impl Future<Output = Result<(Client, Connection<Socket, Self::Stream>), Error>> + Send;
}

/// Address, and encryption; `NoTls` for none.
impl<T> Connect for (Config, T)
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    type Stream = T::Stream;

    async fn connect(&self) -> Result<(Client, Connection<Socket, T::Stream>), Error> {
        let (config, tls) = self;
        config.connect(tls.clone()).await
    }
}
