//! The server for `/metrics`, `/healthz` and `/readyz`, on an address of its own.
//!
//! Owns every limit on who asks: how many at once, how long, how much. Must never wait for a client without a limit.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// So many connections are served at once; the next ones wait.
const MOST_CONNECTIONS: usize = 64;
/// Bytes of a request's head, and lines in it.
const LARGEST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// A request's head comes within this time.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// A connection is closed after this time, whatever it does. Each carries one request.
const CONNECTION_LIMIT: Duration = Duration::from_secs(15);
/// Who is being answered when the server stops gets this long.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Before the next connection is accepted after one could not be: out of file descriptors, usually.
const PAUSE: Duration = Duration::from_millis(100);

/// The version of the text format.
const METRICS_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const TEXT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What the pages say. Cancel-safe: whoever asked may have gone.
pub trait Pages: Send + Sync + 'static {
    /// The text of `/metrics`.
    fn metrics(&self) -> impl Future<Output = String> + Send;

    /// `/readyz`: the reason where the answer is no, in a line.
    fn ready(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// An address that is listened on, where nobody is answered yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

/// A server that answers. It ends with the runtime; [`Server::stop`] ends it in good order.
#[derive(Debug)]
pub struct Server {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Listener {
    /// Listens. Cancel-safe.
    ///
    /// # Errors
    /// Those of the system: somebody else listens there, say.
    pub async fn bind(host: &str, port: u16) -> io::Result<Self> {
        let socket = TcpListener::bind((host, port)).await?;
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    }

    /// Answers from now on.
    pub fn serve(self, pages: Arc<impl Pages>) -> Server {
        tracing::info!(address = %self.address, "metrics_served");
        let (stop, stopped) = oneshot::channel();
        Server { task: tokio::spawn(serve(self.socket, pages, stopped)), stop }
    }
}

impl Server {
    /// Takes no more connections, and answers those that it has. Takes a second at most. Cancel-safe: it goes on.
    pub async fn stop(self) {
        drop(self.stop);
        // An error says that it has ended already.
        let _ = timeout(LAST_ANSWERS, self.task).await;
    }
}

async fn serve(socket: TcpListener, pages: Arc<impl Pages>, mut stopped: oneshot::Receiver<()>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = async { (places.clone().acquire_owned().await, socket.accept().await) };
        tokio::select! {
            _ = &mut stopped => break,
            Some(_) = connections.join_next() => {}
            (place, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    let pages = pages.clone();
                    connections.spawn(async move {
                        let _place = place;
                        // Who takes longer is cut off.
                        let _ = timeout(CONNECTION_LIMIT, answer_one(stream, pages)).await;
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

async fn answer(request: &Request<Incoming>, pages: &impl Pages) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !["/metrics", "/healthz", "/readyz"].contains(&path) {
        return page(StatusCode::NOT_FOUND, TEXT_TYPE, "there are /metrics, /healthz and /readyz\n".into());
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refused = page(StatusCode::METHOD_NOT_ALLOWED, TEXT_TYPE, "GET or HEAD\n".into());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/metrics" => page(StatusCode::OK, METRICS_TYPE, pages.metrics().await),
        "/healthz" => page(StatusCode::OK, TEXT_TYPE, "ok\n".into()),
        _ => match pages.ready().await {
            Ok(()) => page(StatusCode::OK, TEXT_TYPE, "ok\n".into()),
            Err(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT_TYPE, format!("{why}\n")),
        },
    }
}

fn page(status: StatusCode, content_type: HeaderValue, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
