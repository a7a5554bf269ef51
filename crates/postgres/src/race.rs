//! Attempts to connect that overlap, as RFC 8305 describes ("Happy Eyeballs").
//!
//! Owns when the next attempt starts, and the time limits of names and addresses. Must never keep an attempt once another one
//! has succeeded.

use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

/// Time limit for connecting to one address, unless a setting replaces it.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Time limit for resolving a name. glibc queries the second name server after 5 s.
const RESOLVE_LIMIT: Duration = Duration::from_secs(8);
/// Maximum number of addresses that are tried for a name. A name server may return any number.
const MOST_ADDRESSES: usize = 16;
/// Time after which an attempt that has not ended is joined by the next one: the default of RFC 8305.
const HEAD_START: Duration = Duration::from_millis(250);

/// The result of the first attempt that succeeds. Each attempt starts when one before it has failed, or when the last one has
/// had its head start. Returns None without attempts. Cancel-safe if the attempts are: dropping this drops those under way.
///
/// # Errors
/// The error of the last attempt in their order, as if each had waited for the one before.
pub async fn race<T, E>(
    attempts: impl IntoIterator<Item = impl Future<Output = Result<T, E>>>,
) -> Option<Result<T, E>> {
    let (mut left, mut under_way) = (attempts.into_iter().enumerate().peekable(), FuturesUnordered::new());
    let mut failures = BTreeMap::new();
    loop {
        under_way.extend(left.next().map(async |(place, attempt)| (place, attempt.await)));
        tokio::select! {
            biased;
            ended = under_way.next() => match ended {
                Some((_, Ok(won))) => return Some(Ok(won)),
                Some((place, Err(error))) => drop(failures.insert(place, error)),
                None => return failures.pop_last().map(|(_, error)| Err(error)),
            },
            () = sleep(HEAD_START), if left.peek().is_some() => {}
        }
    }
}

/// Connects to any address of a host, which is a name or an IP address, within this time for each. Resolves the name each time.
/// Cancel-safe: a connection that is half open is closed.
///
/// # Errors
/// The name cannot be resolved, or the error of its last address.
pub async fn connect_tcp(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let connect = async |address| timeout(limit, TcpStream::connect(address)).await?;
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    race(resolve(host, port).await?.into_iter().map(connect)).await.unwrap_or_else(|| Err(none()))
}

/// The first addresses of a host, in the order in which the system prefers them. Cancel-safe.
///
/// # Errors
/// The name cannot be resolved.
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(timeout(RESOLVE_LIMIT, lookup_host((host, port))).await??.take(MOST_ADDRESSES).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    /// An attempt that ends after a time.
    async fn attempt(milliseconds: u64, result: Result<u8, u8>) -> Result<u8, u8> {
        sleep(Duration::from_millis(milliseconds)).await;
        result
    }

    /// The result of attempts, and the time it took in milliseconds.
    async fn run<const N: usize>(attempts: [(u64, Result<u8, u8>); N]) -> (Option<Result<u8, u8>>, u128) {
        let begin = Instant::now();
        let result = race(attempts.map(|(milliseconds, result)| attempt(milliseconds, result))).await;
        (result, begin.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_delays_by_its_head_start_only() {
        assert_eq!(run([(3000, Err(1)), (10, Ok(2))]).await, (Some(Ok(2)), 260));
        assert_eq!(run([(3000, Err(1)), (3000, Err(2)), (10, Ok(3))]).await, (Some(Ok(3)), 510));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_failure_the_next_attempt_starts_at_once() {
        assert_eq!(run([(10, Err(1)), (10, Ok(2))]).await, (Some(Ok(2)), 20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_address_still_wins() {
        assert_eq!(run([(300, Ok(1)), (1000, Ok(2))]).await, (Some(Ok(1)), 300));
        assert_eq!(run([(600, Ok(1)), (10, Err(2))]).await, (Some(Ok(1)), 600));
    }

    #[tokio::test(start_paused = true)]
    async fn the_failure_of_the_last_is_reported_once_all_have_failed() {
        assert_eq!(run([(400, Err(1)), (10, Err(2))]).await, (Some(Err(2)), 400));
        assert_eq!(run([]).await, (None, 0));
    }
}
