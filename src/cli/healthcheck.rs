//! `fencegate healthcheck`: queries `/readyz` of a proxy, for containers without a shell.
//!
//! Must never wait longer than its time limit, or read more than its limit in bytes.

use super::output::{Ended, failed, print, runtime, unusable};
use crate::config::{Address, http_address};
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit for the whole query. The proxy itself answers within two seconds.
const LIMIT: Duration = Duration::from_secs(3);
/// Maximum size of the response, in bytes.
const LARGEST: u64 = 16 * 1024;
/// The address without a setting.
const USUAL: &str = "127.0.0.1:9432";

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Address of the proxy's setting `http`
    #[arg(long, env = "FENCEGATE_HTTP", default_value = USUAL, value_name = "ADDRESS")]
    http: String,
}

pub(super) fn run(arguments: &Arguments) -> Ended {
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
