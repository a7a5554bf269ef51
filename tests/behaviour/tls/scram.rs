//! SCRAM and channel binding match the table in docs/run/tls-and-access.md, cell by cell.

use super::world::{offering, psql, refused};
use crate::support::certificates::{Authority, Certificate};
use crate::support::{Options, Postgres, Proxy, ProxyOptions};

const DOCUMENT: &str = include_str!("../../../docs/run/tls-and-access.md");
const HEAD: &str = "| clients to the proxy | the proxy to the server | `channel_binding=disable` | `prefer`, the default | `require` |";
const BINDINGS: [&str; 3] = ["disable", "prefer", "require"];

/// The cells of each row of the table.
fn rows() -> Vec<Vec<&'static str>> {
    let (_, rest) = DOCUMENT.split_once(HEAD).expect("the table exists");
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

struct Servers {
    encrypted: Postgres,
    certificate: Certificate,
    other: Certificate,
}

impl Servers {
    fn start() -> Self {
        let authority = Authority::new("authority");
        let [certificate, other] = ["server", "proxy"].map(|name| authority.sign_local(name));
        let options = Options::default().tls(&certificate);
        let encrypted = Postgres::start(options.hba("host all scrammed 127.0.0.1/32 scram-sha-256"));
        encrypted.sql("CREATE ROLE scrammed LOGIN PASSWORD 'right'");
        Servers { encrypted, certificate, other }
    }

    fn proxy(&self, clients: &str, server: &str) -> Proxy {
        let of_clients: &[&str] = match clients {
            "without TLS" => &[],
            "TLS, a certificate of its own" => &offering(&self.other),
            "TLS, the server's certificate" => &offering(&self.certificate),
            other => panic!("{other}"),
        };
        let mode = match server {
            "without TLS" => "disable",
            "TLS" => "require",
            other => panic!("{other}"),
        };
        let options = ProxyOptions::default().arguments(of_clients).arguments(&["--upstream-sslmode", mode]);
        Proxy::start_with(&self.encrypted, &options)
    }
}

#[test]
fn every_combination_matches_the_table() {
    let servers = Servers::start();
    let rows = rows();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let [clients, server, cells @ ..] = &row[..] else { panic!("{row:?}") };
        let proxy = servers.proxy(clients, server);
        assert_eq!(cells.len(), BINDINGS.len());
        for (binding, cell) in BINDINGS.iter().zip(cells) {
            let connect = |password: &str| {
                let mode = if *clients == "without TLS" { "disable" } else { "require" };
                let parameters = format!("user=scrammed password={password} sslmode={mode} channel_binding={binding}");
                psql(&proxy.address(), &parameters, "SELECT 'in'")
            };
            match *cell {
                "works" => {
                    assert_eq!(connect("right").as_deref(), Ok("in"), "{row:?} {binding}");
                    refused(connect("wrong"), "password authentication failed");
                }
                "refused by the proxy" => {
                    let error = refused(connect("right"), "SCRAM channel binding does not work through the proxy");
                    for what in ["channel_binding=disable", "tls_cert", "upstream_sslmode=disable"] {
                        assert!(error.contains(what), "{error}");
                    }
                }
                "refused by the client" => drop(refused(connect("right"), "channel binding")),
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn other_methods_are_unaffected() {
    let servers = Servers::start();
    let proxy = servers.proxy("TLS, a certificate of its own", "TLS");
    assert_eq!(psql(&proxy.address(), "sslmode=require", "SELECT 'in'").as_deref(), Ok("in"));
}
