//! The listening sockets of a running proxy, for clients and for metrics.
//!
//! Owns which sockets accept. A reload opens all new addresses before it closes an old one. Must never drop a connection that
//! the kernel has queued on a socket that a reload closes.

use super::bind::{self, Bound};
use crate::config::{Address, Settings};
use crate::inherited::Inherited;
use crate::listen::ListenError;
use crate::metrics::http;
use crate::net::listener::ClientListener;
use crate::net::stream::AcceptedStream;
use crate::state::shared::{ListeningSockets, Shared};
use async_trait::async_trait;
use std::io;
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
        let clients = bind::clients(&clients, &mut Inherited::default()).await;
        let clients = clients.map_err(|error| overlapping(error, &bound))?;
        let http = bind::http(http.as_ref(), &mut Inherited::default()).await?;
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
