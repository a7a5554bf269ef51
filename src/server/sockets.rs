//! The listening sockets of a proxy, for clients and for metrics: opens them, or takes over those of its predecessor.
//!
//! Owns which sockets accept. A reload opens all new addresses before it closes an old one. Must never
//! - drop a connection that the kernel has queued on a socket that a reload closes;
//! - accept a connection while the predecessor may still continue alone.

use super::take_over;
use super::take_over::{Predecessor, TakeOverError};
use crate::config::{Address, Settings};
use crate::listen::Inherited;
use crate::listen::ListenError;
use crate::metrics::http::Endpoint;
use crate::metrics::{MetricsError, http};
use crate::net::listener::{ClientListener, FileListener};
use crate::net::stream::AcceptedStream;
use crate::state::shared::{ListeningSockets, Shared};
use async_trait::async_trait;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, MutexGuard, oneshot};
use tokio::task::JoinHandle;

/// The sockets; none once the proxy has stopped accepting.
pub struct Sockets {
    shared: Arc<Shared>,
    begin: Arc<Begin>,
    open: Mutex<Option<OpenSockets>>,
}

/// Begins a session for a client with this address.
type Begin = dyn Fn(AcceptedStream, String) + Send + Sync;

/// Sockets that accept.
pub struct OpenSockets {
    clients: Vec<ClientSocket>,
    http: Option<(Address, http::Server)>,
    /// Sockets of a reload, which do not accept yet.
    opened: Opened,
}

struct ClientSocket {
    configured: Address,
    listener: Arc<ClientListener>,
    task: JoinHandle<()>,
    /// The task ends when this is dropped and no connection is queued.
    stays_open: oneshot::Sender<()>,
}

#[derive(Default)]
struct Opened {
    clients: Vec<(Address, ClientListener)>,
    http: Option<(Address, http::Endpoint)>,
}

impl OpenSockets {
    /// The sockets for clients.
    pub fn clients(&self) -> impl Iterator<Item = &ClientListener> {
        self.clients.iter().map(|socket| &*socket.listener)
    }

    /// The sockets for metrics and health.
    pub fn http(&self) -> impl Iterator<Item = &TcpListener> {
        self.http.iter().flat_map(|(_, server)| server.sockets()).map(|socket| &**socket)
    }

    fn has(&self, address: &Address) -> bool {
        self.clients.iter().any(|socket| socket.configured == *address)
    }

    fn serves_http_at(&self, address: Option<&Address>) -> bool {
        self.http.as_ref().map(|(configured, _)| configured) == address
    }
}

impl Sockets {
    /// Starts to accept.
    pub fn serve(
        shared: &Arc<Shared>,
        bound: Bound,
        begin: impl Fn(AcceptedStream, String) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let begin: Arc<Begin> = Arc::new(begin);
        let accept = |(configured, listener)| accept(shared, &begin, configured, listener);
        let clients = bound.clients.into_iter().map(accept).collect();
        let http = bound.http.map(|(configured, endpoint)| (configured, endpoint.serve(shared.clone())));
        let open = OpenSockets { clients, http, opened: Opened::default() };
        Arc::new(Sockets { shared: shared.clone(), begin, open: Mutex::new(Some(open)) })
    }

    /// The sockets that accept. No reload changes them meanwhile. Cancel-safe.
    pub async fn lock(&self) -> MutexGuard<'_, Option<OpenSockets>> {
        self.open.lock().await
    }

    /// Accepts no more clients; health and metrics are still served. Not cancel-safe: sockets may stay open.
    pub async fn close_for_clients(&self) {
        let closed = self.open.lock().await.as_mut().map(|open| std::mem::take(&mut open.clients)).unwrap_or_default();
        for ClientSocket { task, .. } in closed {
            task.abort();
            // The task holds the socket.
            task.await.ok();
        }
    }

    /// Accepts no more connections. Completes responses about health and metrics, for at most one second. Not cancel-safe:
    /// sockets may stay open.
    pub async fn close(&self) {
        self.close_for_clients().await;
        let closed = self.open.lock().await.take();
        if let Some((_, server)) = closed.and_then(|open| open.http) {
            server.stop().await;
        }
    }
}

