//! The HTTP server for `/metrics`, `/healthz`, `/readyz` and the status page, on its own address.
//!
//! Owns all limits on clients: their number, and the time and size of a request. Must never wait for a client without a
//! limit, or let connections without a request keep out others.

use crate::listen::Inherited;
use crate::listen::listen;
use crate::waiting_connections::{SourceAddress, WaitingConnections};
use futures_util::future::join_all;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY};
use hyper::header::{HeaderName, X_CONTENT_TYPE_OPTIONS};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Maximum number of concurrent connections on all addresses. A new connection evicts the one that has been open
/// longest, of the source with the most.
const MOST_CONNECTIONS: usize = 64;
/// Maximum size of a request's head, in bytes and in lines.
const LARGEST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// Time limit for receiving a request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// Time limit of a connection. Each carries one request.
const CONNECTION_LIMIT: Duration = Duration::from_secs(15);
/// Time limit for pending responses when the server stops.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Pause after a failed accept, which usually means that no file descriptors are left.
const PAUSE: Duration = Duration::from_millis(100);

/// The version of the text format.
const METRICS_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const HTML_TYPE: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const TEXT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Content of the pages. Cancel-safe, because the client may disconnect.
pub trait Pages: Send + Sync + 'static {
    /// Paths of all pages.
    const PATHS: &'static [&'static str];

    /// Why `/readyz` fails, in one line.
    type NotReady: Display + Send;

    /// The text of `/metrics`.
    fn metrics(&self) -> impl Future<Output = String> + Send;

    /// Response of `/readyz`: warnings for the operator, one line each; or why it fails.
    fn ready(&self) -> impl Future<Output = Result<Vec<String>, Self::NotReady>> + Send;

    /// Response of `/`, if it is in [`Self::PATHS`].
    fn status(&self) -> impl Future<Output = Option<StatusPage>> + Send;
}

/// A page for a browser.
pub struct StatusPage {
    /// HTML.
    pub html: String,
    /// The page's Content-Security-Policy.
    pub policy: &'static str,
}

/// Listening sockets that are not yet served.
#[derive(Debug)]
pub struct Endpoint {
    sockets: Vec<(Arc<TcpListener>, SocketAddr)>,
}

/// A server that runs until it is dropped. [`Server::stop`] waits for pending responses.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Server {
    task: JoinHandle<()>,
    stop: watch::Sender<()>,
    sockets: Vec<Arc<TcpListener>>,
}

impl Endpoint {
    /// Listens on all addresses of the host. Cancel-safe.
    pub async fn bind(host: &str, port: u16) -> io::Result<Self> {
        Self::bind_or_inherit(host, port, &mut Inherited::default()).await
    }

    /// Like [`Self::bind`], with inherited sockets where there are any. Cancel-safe.
    pub async fn bind_or_inherit(host: &str, port: u16, inherited: &mut Inherited) -> io::Result<Self> {
        Self::on(listen(host, port, inherited).await?)
    }

    fn on(sockets: Vec<TcpListener>) -> io::Result<Self> {
        let with_address = |socket: TcpListener| socket.local_addr().map(|address| (Arc::new(socket), address));
        Ok(Endpoint { sockets: sockets.into_iter().map(with_address).collect::<io::Result<_>>()? })
    }

    /// Starts serving the pages.
    pub fn serve(self, pages: Arc<impl Pages>) -> Server {
        let (stop, stopped) = watch::channel(());
        let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let places = Arc::new(Places { taken: Mutex::default(), free });
        let sockets = self.sockets.iter().map(|(socket, _)| socket.clone()).collect();
        let serve_one = |(socket, address): (Arc<TcpListener>, SocketAddr)| {
            tracing::info!(%address, "metrics_served");
            serve(socket, pages.clone(), places.clone(), stopped.clone())
        };
        let served = join_all(self.sockets.into_iter().map(serve_one));
        Server { task: tokio::spawn(async move { drop(served.await) }), stop, sockets }
    }
}

impl Server {
    /// The listening sockets.
    pub fn sockets(&self) -> &[Arc<TcpListener>] {
        &self.sockets
    }

    /// Stops accepting connections and completes pending responses, for at most one second. Cancel-safe: it continues.
    pub async fn stop(self) {
        drop(self.stop);
        drop(self.sockets);
        // An error means that the server has already ended.
        let _ = timeout(LAST_ANSWERS, self.task).await;
    }
}

/// Open connections.
struct Places {
    taken: Mutex<OpenConnections>,
    /// One permit per connection until it is closed, which is slightly longer than it has its place.
    free: Arc<Semaphore>,
}

#[derive(Default)]
struct OpenConnections {
    last: u64,
    connections: WaitingConnections,
}

/// A connection's place, until it is dropped.
struct ConnectionSlot {
    places: Arc<Places>,
    source: SourceAddress,
    number: u64,
    given_up: Arc<Notify>,
}

