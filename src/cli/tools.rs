//! Commands beside the proxy: `fencegate healthcheck` queries `/readyz` of a proxy, for containers without a shell; `fencegate demo`
//! demonstrates fencing on temporary servers; `fencegate timeline` draws the history in the logs of proxies and leaders.
//!
//! The health check must never wait longer than its time limit, or read more than its limit in bytes.

use super::output::{Ended, failed, print, print_stderr, runtime, unusable};
use crate::config::{Address, http_address};
use crate::demo::{self, Played};
use crate::timeline::{Events, draw};
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// Time limit for the whole query. The proxy itself answers within two seconds.
const LIMIT: Duration = Duration::from_secs(3);
/// Maximum size of the response, in bytes.
const LARGEST: u64 = 16 * 1024;
/// The address without a setting.
const USUAL: &str = "127.0.0.1:9432";

#[derive(clap::Args)]
pub(super) struct HealthcheckArguments {
    /// Address of the proxy's setting `http`
    #[arg(long, env = "FENCEGATE_HTTP", default_value = USUAL, value_name = "ADDRESS")]
    http: String,
}

pub(super) fn run_healthcheck(arguments: &HealthcheckArguments) -> Ended {
    // An empty variable counts as unset, as for the proxy.
    let http = if arguments.http.is_empty() { USUAL } else { &arguments.http };
    let address = http_address(http).map_err(|why| unusable(format!("--http {why}")))?;
    let runtime = runtime()?;
    let response = runtime.block_on(async { timeout(LIMIT, query(&address)).await });
    // The resolution of a name cannot be canceled. Do not wait for it.
    runtime.shutdown_background();
    let response = response.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let response = response.map_err(|error| failed(format!("{address}: {error}")))?;
    match status_and_body(&response) {
        Some(("200", body)) => {
            print(&body);
            Ok(ExitCode::SUCCESS)
        }
        Some((status, body)) => Err(failed(format!("{address}: {status} {}", body.trim_end()))),
        None => Err(failed(format!("{address}: no HTTP response"))),
    }
}

/// The response to GET /readyz.
async fn query(address: &Address) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address.to_string()).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut response = Vec::new();
    stream.take(LARGEST).read_to_end(&mut response).await?;
    Ok(response)
}

/// The status code, and the body without control characters; None if it is no HTTP response.
fn status_and_body(response: &[u8]) -> Option<(&str, String)> {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let (head, body) = response.split_at(end + 4);
    let (version, rest) = std::str::from_utf8(head).ok()?.split_once(' ')?;
    let is_control = |letter: char| letter.is_control() && letter != '\n';
    let body = String::from_utf8_lossy(body).replace(is_control, " ");
    version.starts_with("HTTP/1.").then_some((rest.split([' ', '\r']).next()?, body))
}

#[derive(clap::Args)]
pub(super) struct DemoArguments {
    /// Write the events of the last scene into this file, for `fencegate timeline`
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
}

pub(super) fn run_demo(arguments: &DemoArguments) -> Ended {
    let ended = runtime()?.block_on(until_interrupted());
    let result = ended.map_err(|error| failed(format!("cannot set up signal handling: {error}")))?;
    let interrupted = || failed("interrupted; temporary servers and files are removed");
    let Played { failures, events } = result.ok_or_else(interrupted)?.map_err(failed)?;
    if let Some(file) = &arguments.events {
        fs::write(file, events).map_err(|error| failed(format!("{}: {error}", file.display())))?;
    }
    failures.iter().for_each(|failure| print_stderr(&format!("fencegate: failed: {failure}")));
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns None if a signal arrives first.
async fn until_interrupted() -> io::Result<Option<Result<Played, demo::DemoError>>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        result = demo::run() => Some(result),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        _ = hangup.recv() => None,
    })
}

#[derive(clap::Args)]
pub(super) struct TimelineArguments {
    /// Logs of proxies and `fencegate lead`, written with --log-format json; `-` for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(super) fn run_timeline(arguments: &TimelineArguments) -> Ended {
    let mut events = Events::default();
    for file in &arguments.files {
        let read = if file == Path::new("-") {
            events.read(io::stdin().lock())
        } else {
            File::open(file).and_then(|log| events.read(BufReader::new(log)))
        };
        read.map_err(|error| failed(format!("{}: {error}", file.display())))?;
    }
    let picture = draw(events).ok_or_else(|| {
        failed("no events to draw: write the logs with --log-format json; they must have events such as lease_acquired or session_admitted")
    })?;
    print(&picture);
    Ok(ExitCode::SUCCESS)
}
