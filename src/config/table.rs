//! The table of settings: name, format, default and reload behavior.
//!
//! Generates flags, environment variables, file keys, `SHOW CONFIG` and the table in docs/operations.md. Must never
//! promise anything that `Settings` does not implement.

use Fallback::{Is, Nothing, Required};
use Form::{List, Number, Secret, Text};
use Reload::{Applies, ReadsFiles, Stays};

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
    /// The new value takes effect.
    Applies,
    /// The value stays until a restart; the files that it names are read again.
    ReadsFiles,
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
pub static SETTINGS: [Setting; 32] = [
    setting("listen", "ADDRESS", List, Is("127.0.0.1:6432"), Stays,
        "`host:port`, or `/directory:port` for a Unix socket (`:6432` unless given); repeatable",
        "Where clients connect"),
    setting("upstream", "ADDRESS", Text, Required, Stays,
        "`postgres://host:port`, or `/directory:port` for a Unix socket (`:5432` unless given)",
        "The Postgres server behind the proxy"),
    setting("control", "URL", Secret, Required, Stays,
        "`postgres://user:password@host:port/`, as host `%2Fdirectory` for a Unix socket; \
         the password better by PGPASSWORD, PGPASSFILE or ~/.pgpass",
        "The proxy's own connection to that server"),
    setting("policies", "DIR", Text, Required, ReadsFiles,
        "a directory", "The directory of policies"),
    setting("admin_roles", "ROLE,…", List, Nothing("the role of the control connection"), Applies,
        "names of roles", "The roles that may use the console"),
    setting("allow_unauthenticated", "ADDRESS[/BITS]|unix", List,
        Nothing("nobody but clients on a loopback address, where the server is reached by TCP on loopback too"), Applies,
        "an address or `address/bits`, or `unix` for the proxy's own Unix sockets; repeatable",
        "Where clients come from whom the server may let in without asking for anything"),
    setting("http", "ADDRESS", Text, Nothing("not served"), Stays,
        "`host:port`", "Where metrics, health and the status page are served: /metrics, /healthz, /readyz, /"),
    setting("log_sessions", "LEVEL", Text, Is("info"), Applies,
        "`off`, `debug` or `info`", "The level at which the start and the end of each session are logged"),
    setting("max_connections", "NUMBER", Number, Is("1000"), Applies,
        "1 to 1000000", "The most clients at the same time; the next one gets 53300"),
    setting("max_connections_per_user", "NUMBER", Number, Nothing("no limit of its own"), Applies,
        "1 to 1000000", "The most sessions of one user at the same time; the next one gets 53300"),
    setting("workers", "NUMBER", Number, Nothing("as many as there are cores"), Stays,
        "1 to 1024", "The threads that run sessions: each session stays on one"),
    setting("startup_timeout", "TIME", Number, Is("60s"), Applies,
        "1ms to 24h", "How long a client may take for TLS, its startup packet and its authentication"),
    setting("idle_timeout", "TIME", Number, Is("0"), Applies,
        "0 to 24h; 0: never", "How long a session may be idle outside of a transaction before it is ended (57P05)"),
    setting("shutdown_timeout", "TIME", Number, Is("30s"), Applies,
        "0 to 24h", "How long open transactions may go on after SIGTERM"),
    setting("keepalive", "TIME", Number, Is("60s"), Applies,
        "0, or 1s to 9h; 0: as the system has it",
        "After how long a silence TCP asks a client or server whether it is still there"),
    setting("tls", "MODE", Text, Nothing("`allow` where tls_cert is given, else `off`"), Stays,
        "`off`, `allow` or `require`", "Whether clients may, or have to, encrypt"),
    setting("tls_cert", "FILE", Text, Nothing("no TLS"), ReadsFiles,
        "PEM: the certificate, then those between it and its authority", "The proxy's certificate, which clients see"),
    setting("tls_key", "FILE", Text, Nothing("no TLS"), ReadsFiles,
        "PEM", "The key of that certificate"),
    setting("tls_client_ca", "FILE", Text, Nothing("clients are not asked for certificates"), ReadsFiles,
        "PEM", "The authorities that clients' certificates are checked against"),
    setting("tls_client_certificates", "MODE", Text, Is("off"), Stays,
        "`off`, `optional` or `required`", "Whether clients may, or have to, show a certificate"),
    setting("tls_min_version", "VERSION", Text, Is("TLSv1.2"), Stays,
        "`TLSv1.2` or `TLSv1.3`", "The oldest version of TLS that clients may speak"),
    setting("upstream_sslmode", "MODE", Text, Is("prefer"), Stays,
        "`disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`, as in libpq",
        "How connections to the server are encrypted, and what is checked of it"),
    setting("upstream_sslrootcert", "FILE", Text, Nothing("nothing to check the server against"), ReadsFiles,
        "PEM, or `system` for the authorities that the system trusts",
        "The authorities that the server's certificate is checked against"),
    setting("upstream_sslcert", "FILE", Text, Nothing("none is shown"), ReadsFiles,
        "PEM", "The proxy's certificate for the server, where that asks for one"),
    setting("upstream_sslkey", "FILE", Text, Nothing("none is shown"), ReadsFiles,
        "PEM", "The key of that certificate"),
    setting("etcd", "URL,…", List, Nothing("no policy may name an election"), Stays,
        "`http://host:2379` or `https://host:2379`, all members", "The members of etcd"),
    setting("etcd_ca", "FILE", Text, Nothing("the system's authorities"), Stays,
        "PEM", "The certificate authority that etcd's certificates are checked against"),
    setting("etcd_cert", "FILE", Text, Nothing("none is shown"), Stays,
        "PEM", "The proxy's certificate for etcd, where it asks for one"),
    setting("etcd_key", "FILE", Text, Nothing("none is shown"), Stays,
        "PEM", "The key of that certificate"),
    setting("etcd_user", "NAME", Text, Nothing("no credentials"), Stays,
        "a name", "The user of etcd, where it has users"),
    setting("etcd_password", "PASSWORD", Secret, Nothing("no credentials"), Stays,
        "a password; better in the environment, where other users do not see it", "Its password"),
    setting("etcd_password_file", "FILE", Text, Nothing("none is read"), Stays,
        "in place of `etcd_password`; read for each login, so that a changed password needs no restart",
        "The file that has its password"),
];