impl Places {
    /// Always succeeds.
    fn enter(self: &Arc<Self>, source: SourceAddress) -> ConnectionSlot {
        let given_up = Arc::new(Notify::new());
        let mut taken = self.taken.lock();
        while taken.connections.len() >= MOST_CONNECTIONS {
            taken.connections.pop_longest().inspect(|longest| longest.notify_one());
        }
        taken.last += 1;
        let number = taken.last;
        taken.connections.insert(source, number, given_up.clone());
        drop(taken);
        ConnectionSlot { places: self.clone(), source, number, given_up }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.places.taken.lock().connections.remove(self.source, self.number);
    }
}

/// Answers on one address until the server's handle is dropped.
async fn serve(
    socket: Arc<TcpListener>,
    pages: Arc<impl Pages>,
    places: Arc<Places>,
    mut stopped: watch::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = socket.accept() => match accepted {
                Ok((stream, address)) => {
                    let (pages, place) = (pages.clone(), places.enter(SourceAddress::new(Some(address.ip()))));
                    // Waits until the evicted connection is closed.
                    let open = places.free.clone().acquire_owned().await;
                    connections.spawn(async move {
                        let _open = open;
                        tokio::select! {
                            // Checked first, so that a request that has already arrived is answered.
                            biased;
                            // Closes connections that exceed the limit.
                            _ = timeout(CONNECTION_LIMIT, answer_one(stream, pages)) => {}
                            () = place.given_up.notified() => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "metrics_not_served");
                    sleep(PAUSE).await;
                }
            },
        }
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

async fn answer_one(stream: TcpStream, pages: Arc<impl Pages>) {
    let service = service_fn(|request| {
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(answer(&request, &*pages).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(LARGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a request for metrics was broken off");
    }
}

async fn answer<P: Pages>(request: &Request<Incoming>, pages: &P) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let not_found = || {
        page(StatusCode::NOT_FOUND, TEXT_TYPE, format!("page not found; available pages: {}\n", P::PATHS.join(", ")))
    };
    if !P::PATHS.contains(&path) {
        return not_found();
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refused = page(StatusCode::METHOD_NOT_ALLOWED, TEXT_TYPE, "GET or HEAD\n".into());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/" => pages.status().await.map_or_else(not_found, html),
        "/metrics" => page(StatusCode::OK, METRICS_TYPE, pages.metrics().await),
        "/healthz" => page(StatusCode::OK, TEXT_TYPE, "ok\n".into()),
        _ => match pages.ready().await {
            Ok(notes) => {
                let lines: String = notes.iter().map(|note| format!("{note}\n")).collect();
                page(StatusCode::OK, TEXT_TYPE, format!("ok\n{lines}"))
            }
            Err(reason) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT_TYPE, format!("{reason}\n")),
        },
    }
}

/// Forbids caching and access by other sites' pages.
fn html(StatusPage { html, policy }: StatusPage) -> Response<Full<Bytes>> {
    let mut response = page(StatusCode::OK, HTML_TYPE, html);
    let headers: [(HeaderName, &'static str); 4] = [
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn page(status: StatusCode, content_type: HeaderValue, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Never completes a response of `/metrics`, but counts the requests.
    #[derive(Default)]
    struct Stalled(watch::Sender<usize>);

    impl Pages for Stalled {
        const PATHS: &'static [&'static str] = &["/healthz", "/metrics"];

        type NotReady = Infallible;

        async fn metrics(&self) -> String {
            self.0.send_modify(|requests| *requests += 1);
            std::future::pending().await
        }

        async fn ready(&self) -> Result<Vec<String>, Infallible> {
            Ok(Vec::new())
        }

        async fn status(&self) -> Option<StatusPage> {
            None
        }
    }

    async fn answer(address: SocketAddr) -> io::Result<String> {
        answer_on(TcpStream::connect(address).await?).await
    }

    async fn answer_on(mut stream: TcpStream) -> io::Result<String> {
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn a_new_connection_evicts_the_oldest_and_not_one_that_has_yet_to_send_its_request() {
        let endpoint = Endpoint::bind("127.0.0.1", 0).await.unwrap();
        let address = endpoint.sockets[0].1;
        let pages = Arc::new(Stalled::default());
        let _server = endpoint.serve(pages.clone());
        let mut pending = Vec::new();
        for _ in 0..MOST_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
            pending.push(stream);
        }
        pages.0.subscribe().wait_for(|requests| *requests == MOST_CONNECTIONS).await.unwrap();
        let silent = TcpStream::connect(address).await.unwrap();
        assert!(answer(address).await.unwrap().ends_with("ok\n"));
        assert!(answer_on(silent).await.unwrap().ends_with("ok\n"));
    }

    #[tokio::test]
    async fn every_address_is_served_until_the_server_stops() {
        let mut sockets = listen("127.0.0.1", 0, &mut Inherited::default()).await.unwrap();
        sockets.extend(listen("127.0.0.2", 0, &mut Inherited::default()).await.unwrap());
        let addresses: Vec<SocketAddr> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let server = Endpoint::on(sockets).unwrap().serve(Arc::new(Stalled::default()));
        for address in &addresses {
            assert!(answer(*address).await.unwrap().ends_with("ok\n"), "{address}");
        }
        server.stop().await;
        for address in addresses {
            // In both cases, the server no longer answers.
            let error = answer(address).await.unwrap_err().kind();
            assert!(matches!(error, io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset), "{error}");
        }
    }
}
