//! Lists of hosts whose first host does not answer.

use crate::support::Proxy;
use crate::support::postgres::Postgres;
use crate::support::programs::run;
use crate::support::proxy::{ProxyOptions, fencegate};
use crate::support::ticks::{self, WRITE, ok, session};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// An address that drops every SYN, like a host behind a firewall, because its connection queue is full.
pub struct Silent {
    _listener: OwnedFd,
    _queued: Vec<TcpStream>,
    pub port: u16,
}

impl Silent {
    pub fn new() -> Self {
        let listener = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(listener.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let port = getsockname::<SockaddrIn>(listener.as_raw_fd()).unwrap().port();
        let connect =
            || TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), Duration::from_millis(200));
        let mut queued = Vec::new();
        let refusal = loop {
            match connect() {
                Ok(stream) => queued.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refusal.kind(), ErrorKind::TimedOut);
        Silent { _listener: listener, _queued: queued, port }
    }

    /// A connection string with this host before the server's.
    fn before(&self, postgres: &Postgres) -> String {
        let url = postgres.control_url().replace('@', &format!("@127.0.0.1:{},", self.port));
        url + "postgres"
    }
}

#[test]
fn commands_use_the_next_host() {
    let (postgres, silent) = (ticks::server(), Silent::new());
    let url = silent.before(&postgres);
    run(fencegate().args(["init", "--control", &url, "--leases-for", "postgres"]));
    run(fencegate().args(["lead", "--coordinator", &url, "--election", "cron/nightly", "--ttl", "2s", "--", "true"]));
}

#[test]
fn a_control_connection_uses_the_next_host() {
    let (postgres, silent) = (ticks::server(), Silent::new());
    let options = ProxyOptions::default().policies(ticks::POLICIES).control(&silent.before(&postgres));
    let proxy = Proxy::start_with(&postgres, &options);
    ok(&mut session(&proxy.address(), 1), WRITE);
}
