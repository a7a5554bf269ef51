//! The table of settings: what each is called, takes, and is without being given, and what a reload does with it.
//!
//! Flags, environment variables, the keys of the file, `SHOW CONFIG` and the table in docs/operations.md are all made
//! from it. Must never say anything that `Settings` does not do.

/// A setting of `fencegate proxy`.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name: the key in the file. See [`Self::flag`] and [`Self::variable`] for the others.
    pub key: &'static str,
    /// What stands for its value in `--help`.
    pub value: &'static str,
    /// How it is written.
    pub kind: Kind,
    /// What it may be, in words.
    pub range: &'static str,
    /// What it is unless it is given.
    pub default: Fallback,
    /// What a reload does with a new value.
    pub reload: Reload,
    /// What it is for, in words.
    pub help: &'static str,
}

/// How a setting is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One text.
    Text,
    /// One text that must not be shown.
    Secret,
    /// A number, or a time: in the file it may stand without quotes.
    Number,
    /// One or more texts: in the file a list or one, elsewhere separated by commas.
    List,
}

/// What a setting is unless it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// It has to be given.
    Required,
    /// As if this text had been given.
    Is(&'static str),
    /// Nothing, which means what these words say.
    Nothing(&'static str),
}

/// What a reload does with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The new value is in force.
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

/// All settings.
pub static SETTINGS: [Setting; 30] = [
    Setting {
        key: "listen",
        value: "ADDRESS",
        kind: Kind::List,
        range: "`host:port`, or `/directory:port` for a Unix socket (`:6432` unless given); repeatable",
        default: Fallback::Is("127.0.0.1:6432"),
        reload: Reload::Stays,
        help: "Where clients connect",
    },
    Setting {
        key: "upstream",
        value: "ADDRESS",
        kind: Kind::Text,
        range: "`postgres://host:port`, or `/directory:port` for a Unix socket (`:5432` unless given)",
        default: Fallback::Required,
        reload: Reload::Stays,
        help: "The Postgres server behind the proxy",
    },
    Setting {
        key: "control",
        value: "URL",
        kind: Kind::Secret,
        range: "`postgres://user:password@host:port/`, as host `%2Fdirectory` for a Unix socket; the password better by PGPASSWORD, PGPASSFILE or ~/.pgpass",
        default: Fallback::Required,
        reload: Reload::Stays,
        help: "The proxy's own connection to that server",
    },
    Setting {
        key: "policies",
        value: "DIR",
        kind: Kind::Text,
        range: "a directory",
        default: Fallback::Required,
        reload: Reload::ReadsFiles,
        help: "The directory of policies",
    },
    Setting {
        key: "admin_roles",
        value: "ROLE,…",
        kind: Kind::List,
        range: "names of roles",
        default: Fallback::Nothing("the role of the control connection"),
        reload: Reload::Applies,
        help: "The roles that may use the console",
    },
    Setting {
        key: "allow_unauthenticated",
        value: "ADDRESS/BITS|unix",
        kind: Kind::List,
        range: "`address/bits`, or `unix` for the proxy's own Unix sockets; repeatable",
        default: Fallback::Nothing(
            "nobody but clients on a loopback address, where the server is reached by TCP on loopback too",
        ),
        reload: Reload::Applies,
        help: "Where clients come from whom the server may let in without asking for anything",
    },
    Setting {
        key: "http",
        value: "ADDRESS",
        kind: Kind::Text,
        range: "`host:port`",
        default: Fallback::Nothing("not served"),
        reload: Reload::Stays,
        help: "Where metrics and health are served: /metrics, /healthz, /readyz",
    },
    Setting {
        key: "log_sessions",
        value: "LEVEL",
        kind: Kind::Text,
        range: "`off`, `debug` or `info`",
        default: Fallback::Is("info"),
        reload: Reload::Applies,
        help: "The level at which the start and the end of each session are logged",
    },
    Setting {
        key: "max_connections",
        value: "NUMBER",
        kind: Kind::Number,
        range: "1 to 1000000",
        default: Fallback::Is("1000"),
        reload: Reload::Applies,
        help: "The most clients at the same time; the next one gets 53300",
    },
    Setting {
        key: "max_connections_per_user",
        value: "NUMBER",
        kind: Kind::Number,
        range: "1 to 1000000",
        default: Fallback::Nothing("no limit of its own"),
        reload: Reload::Applies,
        help: "The most sessions of one user at the same time; the next one gets 53300",
    },
    Setting {
        key: "startup_timeout",
        value: "TIME",
        kind: Kind::Number,
        range: "1ms to 24h",
        default: Fallback::Is("60s"),
        reload: Reload::Applies,
        help: "How long a client may take for TLS, its startup packet and its authentication",
    },
    Setting {
        key: "idle_timeout",
        value: "TIME",
        kind: Kind::Number,
        range: "0 to 24h; 0: never",
        default: Fallback::Is("0"),
        reload: Reload::Applies,
        help: "How long a session may be idle outside of a transaction before it is ended (57P05)",
    },
    Setting {
        key: "shutdown_timeout",
        value: "TIME",
        kind: Kind::Number,
        range: "0 to 24h",
        default: Fallback::Is("30s"),
        reload: Reload::Applies,
        help: "How long open transactions may go on after SIGTERM",
    },
    Setting {
        key: "keepalive",
        value: "TIME",
        kind: Kind::Number,
        range: "0, or 1s to 9h; 0: as the system has it",
        default: Fallback::Is("60s"),
        reload: Reload::Applies,
        help: "After how long a silence TCP asks a client or server whether it is still there",
    },
    Setting {
        key: "tls",
        value: "MODE",
        kind: Kind::Text,
        range: "`off`, `allow` or `require`",
        default: Fallback::Nothing("`allow` where tls_cert is given, else `off`"),
        reload: Reload::Stays,
        help: "Whether clients may, or have to, encrypt",
    },
    Setting {
        key: "tls_cert",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM: the certificate, then those between it and its authority",
        default: Fallback::Nothing("no TLS"),
        reload: Reload::ReadsFiles,
        help: "The proxy's certificate, which clients see",
    },
    Setting {
        key: "tls_key",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM",
        default: Fallback::Nothing("no TLS"),
        reload: Reload::ReadsFiles,
        help: "The key of that certificate",
    },
    Setting {
        key: "tls_client_ca",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM",
        default: Fallback::Nothing("clients are not asked for certificates"),
        reload: Reload::ReadsFiles,
        help: "The authorities that clients' certificates are checked against",
    },
    Setting {
        key: "tls_client_certificates",
        value: "MODE",
        kind: Kind::Text,
        range: "`off`, `optional` or `required`",
        default: Fallback::Is("off"),
        reload: Reload::Stays,
        help: "Whether clients may, or have to, show a certificate",
    },
    Setting {
        key: "tls_min_version",
        value: "VERSION",
        kind: Kind::Text,
        range: "`TLSv1.2` or `TLSv1.3`",
        default: Fallback::Is("TLSv1.2"),
        reload: Reload::Stays,
        help: "The oldest version of TLS that clients may speak",
    },
    Setting {
        key: "upstream_sslmode",
        value: "MODE",
        kind: Kind::Text,
        range: "`disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`, as in libpq",
        default: Fallback::Is("prefer"),
        reload: Reload::Stays,
        help: "How connections to the server are encrypted, and what is checked of it",
    },
    Setting {
        key: "upstream_sslrootcert",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM, or `system` for the authorities that the system trusts",
        default: Fallback::Nothing("nothing to check the server against"),
        reload: Reload::ReadsFiles,
        help: "The authorities that the server's certificate is checked against",
    },
    Setting {
        key: "upstream_sslcert",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM",
        default: Fallback::Nothing("none is shown"),
        reload: Reload::ReadsFiles,
        help: "The proxy's certificate for the server, where that asks for one",
    },
    Setting {
        key: "upstream_sslkey",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM",
        default: Fallback::Nothing("none is shown"),
        reload: Reload::ReadsFiles,
        help: "The key of that certificate",
    },
    Setting {
        key: "etcd",
        value: "URL,…",
        kind: Kind::List,
        range: "`http://host:2379` or `https://host:2379`, all members",
        default: Fallback::Nothing("no policy may name an election"),
        reload: Reload::Stays,
        help: "The members of etcd",
    },
    Setting {
        key: "etcd_ca",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM",
        default: Fallback::Nothing("the system's authorities"),
        reload: Reload::Stays,
        help: "The certificate authority that etcd's certificates are checked against",
    },
    Setting {
        key: "etcd_cert",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM",
        default: Fallback::Nothing("none is shown"),
        reload: Reload::Stays,
        help: "The proxy's certificate for etcd, where it asks for one",
    },
    Setting {
        key: "etcd_key",
        value: "FILE",
        kind: Kind::Text,
        range: "PEM",
        default: Fallback::Nothing("none is shown"),
        reload: Reload::Stays,
        help: "The key of that certificate",
    },
    Setting {
        key: "etcd_user",
        value: "NAME",
        kind: Kind::Text,
        range: "a name",
        default: Fallback::Nothing("no credentials"),
        reload: Reload::Stays,
        help: "The user of etcd, where it has users",
    },
    Setting {
        key: "etcd_password",
        value: "PASSWORD",
        kind: Kind::Secret,
        range: "a password; better in the environment, where other users do not see it",
        default: Fallback::Nothing("no credentials"),
        reload: Reload::Stays,
        help: "Its password",
    },
];
