//! TLS clients that users have: psql, psycopg and openssl.

use crate::support::certificates::{Authority, Certificate, text};
use crate::support::guardian::Folder;
use crate::support::{Address, Options, Postgres, Proxy, ProxyOptions, programs};
use std::process::{Command, Stdio};

/// Whether the connection to the server is encrypted.
pub const IS_ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

/// A server without TLS behind a proxy with TLS.
pub struct World {
    // Before the server: fields are dropped in this order.
    pub proxy: Proxy,
    pub postgres: Postgres,
    pub authority: Authority,
}

impl World {
    pub fn start(arguments: &[&str]) -> Self {
        let authority = Authority::new("authority");
        let certificate = authority.sign_local("proxy");
        let postgres = Postgres::start(Options::default());
        let options = ProxyOptions::default().arguments(&offering(&certificate)).arguments(arguments);
        let proxy = Proxy::start_with(&postgres, &options);
        World { proxy, postgres, authority }
    }

    /// The output or error of psql through the proxy.
    pub fn psql(&self, parameters: &str) -> Result<String, String> {
        psql(&self.proxy.address(), parameters, "SELECT 'in'")
    }

    /// The parameter with which a client verifies the proxy's certificate.
    pub fn root(&self) -> String {
        format!("sslrootcert={}", text(&self.authority.pem()))
    }
}

/// Arguments of a proxy with this certificate. They live as long as the test.
pub fn offering(certificate: &Certificate) -> [&'static str; 4] {
    ["--tls-cert", leak(text(&certificate.pem)), "--tls-key", leak(text(&certificate.key))]
}

pub fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// The output or error of psql. The connection parameters may override user and host.
pub fn psql(address: &Address, parameters: &str, sql: &str) -> Result<String, String> {
    let home = Folder::new("home");
    let mut command = programs::limited(60, &programs::psql(address, "postgres"));
    // psql would use certificates in the home folder.
    command.env("HOME", home.path());
    let output = command.args(["-At", "-c", sql, "-d", parameters]).output().unwrap();
    let line = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(line(&output.stdout)) } else { Err(line(&output.stderr)) }
}

/// The output or errors of a psycopg program. Its first argument is the connection string.
pub fn psycopg(address: &Address, parameters: &str, program: &str) -> Result<String, String> {
    let home = Folder::new("home");
    let (host, port) = address.host_and_port();
    let parameters = format!("host={host} port={port} user=postgres dbname=postgres {parameters}");
    let mut command = Command::new(programs::python());
    let output = command.env("HOME", home.path()).args(["-c", program, &parameters]).output().unwrap();
    let line = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(line(&output.stdout)) } else { Err(line(&output.stderr)) }
}

/// Whether openssl's client has connected, and its output.
pub fn s_client(address: &Address, arguments: &str) -> (bool, String) {
    let (host, port) = address.host_and_port();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &format!("{host}:{port}")]).args(arguments.split_whitespace());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[track_caller]
pub fn refused(result: Result<String, String>, why: &str) -> String {
    let error = result.expect_err(why);
    assert!(error.contains(why), "{error:?} does not contain {why:?}");
    error
}
