//! The settings of `fencegate proxy`: a flag beats its environment variable, that beats the file, that beats the default.
//!
//! Owns what the settings mean and how a mistake in them is told. Must never print a password.

mod address;
mod etcd;
mod passfile;

pub use address::{Address, ListenAddress, UpstreamAddress};
pub use passfile::Passwords;

use crate::etcd::{EtcdArguments, EtcdSettings};
use crate::policy::PolicySet;
use crate::yaml::{self, Fault, LARGEST_FILE, Node, Reader, Value};
use std::{
    collections::HashMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};
use thiserror::Error;
use tokio_postgres::config::SslMode;

/// Where the proxy listens unless it is told.
const DEFAULT_LISTEN: &str = "127.0.0.1:6432";

/// The settings as they come from the command line and the environment.
#[derive(clap::Args, Default)]
pub struct SettingsArguments {
    /// A YAML file of settings, with the names of the flags below as keys
    #[arg(long, env = "FENCEGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where clients connect: host:port or a Unix socket directory; repeatable [default: 127.0.0.1:6432]
    #[arg(long, env = "FENCEGATE_LISTEN", value_name = "ADDRESS", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// The Postgres server behind the proxy: postgres://host:5432 or a Unix socket directory
    #[arg(long, env = "FENCEGATE_UPSTREAM", value_name = "ADDRESS")]
    pub upstream: Option<String>,
    /// The proxy's own connection to that server: postgres://user:password@host/
    #[arg(long, env = "FENCEGATE_CONTROL", value_name = "URL", hide_env_values = true)]
    pub control: Option<String>,
    /// The directory of policies
    #[arg(long, env = "FENCEGATE_POLICIES", value_name = "DIR")]
    pub policies: Option<PathBuf>,
    /// How to reach etcd, which says who leads the elections that policies name.
    #[command(flatten)]
    pub etcd: EtcdArguments,
    /// The roles that may use the console [default: the role of the control connection]
    #[arg(long, env = "FENCEGATE_ADMIN_ROLES", value_name = "ROLE,…", value_delimiter = ',')]
    pub admin_roles: Vec<String>,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where clients connect; at least one.
    pub listen: Vec<ListenAddress>,
    /// The server behind the proxy.
    pub upstream: UpstreamAddress,
    /// The proxy's own connection, with a user; its database is only the default. Use [`Settings::control_for`] to connect.
    pub control: tokio_postgres::Config,
    /// The directory of policies; a relative path starts at the working directory.
    pub policies: PathBuf,
    /// How to reach etcd; None: no policy may name an election.
    pub etcd: Option<EtcdSettings>,
    /// The roles that may use the console.
    pub admin_roles: Vec<String>,
    /// Where the password of `control` comes from if it has none itself.
    pub passwords: Passwords,
}

/// What is wrong with the settings, in one line that says what to change.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read the file: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something in the file is wrong.
    #[error("{}:{line}:{column}: {message}", file.display())]
    InFile {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: u64,
        /// From 1, in characters.
        column: u64,
        /// What to change.
        message: String,
    },
    /// A flag or an environment variable is wrong.
    #[error("--{flag} or FENCEGATE_{variable}: {message}", variable = variable(flag))]
    Argument {
        /// The flag, without its dashes.
        flag: &'static str,
        /// What to change.
        message: String,
    },
    /// A setting has no default, and nobody gave it.
    #[error("`{0}` is not set: give --{0}, FENCEGATE_{variable} or `{0}:` in the file of --config", variable = variable(.0))]
    Missing(&'static str),
    /// A policy can only be kept with etcd.
    #[error(
        "resource `{resource}` names the election {election}: give --etcd, FENCEGATE_ETCD or `etcd:` in the file of --config"
    )]
    ElectionWithoutEtcd {
        /// The resource.
        resource: String,
        /// Its election.
        election: String,
    },
}

impl Settings {
    /// Joins the arguments with the file that they name, the defaults, and the sources of passwords in the environment.
    ///
    /// # Errors
    /// The first setting that is missing or cannot be used.
    pub fn load(arguments: SettingsArguments) -> Result<Self, ConfigError> {
        let file = match &arguments.config {
            Some(path) => File::read(path)?,
            None => File::default(),
        };
        Self::join(arguments, file, Passwords::from_environment())
    }

    /// The database that the control connection names, or that every server has.
    pub fn control_database(&self) -> &str {
        self.control.get_dbname().unwrap_or("postgres")
    }

    /// How to open the control connection of one database.
    pub fn control_for(&self, database: &str) -> tokio_postgres::Config {
        let mut config = self.control.clone();
        config.dbname(database);
        if config.get_password().is_none_or(<[u8]>::is_empty)
            && let Some(password) = self.passwords.find(&config)
        {
            config.password(password);
        }
        config
    }

    /// The policies can be kept with these settings.
    ///
    /// # Errors
    /// A policy names an election, and there is no etcd to ask.
    pub fn check(&self, policies: &PolicySet) -> Result<(), ConfigError> {
        let mut led = policies.resources.iter().filter_map(|it| Some((&it.name, it.election_shown()?)));
        match led.next() {
            Some((resource, election)) if self.etcd.is_none() => {
                Err(ConfigError::ElectionWithoutEtcd { resource: resource.clone(), election })
            }
            _ => Ok(()),
        }
    }