#[async_trait]
impl ListeningSockets for Sockets {
    async fn open_missing(&self, settings: &Settings) -> Result<(), ListenError> {
        let (clients, http, bound) = {
            let open = self.open.lock().await;
            let Some(open) = open.as_ref() else { return Ok(()) };
            let bound: Vec<String> = open.clients().map(|listener| listener.address.clone()).collect();
            let clients: Vec<_> = settings.listen.iter().filter(|address| !open.has(address)).cloned().collect();
            (clients, settings.http.clone().filter(|address| !open.serves_http_at(Some(address))), bound)
        };
        // Without the lock: resolving a name may take long, and must not delay the end of the proxy.
        let clients = bind_clients(&clients, &mut Inherited::default()).await;
        let clients = clients.map_err(|error| overlapping(error, &bound))?;
        let http = bind_http(http.as_ref(), &mut Inherited::default()).await?;
        if let Some(open) = self.open.lock().await.as_mut() {
            open.opened = Opened { clients, http };
        }
        Ok(())
    }

    async fn put_in_force(&self, settings: &Settings) {
        let mut open = self.open.lock().await;
        let Some(open) = open.as_mut() else { return };
        let Opened { clients, http } = std::mem::take(&mut open.opened);
        let accept = |(configured, listener)| accept(&self.shared, &self.begin, configured, listener);
        open.clients.extend(clients.into_iter().map(accept));
        for socket in open.clients.extract_if(.., |socket| !settings.listen.contains(&socket.configured)) {
            tracing::info!(address = %socket.listener.address, "listening_ended");
            drop(socket.stays_open);
        }
        if !open.serves_http_at(settings.http.as_ref()) {
            let new = http.map(|(configured, endpoint)| (configured, endpoint.serve(self.shared.clone())));
            if let Some((_, old)) = std::mem::replace(&mut open.http, new) {
                tokio::spawn(old.stop());
            }
        }
    }
}

/// Names the open address that keeps the new one from being opened. The kernel refuses `0.0.0.0:6432` while `127.0.0.1:6432` is
/// open, even though the reload would close that.
fn overlapping(error: ListenError, bound: &[String]) -> ListenError {
    let ListenError { address, error } = error;
    let port = |address: &str| address.rsplit_once(':').map(|(_, port)| port.to_owned());
    let error = match bound.iter().find(|it| port(it) == port(&address)) {
        Some(open) if error.kind() == io::ErrorKind::AddrInUse => io::Error::other(format!(
            "{error}; {open} is open: if they overlap, close it with a first reload, and open {address} with a second one"
        )),
        _ => error,
    };
    ListenError { address, error }
}

fn accept(shared: &Arc<Shared>, begin: &Arc<Begin>, configured: Address, listener: ClientListener) -> ClientSocket {
    tracing::info!(address = %listener.address, "listening");
    let listener = Arc::new(listener);
    let (stays_open, closed) = oneshot::channel();
    let begin = begin.clone();
    let begin = move |stream, peer| begin(stream, peer);
    let task = tokio::spawn(listener.clone().serve(shared.clone(), begin, closed));
    ClientSocket { configured, listener, task, stays_open }
}

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
    let http = bind_http(settings.http.as_ref(), &mut inherited).await?;
    let clients = bind_clients(&settings.listen, &mut inherited).await?;
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
async fn bind_clients(
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
async fn bind_http(
    address: Option<&Address>,
    inherited: &mut Inherited,
) -> Result<Option<(Address, Endpoint)>, ListenError> {
    let Some(Address::Tcp { host, port }) = address else { return Ok(None) };
    let bound = Endpoint::bind_or_inherit(host, *port, inherited).await;
    let bound = bound.map_err(|error| ListenError { address: format!("{host}:{port}"), error })?;
    Ok(address.cloned().zip(Some(bound)))
}
