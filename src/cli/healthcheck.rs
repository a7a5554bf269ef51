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

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Address of the proxy's setting `http`
    #[arg(long, env = "FENCEGATE_HTTP", default_value = "127.0.0.1:9432", value_name = "ADDRESS")]
    http: String,
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    let address = http_address(&arguments.http).map_err(|why| unusable(format!("--http {why}")))?;
    let response = runtime()?.block_on(async { timeout(LIMIT, query(&address)).await });
    let response = response.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let response = response.map_err(|error| failed(format!("{address}: {error}")))?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    if head.split(' ').nth(1) != Some("200") {
        return Err(failed(format!(
            "{address}: {}",
            if body.is_empty() { "no HTTP response" } else { body.trim_end() }
        )));
    }
    print(body);
    Ok(ExitCode::SUCCESS)
}

/// The response to GET /readyz.
async fn query(address: &Address) -> io::Result<String> {
    let mut stream = TcpStream::connect(address.to_string()).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut response = String::new();
    stream.take(LARGEST).read_to_string(&mut response).await?;
    Ok(response)
}
