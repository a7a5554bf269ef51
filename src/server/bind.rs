//! Opens the listening sockets of a proxy, or takes over those of its predecessor.
//!
//! Must never accept a connection while the predecessor may still continue alone.

use super::take_over::{self, Predecessor, TakeOverError};
use crate::config::Address;
use crate::inherited::Inherited;
use crate::listen::ListenError;
use crate::metrics::MetricsError;
use crate::metrics::http::Endpoint;
use crate::net::listener::{ClientListener, FileListener};
use crate::state::shared::Shared;
use std::io;
use std::path::{Path, PathBuf};

/// Why the proxy could not run.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// Listening on an address failed.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The sockets of the running proxy could not be taken over.
    #[error("cannot take over from the proxy at {}: {error}", path.display())]
    TakeOver {
        /// The configured socket.
        path: PathBuf,
        /// The reason.
        error: TakeOverError,
    },
    /// The process cannot receive signals.
    #[error("cannot set up signal handling: {0}")]
    Signals(io::Error),
    /// The metrics cannot be created.
    #[error("cannot create the metrics: {0}")]
    Metrics(#[from] MetricsError),
}

/// The sockets of a proxy that does not accept yet.
pub struct Bound {
    /// For clients, each with the configured address.
    pub clients: Vec<(Address, ClientListener)>,
    /// For metrics and health, if configured.
    pub http: Option<(Address, Endpoint)>,
    /// For a successor, if configured.
    pub offer: Option<FileListener>,
}

/// Listens on all addresses of the settings. If a proxy offers its sockets at `take_over`, takes these over first.
/// `inherited`: sockets of systemd. Not cancel-safe: dropping it closes the sockets.
///
/// # Errors
/// An address is not available, or the take-over failed. The predecessor continues.
pub async fn bind(shared: &Shared, mut inherited: Inherited) -> Result<Bound, ProxyError> {
    let settings = shared.settings();
    let from_systemd = inherited.count();
    let offered_at = settings.take_over.as_deref();
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| ProxyError::TakeOver { path, error }
    };
    let mut predecessor = None;
    if let Some(path) = offered_at
        && let Some(mut found) = Predecessor::find(path).await.map_err(failed(path))?
    {
        // Otherwise clients of the predecessor would be worse off.
        let ready = shared.condition().await.ready.map_err(|why| TakeOverError::NotReady(why.to_string()));
        ready.map_err(failed(path))?;
        match found.sockets().await {
            Ok(sockets) => {
                inherited.extend(sockets);
                predecessor = Some((path, found));
            }
            // It has ended, and its addresses are free.
            Err(TakeOverError::Closed) if matches!(Predecessor::find(path).await, Ok(None)) => {}
            Err(error) => return Err(failed(path)(error)),
        }
    }
    let http = http(settings.http.as_ref(), &mut inherited).await?;
    let clients = clients(&settings.listen, &mut inherited).await?;
    let offer = match offered_at {
        Some(path) => {
            let bound = FileListener::bind(path.to_owned(), take_over::MODE, &mut inherited).await;
            Some(bound.map_err(|error| ListenError { address: path.display().to_string(), error })?)
        }
        None => None,
    };
    for socket in inherited.unused() {
        tracing::warn!(address = %socket, "socket_not_used");
    }
    if let Some((path, found)) = predecessor {
        found.release(inherited.are_used().skip(from_systemd), shared).await.map_err(failed(path))?;
        for file in clients.iter().filter_map(|(_, it)| it.file()).chain(&offer) {
            file.own_inherited_file();
        }
        tracing::info!("sockets_taken_over");
    }
    Ok(Bound { clients, http, offer })
}

/// Listens for clients on these addresses. Cancel-safe: dropping it closes the sockets.
pub async fn clients(
    addresses: &[Address],
    inherited: &mut Inherited,
) -> Result<Vec<(Address, ClientListener)>, ListenError> {
    let mut clients = Vec::new();
    for address in addresses {
        let bound = ClientListener::bind(address, inherited).await;
        let not_bound =
            |error| ListenError { address: address.to_string(), error: explained(error, address, addresses) };
        clients.extend(bound.map_err(not_bound)?.into_iter().map(|listener| (address.clone(), listener)));
    }
    Ok(clients)
}

/// Adds the other addresses to the error, because the conflict may be with one of `all`.
fn explained(error: io::Error, address: &Address, all: &[Address]) -> io::Error {
    let Address::Tcp { port, .. } = address else { return error };
    let every = Address::Tcp { host: "::".to_owned(), port: *port };
    let same_port = all.iter().filter(|it| matches!(it, Address::Tcp { port: other, .. } if other == port));
    if error.kind() != io::ErrorKind::AddrInUse || !all.contains(&every) || same_port.count() < 2 {
        return error;
    }
    io::Error::other(format!("{error}; {every} includes the IPv4 addresses: remove the other one"))
}

/// Listens on the address for metrics and health, if set. Cancel-safe: dropping it closes the sockets.
pub async fn http(
    address: Option<&Address>,
    inherited: &mut Inherited,
) -> Result<Option<(Address, Endpoint)>, ListenError> {
    let Some(Address::Tcp { host, port }) = address else { return Ok(None) };
    let bound = Endpoint::bind_or_inherit(host, *port, inherited).await;
    let bound = bound.map_err(|error| ListenError { address: format!("{host}:{port}"), error })?;
    Ok(address.cloned().zip(Some(bound)))
}
