//! The table of settings: name, format, default and reload behavior; and settings with one of a few words as their value.
//!
//! Generates flags, environment variables, file keys, `SHOW CONFIG` and the table in docs/reference/settings.md. Must
//! never promise anything that `Settings` does not implement.

use Fallback::{Is, Nothing, Required};
use Form::{List, Number, Secret, Text};
use Reload::{Applies, Stays};
use fencegate_postgres::SslMode;
use tracing::Level;

/// A setting of `fencegate proxy`.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    /// Key in the file. See also [`Self::flag`] and [`Self::variable`].
    pub key: &'static str,
    /// Placeholder of the value in `--help`.
    pub value: &'static str,
    /// Type of the value.
    pub form: Form,
    /// Description of the accepted values.
    pub range: &'static str,
    /// Default value.
    pub default: Fallback,
    /// Effect of a reload.
    pub reload: Reload,
    /// Description of the setting.
    pub help: &'static str,
}

/// Type of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A single text.
    Text,
    /// A single text that must not be shown.
    Secret,
    /// A number or a time. The file may omit the quotes.
    Number,
    /// One or more texts: a list or a single text in the file, separated by commas elsewhere.
    List,
}

/// Default of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// No default: the setting is required.
    Required,
    /// This text.
    Is(&'static str),
    /// No value. The text describes the effect.
    Nothing(&'static str),
}

/// Effect of a reload on a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The new value takes effect. The files that it names are read again.
    Applies,
    /// The value stays until a restart.
    Stays,
}

impl Setting {
    /// The flag, without its dashes.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        variable(self.key)
    }
}

/// The environment variable of a key or flag.
pub(super) fn variable(key: &str) -> String {
    format!("FENCEGATE_{}", key.replace('-', "_").to_uppercase())
}

/// The text is not one of the words that a setting accepts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not one of {}", words.join(", "))]
pub struct ChoiceError {
    text: String,
    words: Vec<&'static str>,
}

