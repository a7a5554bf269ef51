//! Connections to the first of several hosts that accepts one, with overlapping attempts, as in RFC 8305 ("Happy
//! Eyeballs"). tokio-postgres alone tries one address after the other, and waits for an unresponsive one as long as the
//! system does.
//!
//! Owns the order of the hosts, when the next attempt starts, and the time limits of names and addresses. Must never
//! keep an attempt once another one has succeeded.

use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};

/// Default port of a host.
const DEFAULT_PORT: u16 = 5432;

/// Connects to one of the hosts. If there are several, to one that accepts writes. Cancel-safe: dropping it closes the connection.
///
/// # Errors
/// The error of the last address.
pub(super) async fn connect<T>(config: &Config, tls: &T) -> Result<(Client, Connection<Socket, T::Stream>), Error>
where
    T: MakeTlsConnect<Socket> + Clone,
{
    match race(hosts(config).into_iter().map(|host| connect_to(host, tls))).await {
        Some(result) => result,
        // Let tokio-postgres report the error of an unusable list.
        None => config.connect(tls.clone()).await,
    }
}

/// Connects to one host, at any of its addresses. Cancel-safe.
async fn connect_to<T>(host: Config, tls: &T) -> Result<(Client, Connection<Socket, T::Stream>), Error>
where
    T: MakeTlsConnect<Socket> + Clone,
{
    let to_address = async |address| {
        let mut config = host.clone();
        config.hostaddr(address).connect(tls.clone()).await
    };
    match race(addresses(&host).await.into_iter().map(to_address)).await {
        Some(result) => result,
        None => host.connect(tls.clone()).await,
    }
}

/// The addresses of a host without an explicit address, in the order of the attempts. Empty if it has none:
/// tokio-postgres reports the reason. Cancel-safe.
async fn addresses(host: &Config) -> Vec<IpAddr> {
    match (host.get_hosts(), host.get_hostaddrs(), host.get_ports()) {
        ([Host::Tcp(name)], [], [port]) => {
            let found = resolve(name, *port).await.unwrap_or_default();
            in_order(found.into_iter().map(|it| it.ip()).collect(), host)
        }
        _ => Vec::new(),
    }
}

/// In the given order, or in random order if the configuration balances the load.
fn in_order<T: Hash>(mut choices: Vec<T>, config: &Config) -> Vec<T> {
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        let random = RandomState::new();
        choices.sort_by_cached_key(|choice| random.hash_one(choice));
    }
    choices
}

/// A configuration for each host, in the order of the attempts. Empty if there is no host, or if addresses or ports do
/// not match the hosts.
fn hosts(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let is_complete = |given: usize| given == hosts.len() || given == 0;
    if !is_complete(addresses.len()) || !(is_complete(ports.len()) || ports.len() == 1) {
        return Vec::new();
    }
    let host = |place: usize| {
        let mut host = without_hosts(config);
        match &hosts[place] {
            Host::Tcp(name) => host.host(name),
            Host::Unix(directory) => host.host_path(directory),
        };
        if let Some(address) = addresses.get(place) {
            host.hostaddr(*address);
        }
        if hosts.len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            host.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        host.port(ports.get(place).or(ports.first()).copied().unwrap_or(DEFAULT_PORT));
        host
    };
    in_order((0..hosts.len()).collect(), config).into_iter().map(host).collect()
}

/// The configuration with only one of its hosts; None if there is no such host, or if hosts, addresses and ports do not
/// match.
pub(super) fn only(config: &Config, place: usize) -> Option<Config> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let port = if ports.len() > 1 { ports.get(place) } else { ports.first() };
    let is_complete = [addresses.len(), ports.len()].iter().all(|given| [0, 1, hosts.len()].contains(given));
    let mut one = to_host(config, hosts.get(place).filter(|_| is_complete)?, port.copied().unwrap_or(DEFAULT_PORT));
    addresses.get(place).map(|address| one.hostaddr(*address));
    one.target_session_attrs(config.get_target_session_attrs());
    Some(one)
}

/// The configuration with another host, regardless of the host's role.
pub(super) fn to_host(config: &Config, host: &Host, port: u16) -> Config {
    let mut other = without_hosts(config);
    match host {
        Host::Tcp(name) => other.host(name),
        Host::Unix(directory) => other.host_path(directory),
    };
    other.port(port).target_session_attrs(TargetSessionAttrs::Any);
    other
}

