//! The one place that decides to which server a test connects.
//!
//! A test is a function of [`Via`]; the macro [`routes!`] creates two tests from it. One connects to the server
//! directly and shows that the expectation is PostgreSQL's own behavior. The other connects through the proxy.

use super::postgres::{Options, Postgres};
use super::proxy::{Proxy, ProxyOptions};
use super::wire::{Address, Wire};

/// How a test reaches the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    Direct,
    Proxy,
}

impl Via {
    pub fn start(self, options: Options) -> Target {
        self.start_with(options, &ProxyOptions::default())
    }

    pub fn start_with(self, options: Options, proxy_options: &ProxyOptions) -> Target {
        let postgres = Postgres::start(options);
        let proxy = (self == Self::Proxy).then(|| Proxy::start_with(&postgres, proxy_options));
        Target { proxy, postgres }
    }
}

/// A server, and the proxy in front of it if the test uses one.
pub struct Target {
    // Before the server: fields are dropped in this order.
    pub proxy: Option<Proxy>,
    pub postgres: Postgres,
}

impl Target {
    /// The address for the test's clients.
    pub fn address(&self) -> Address {
        self.proxy.as_ref().map_or_else(|| self.postgres.address(), Proxy::address)
    }

    /// The Unix socket for the test's clients.
    pub fn socket(&self) -> Address {
        self.proxy.as_ref().map_or_else(|| self.postgres.socket(), Proxy::socket)
    }

    /// A raw session of the superuser.
    pub fn login(&self) -> Wire {
        Wire::login(&self.address(), super::postgres::SUPERUSER, "postgres")
    }

    /// A superuser's session in tokio-postgres.
    pub async fn connect(&self) -> tokio_postgres::Client {
        connect(&self.address(), super::postgres::SUPERUSER, "postgres").await
    }
}

/// A tokio-postgres session, whose connection runs in the test's runtime.
pub async fn connect(address: &Address, user: &str, database: &str) -> tokio_postgres::Client {
    let (host, port) = address.host_and_port();
    let mut config = tokio_postgres::Config::new();
    config.host(host).port(port.parse().unwrap()).user(user).dbname(database);
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("the server accepts the session");
    // The client's next call reports an error of the connection.
    tokio::spawn(connection);
    client
}

/// Creates two tests from each function of [`Via`]. The first form is for behavior that only the proxy has.
#[macro_export]
macro_rules! routes {
    (proxy only: $($test:ident),+ $(,)?) => {
        mod proxy_only {
            $(#[test]
            fn $test() {
                super::$test($crate::support::Via::Proxy);
            })+
        }
    };
    ($($test:ident),+ $(,)?) => {
        mod direct {
            $(#[test]
            fn $test() {
                super::$test($crate::support::Via::Direct);
            })+
        }
        mod proxied {
            $(#[test]
            fn $test() {
                super::$test($crate::support::Via::Proxy);
            })+
        }
    };
}