/// The value that belongs to the text.
pub(super) fn choice<T: Copy>(text: &str, choices: &[(&'static str, T)]) -> Result<T, ChoiceError> {
    let found = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    let words = || choices.iter().map(|(word, _)| *word).collect();
    found.ok_or_else(|| ChoiceError { text: text.to_owned(), words: words() })
}

/// Reads an `sslmode`.
pub(super) fn ssl_mode(text: &str) -> Result<SslMode, ChoiceError> {
    let modes = [
        ("disable", SslMode::Disable),
        ("allow", SslMode::Allow),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ];
    choice(text, &modes)
}

/// Reads a log level; None: not logged.
pub(super) fn level(text: &str) -> Result<Option<Level>, ChoiceError> {
    choice(text, &[("off", None), ("debug", Some(Level::DEBUG)), ("info", Some(Level::INFO))])
}

const fn setting(
    key: &'static str,
    value: &'static str,
    form: Form,
    default: Fallback,
    reload: Reload,
    range: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, value, form, range, default, reload, help }
}

/// All settings.
#[rustfmt::skip]
pub static SETTINGS: [Setting; 39] = [
    setting("listen", "ADDRESS", List, Is("127.0.0.1:6432"), Applies,
        "`host:port`, or `/directory:port` for a Unix socket (default `:6432`); repeatable",
        "Listen addresses for clients"),
    setting("upstream", "ADDRESS", Text, Required, Applies,
        "`postgres://host:port`, or `/directory:port` for a Unix socket (default `:5432`); or a list, \
         `postgres://a:5432,b:5432?target_session_attrs=primary`, with libpq's target_session_attrs, \
         load_balance_hosts and connect_timeout (default 3 s for each address)",
        "The PostgreSQL server behind the proxy, or the primary and its standbys"),
    setting("control", "URL", Secret, Required, Applies,
        "`postgres://user:password@host:port/`, with host `%2Fdirectory` for a Unix socket, or with a list of hosts; \
         prefer PGPASSWORD, PGPASSFILE or ~/.pgpass for the password",
        "The proxy's control connection to that server"),
    setting("policies", "DIR", Text, Required, Applies,
        "a directory", "Directory of policies"),
    setting("watch_files", "TIME", Number, Is("0"), Stays,
        "0 to 24h; 0: never", "Interval at which the proxy looks for changed files of settings, policies and certificates, and reloads"),
    setting("admin_roles", "ROLE,…", List, Nothing("the role of the control connection"), Applies,
        "names of roles", "Roles that may use the console"),
    setting("allow_unauthenticated", "ADDRESS[/BITS]|unix", List,
        Nothing("only clients on a loopback address, if the proxy also connects to the server by TCP on loopback"), Applies,
        "an address or `address/bits`, or `unix` for the proxy's own Unix sockets; repeatable",
        "Addresses of clients that the server may accept without authentication"),
    setting("proxy_protocol_from", "ADDRESS[/BITS]", List, Nothing("no headers are accepted"), Applies,
        "an address or `address/bits`; repeatable",
        "Addresses of load balancers, whose connections must begin with a PROXY protocol header (version 1 or 2)"),
    setting("http", "ADDRESS", Text, Nothing("not served"), Applies,
        "`host:port`", "Address for metrics, health and the status page: /metrics, /healthz, /readyz, /"),
    setting("log_sessions", "LEVEL", Text, Is("info"), Applies,
        "`off`, `debug` or `info`", "Log level for the start and end of each session"),
    setting("max_connections", "NUMBER", Number, Is("1000"), Applies,
        "1 to 1000000", "Maximum number of concurrent clients; further ones receive 53300"),
    setting("max_connections_per_user", "NUMBER", Number, Nothing("no separate limit"), Applies,
        "1 to 1000000", "Maximum number of concurrent sessions per user; further ones receive 53300"),
    setting("max_connections_per_database", "NUMBER", Number, Nothing("no separate limit"), Applies,
        "1 to 1000000", "Maximum number of concurrent sessions per database; further ones receive 53300"),
    setting("max_connections_per_address", "NUMBER", Number, Nothing("no separate limit"), Applies,
        "1 to 1000000",
        "Maximum number of concurrent sessions per client address (IPv6: per /64 network); further ones receive 53300"),
    setting("workers", "NUMBER", Number, Nothing("number of cores"), Stays,
        "1 to 1024", "Threads for sessions; each session stays on one thread"),
    setting("startup_timeout", "TIME", Number, Is("60s"), Applies,
        "1ms to 24h", "Time limit for TLS, the startup packet and authentication"),
    setting("connect_wait", "TIME", Number, Is("0"), Applies,
        "0 to 24h", "Time for which a new session waits while no server of `upstream` may serve it; then it receives 57P03"),
    setting("idle_timeout", "TIME", Number, Is("0"), Applies,
        "0 to 24h; 0: never", "Maximum idle time of a session outside a transaction; then it ends (57P05)"),
    setting("shutdown_timeout", "TIME", Number, Is("30s"), Applies,
        "0 to 24h", "Time limit for open transactions after SIGTERM"),
    setting("take_over", "PATH", Text, Nothing("no upgrade without a disconnect"), Stays,
        "the absolute path of a socket, for example `/run/fencegate/take-over.sock`; only the proxy's system user and root may connect",
        "Socket for upgrades: the proxy takes over the listening sockets of the proxy that it finds there, then offers them to its successor there"),
    setting("drain_timeout", "TIME", Number, Is("1h"), Applies,
        "0 to 24h", "Time limit for the remaining sessions after a successor has taken over; then shutdown begins"),
    setting("keepalive", "TIME", Number, Is("60s"), Applies,
        "0, or 1s to 9h; 0: the system's setting",
        "Idle time before TCP probes a client or server"),
    setting("tls", "MODE", Text, Nothing("`allow` if tls_cert is set, otherwise `off`"), Applies,
        "`off`, `allow` or `require`", "Whether TLS is optional or required for clients"),
    setting("tls_cert", "FILE", Text, Nothing("no TLS"), Applies,
        "PEM: the certificate, then any intermediate certificates", "The proxy's certificate for clients"),
    setting("tls_key", "FILE", Text, Nothing("no TLS"), Applies,
        "PEM", "Key of that certificate"),
    setting("tls_client_ca", "FILE", Text, Nothing("the proxy requests no certificates"), Applies,
        "PEM", "Authorities of clients' certificates"),
    setting("tls_client_certificates", "MODE", Text, Is("off"), Applies,
        "`off`, `optional` or `required`", "Whether client certificates are optional or required"),
    setting("tls_min_version", "VERSION", Text, Is("TLSv1.2"), Applies,
        "`TLSv1.2` or `TLSv1.3`", "Minimum TLS version for clients"),
    setting("upstream_sslmode", "MODE", Text, Is("prefer"), Applies,
        "`disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`, as in libpq",
        "Encryption of connections to the server, and verification of the server"),
    setting("upstream_sslrootcert", "FILE", Text, Nothing("the server is not verified"), Applies,
        "PEM, or `system` for the system's authorities",
        "Authorities of the server's certificate"),
    setting("upstream_sslcert", "FILE", Text, Nothing("no certificate"), Applies,
        "PEM", "The proxy's client certificate for the server"),
    setting("upstream_sslkey", "FILE", Text, Nothing("no certificate"), Applies,
        "PEM", "Key of that certificate"),
    setting("etcd", "URL,…", List, Nothing("no policy may name an election"), Applies,
        "`http://host:2379` or `https://host:2379`, all members", "Members of etcd"),
    setting("etcd_ca", "FILE", Text, Nothing("the system's authorities"), Applies,
        "PEM", "Authority of etcd's certificates"),
    setting("etcd_cert", "FILE", Text, Nothing("no certificate"), Applies,
        "PEM", "Client certificate for etcd"),
    setting("etcd_key", "FILE", Text, Nothing("no certificate"), Applies,
        "PEM", "Key of that certificate"),
    setting("etcd_user", "NAME", Text, Nothing("no credentials"), Applies,
        "a name", "etcd user, if authentication is enabled"),
    setting("etcd_password", "PASSWORD", Secret, Nothing("no credentials"), Applies,
        "a password; prefer the environment variable, which other users cannot see", "Password of the etcd user"),
    setting("etcd_password_file", "FILE", Text, Nothing("no file"), Applies,
        "instead of `etcd_password`; read at each login, so that a changed password needs no restart",
        "File with the password of the etcd user"),
];
