//! HTTP service of a job queue. Any number of replicas can run, because all state is in the database.
//!
//! Owns requests and responses. Must never decide which worker may write: the fence does.

mod queue;
mod tend;

use clap::Parser;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use queue::{Answer, Body, LIST, Queue, Refusal};
use serde_json::json;
use std::error::Error;
use std::sync::Arc;
use tend::{STATUS, SWITCH, tend};

const LARGEST_BODY: usize = 64 * 1024;

#[derive(Parser)]
struct Arguments {
    /// Name of this replica
    replica: String,
    /// Connection string of the database, through the proxy
    database: tokio_postgres::Config,
    /// TTL of leases without a heartbeat: `10 s`
    ttl: String,
    /// Listen address: host:port
    listen: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { replica, database, ttl, listen } = Arguments::parse();
    let queue = Arc::new(Queue { replica, database, ttl, events: Default::default() });
    let listener = tokio::net::TcpListener::bind(listen).await?;
    queue.event("listening", json!({"address": listener.local_addr()?.to_string()}));
    tokio::spawn(tend(queue.clone()));
    loop {
        let (stream, _) = listener.accept().await?;
        let queue = queue.clone();
        let service = service_fn(move |request| respond(queue.clone(), request));
        let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

async fn respond(queue: Arc<Queue>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    let (status, body) = match answer(&queue, request).await {
        Ok(answer) => answer,
        Err(Refusal(status, message)) => (status, json!({"message": message})),
    };
    // Metrics are plain text, all other responses JSON.
    let text = body.as_str().map(|text| ("text/plain; version=0.0.4", text.to_owned()));
    let (form, text) = text.unwrap_or_else(|| ("application/json", body.to_string()));
    Response::builder().status(status).header("content-type", form).body(Full::new(text.into()))
}

async fn answer(queue: &Queue, request: Request<Incoming>) -> Result<Answer, Refusal> {
    let (head, body) = request.into_parts();
    let bytes = Limited::new(body, LARGEST_BODY).collect().await.map_err(Refusal::request)?.to_bytes();
    let body = if bytes.is_empty() { b"{}" } else { &*bytes };
    let body: Body = serde_json::from_slice(body).map_err(Refusal::request)?;
    let path: Vec<&str> = head.uri.path().split('/').skip(1).collect();
    match (head.method.as_str(), path.as_slice()) {
        ("POST", ["jobs"]) => queue.enqueue(&body).await,
        ("POST", ["jobs", "next"]) => queue.next(&body.worker).await,
        ("PUT", ["jobs", id, report @ ("heartbeat" | "complete" | "fail")]) => {
            queue.report(id.parse().map_err(Refusal::request)?, report, &body).await
        }
        ("GET", ["leases", list]) => queue.ask(LIST, &[list]).await,
        ("GET", ["generator"]) => queue.ask(STATUS, &[]).await,
        ("PUT", ["generator"]) => queue.ask(SWITCH, &[&body.running]).await,
        ("GET", ["metrics"]) => queue.metrics().await,
        _ => Err(Refusal(StatusCode::NOT_FOUND, "no such page".into())),
    }
}