    fn join(arguments: SettingsArguments, file: File, passwords: Passwords) -> Result<Self, ConfigError> {
        let mut listen = Given::of_arguments("listen", arguments.listen);
        if listen.is_empty() {
            listen = file.listen;
        }
        if listen.is_empty() {
            listen = Given::of_arguments("listen", [DEFAULT_LISTEN.to_owned()]);
        }
        let policies = arguments.policies.or(file.policies.map(|given| PathBuf::from(given.text)));
        let policies = policies.filter(|path| !path.as_os_str().is_empty()).ok_or(ConfigError::Missing("policies"))?;
        let upstream = Given::of_arguments("upstream", arguments.upstream).pop().or(file.upstream);
        let control = Given::of_arguments("control", arguments.control).pop().or(file.control);
        let control = control.ok_or(ConfigError::Missing("control"))?.read(control_connection)?;
        let mut admin_roles = arguments.admin_roles;
        if admin_roles.is_empty() {
            admin_roles = file.admin_roles.into_iter().map(|given| given.text).collect();
        }
        if admin_roles.is_empty() {
            admin_roles.extend(control.get_user().map(str::to_owned));
        }
        Ok(Self {
            listen: listen.iter().map(|given| given.read(address::listen)).collect::<Result<_, _>>()?,
            upstream: upstream.ok_or(ConfigError::Missing("upstream"))?.read(address::upstream)?,
            control,
            policies,
            etcd: etcd::join(arguments.etcd, file.etcd)?,
            admin_roles,
            passwords,
        })
    }
}

/// The environment variable that goes with a flag, without the beginning that all have.
fn variable(flag: &str) -> String {
    flag.replace('-', "_").to_uppercase()
}

/// Reads a connection string, with the password from the environment where it has none.
///
/// # Errors
/// What to change, in words that do not repeat a password.
pub fn connection(text: &str) -> Result<tokio_postgres::Config, String> {
    let mut config = control_connection(text)?;
    if config.get_password().is_none_or(<[u8]>::is_empty)
        && let Some(password) = Passwords::from_environment().find(&config)
    {
        config.password(password);
    }
    Ok(config)
}

fn control_connection(text: &str) -> Result<tokio_postgres::Config, String> {
    // The parser's message is left out where it could repeat a part of the text: that may be the password.
    let config: tokio_postgres::Config = text
        .parse()
        .map_err(|_| "is not a connection string: write postgres://user:password@host/ or key=value pairs")?;
    if config.get_user().is_none_or(str::is_empty) {
        return Err("names no user: write postgres://user:password@host/".to_owned());
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("names no host: write postgres://user:password@host/".to_owned());
    }
    if config.get_ssl_mode() == SslMode::Require {
        return Err("TLS is not part of this version: remove sslmode=require".to_owned());
    }
    Ok(config)
}

/// A setting's text and who gave it.
struct Given {
    text: String,
    source: Source,
}

enum Source {
    Argument(&'static str),
    File { file: PathBuf, at: yaml::Position, key: &'static str },
}

impl Given {
    fn of_arguments(flag: &'static str, texts: impl IntoIterator<Item = String>) -> Vec<Self> {
        texts.into_iter().map(|text| Self { text, source: Source::Argument(flag) }).collect()
    }

    fn read<T>(&self, read: fn(&str) -> Result<T, String>) -> Result<T, ConfigError> {
        read(&self.text).map_err(|message| self.source.fault(message))
    }
}

impl Source {
    fn fault(&self, message: String) -> ConfigError {
        match self {
            Source::Argument(flag) => ConfigError::Argument { flag, message },
            Source::File { file, at, key } => ConfigError::InFile {
                file: file.clone(),
                line: at.line,
                column: at.column,
                message: format!("`{key}` {message}"),
            },
        }
    }
}

/// What the file of `--config` sets.
#[derive(Default)]
struct File {
    listen: Vec<Given>,
    upstream: Option<Given>,
    control: Option<Given>,
    policies: Option<Given>,
    admin_roles: Vec<Given>,
    /// The settings of etcd, by key.
    etcd: HashMap<&'static str, Vec<Given>>,
}

/// The keys of the file.
const KEYS: [&str; 11] = [
    "listen",
    "upstream",
    "control",
    "policies",
    "admin_roles",
    "etcd",
    "etcd_ca",
    "etcd_cert",
    "etcd_key",
    "etcd_user",
    "etcd_password",
];

impl File {
    fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
            .map_err(|error| ConfigError::Unreadable { file: path.to_owned(), error })?;
        Self::parse(path, &bytes)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let in_file = |fault: Fault| ConfigError::InFile {
            file: path.to_owned(),
            line: fault.at.line,
            column: fault.at.column,
            message: fault.message,
        };
        let root = yaml::parse(bytes).map_err(in_file)?;
        let mut reader = Reader::default();
        let mut file = Self::default();
        if let Some(fields) = reader.fields(&root, "the file", &KEYS) {
            let mut one = |node: &Node, key: &'static str| {
                let text = reader.text(node, &format!("`{key}`"))?.to_owned();
                Some(Given { text, source: Source::File { file: path.to_owned(), at: node.at, key } })
            };
            let mut several = |key: &'static str| match fields.find(key) {
                Some(Node { value: Value::List(list), .. }) => list.iter().filter_map(|item| one(item, key)).collect(),
                Some(node) => one(node, key).into_iter().collect(),
                None => Vec::new(),
            };
            file.listen = several("listen");
            file.admin_roles = several("admin_roles");
            file.etcd.insert("etcd", several("etcd"));
            let mut single = |key: &'static str| fields.find(key).and_then(|node| one(node, key));
            file.upstream = single("upstream");
            file.control = single("control");
            file.policies = single("policies");
            for key in etcd::SINGLE_KEYS {
                file.etcd.insert(key, single(key).into_iter().collect());
            }
        }
        match reader.faults.into_iter().next() {
            Some(fault) => Err(in_file(fault)),
            None => Ok(file),
        }
    }
}

#[cfg(test)]
mod tests;