/// All other settings. tokio-postgres can only add hosts.
fn without_hosts(config: &Config) -> Config {
    let mut other = Config::new();
    config.get_user().map(|it| other.user(it));
    config.get_password().map(|it| other.password(it));
    config.get_dbname().map(|it| other.dbname(it));
    config.get_options().map(|it| other.options(it));
    config.get_application_name().map(|it| other.application_name(it));
    config.get_tcp_user_timeout().map(|it| other.tcp_user_timeout(*it));
    config.get_keepalives_interval().map(|it| other.keepalives_interval(it));
    config.get_keepalives_retries().map(|it| other.keepalives_retries(it));
    other
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .connect_timeout(config.get_connect_timeout().copied().unwrap_or(CONNECT_LIMIT))
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    other
}

/// Time limit for connecting to one address, unless a setting replaces it.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Time limit for resolving a name. glibc queries the second name server after 5 s.
const RESOLVE_LIMIT: Duration = Duration::from_secs(8);
/// Maximum number of addresses that are tried for a name. A name server may return any number.
const MOST_ADDRESSES: usize = 16;
/// Time after which the next attempt starts even if the last one has not ended: the default of RFC 8305.
const HEAD_START: Duration = Duration::from_millis(250);

/// The result of the first attempt that succeeds. Each attempt starts when an earlier one has failed, or when the last
/// one has had its head start. Returns None without attempts. Cancel-safe if the attempts are: dropping it drops those
/// under way.
///
/// # Errors
/// The error of the last attempt in the list, regardless of the order in which they failed.
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

/// Connects to any address of a host, which is a name or an IP address, within this time for each. Resolves the name
/// each time. Cancel-safe: a half-open connection is closed.
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

    #[test]
    fn each_host_keeps_all_other_settings() {
        let text = "host=a,b hostaddr=127.0.0.1,127.0.0.2 port=1,2 user=u password=p dbname=d options=o application_name=n \
            sslmode=require sslnegotiation=direct connect_timeout=7 tcp_user_timeout=8 keepalives=0 keepalives_idle=9 \
            keepalives_interval=10 keepalives_retries=11 channel_binding=require";
        let of_second = text.replace("a,b", "b").replace("127.0.0.1,", "").replace("1,2", "2");
        let expected: Config = format!("{of_second} target_session_attrs=read-write").parse().unwrap();
        assert_eq!(hosts(&text.parse().unwrap())[1], expected);
    }

    #[test]
    fn one_host_need_not_accept_writes() {
        let expected: Config = "host=/run user=u port=5432 connect_timeout=3".parse().unwrap();
        assert_eq!(hosts(&"host=/run user=u".parse().unwrap()), [expected]);
    }

    #[test]
    fn a_configuration_may_keep_one_host_or_have_another() {
        let of = |text: &str| text.parse::<Config>().unwrap();
        let list = of("host=a,/run port=1,2 user=u password=p target_session_attrs=read-write connect_timeout=3");
        let second = of("host=/run port=2 user=u password=p target_session_attrs=read-write connect_timeout=3");
        assert_eq!((only(&list, 1), only(&list, 2)), (Some(second), None));
        let other = of("host=c port=7 user=u password=p connect_timeout=3");
        assert_eq!(to_host(&list, &Host::Tcp("c".into()), 7), other);
    }

    #[test]
    fn incomplete_lists_are_left_to_the_driver() {
        for text in ["user=u", "host=a,b hostaddr=127.0.0.1", "host=a,b,c port=1,2"] {
            assert_eq!(hosts(&text.parse().unwrap()), []);
        }
    }

    #[test]
    fn a_random_order_has_each_host_once() {
        let config: Config = "host=a,b,c,d load_balance_hosts=random".parse().unwrap();
        let order = || hosts(&config).iter().map(|it| format!("{:?}", it.get_hosts())).collect::<Vec<_>>();
        let mut orders: Vec<_> = (0..100).map(|_| order()).collect();
        assert!(orders.iter().any(|it| *it != orders[0]));
        orders.iter_mut().for_each(|it| it.sort());
        assert!(orders.iter().all(|it| *it == orders[0]) && orders[0].len() == 4);
    }

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
