//! Passwords from PGPASSWORD and the password file, by libpq's rules.
//!
//! Must never print a password, nor take one from a file that others can read.

use std::{
    env, fmt, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tokio_postgres::{Config, config::Host};
use tracing::warn;

/// The port that libpq asks the file for when a connection names none.
const DEFAULT_PORT: u16 = 5432;

/// Where the password of the control connection comes from if its URL has none.
#[derive(Clone, Default)]
pub struct Passwords {
    /// PGPASSWORD.
    any: Option<String>,
    entries: Vec<PassfileEntry>,
}

/// One line of the file.
#[derive(Clone)]
struct PassfileEntry {
    /// Host, port, database and user; None: any.
    fields: [Option<String>; 4],
    password: String,
}

impl Passwords {
    /// PGPASSWORD, and the file that PGPASSFILE names, or else `~/.pgpass`. A file that group or others have
    /// rights to is left out with a warning, one that is not there without.
    pub fn from_environment() -> Self {
        let any = env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
        let path = match env::var_os("PGPASSFILE").filter(|path| !path.is_empty()) {
            Some(path) => Some(PathBuf::from(path)),
            None => env::home_dir().map(|home| home.join(".pgpass")),
        };
        Self { any, entries: path.map(|path| read(&path)).unwrap_or_default() }
    }

    /// The password for a connection. Without a database it is to that of the user's name, as with libpq.
    pub(super) fn find(&self, config: &Config) -> Option<&str> {
        if let Some(password) = &self.any {
            return Some(password);
        }
        let user = config.get_user()?;
        let database = config.get_dbname().unwrap_or(user);
        let addresses = config.get_hostaddrs().iter().map(|address| Host::Tcp(address.to_string()));
        let hosts: Vec<_> = match config.get_hosts() {
            [] => addresses.collect(),
            hosts => hosts.to_vec(),
        };
        hosts.iter().enumerate().find_map(|(position, host)| {
            let ports = config.get_ports();
            let port = ports.get(position).or(ports.first()).copied().unwrap_or(DEFAULT_PORT).to_string();
            // As the file may name it.
            let names = match host {
                Host::Tcp(name) => vec![name.clone()],
                Host::Unix(directory) => vec!["localhost".to_owned(), directory.to_string_lossy().into_owned()],
            };
            let matching = |entry: &&PassfileEntry| {
                let is = |field: usize, value: &str| entry.fields[field].as_deref().is_none_or(|it| it == value);
                names.iter().any(|name| is(0, name)) && is(1, &port) && is(2, database) && is(3, user)
            };
            self.entries.iter().find(matching).map(|entry| entry.password.as_str())
        })
    }
}

impl fmt::Debug for Passwords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Passwords").finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Vec<PassfileEntry> {
    let file = path.display();
    match fs::metadata(path) {
        Err(_) => return Vec::new(),
        Ok(it) if !it.is_file() => warn!(%file, "the password file is not used: it is not a regular file"),
        Ok(it) if it.permissions().mode() & 0o077 != 0 => {
            warn!(%file, "the password file is not used: group or others have rights to it, chmod it to 0600");
        }
        Ok(_) => match fs::read_to_string(path) {
            Ok(text) => return parse(&text),
            Err(error) => warn!(%file, %error, "the password file cannot be read"),
        },
    }
    Vec::new()
}

fn parse(text: &str) -> Vec<PassfileEntry> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(entry).collect()
}

fn entry(line: &str) -> Option<PassfileEntry> {
    let mut rest = line;
    let mut field = || {
        let (raw, after) = split_field(rest)?;
        rest = after;
        Some((raw != "*").then(|| unescaped(raw)))
    };
    let fields = [field()?, field()?, field()?, field()?];
    Some(PassfileEntry { fields, password: unescaped(split_field(rest).map_or(rest, |(raw, _)| raw)) })
}

/// Cuts at the first colon that no backslash stands before.
fn split_field(text: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    for (position, c) in text.char_indices() {
        match c {
            ':' if !is_escaped => return Some((&text[..position], &text[position + 1..])),
            _ => is_escaped = c == '\\' && !is_escaped,
        }
    }
    None
}

fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        plain.push(if c == '\\' { characters.next().unwrap_or(c) } else { c });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(file: &str, connection: &str, database: &str) -> Option<String> {
        let passwords = Passwords { any: None, entries: parse(file) };
        let mut config: Config = connection.parse().unwrap();
        config.dbname(database);
        passwords.find(&config).map(str::to_owned)
    }

    #[test]
    fn the_first_line_that_matches_wins() {
        let file = "# db:5432:app:gate:no\ndb:5432:app:gate:one\ndb:*:*:gate:two\n*:*:*:*:three\n";
        let escaped = "short:line\n\nh:5432:a\\:b:u\\\\v:p\\:w\\\\d:more\n";
        // A socket is localhost or its directory.
        let socket = "host=/run/pg user=u";
        for (file, connection, database, password) in [
            (file, "postgres://gate@db", "app", Some("one")),
            (file, "postgres://gate@db:5433", "app", Some("two")),
            (file, "postgres://gate@db", "other", Some("two")),
            (file, "postgres://else@db", "app", Some("three")),
            ("db:5432:app:gate:one", "postgres://gate@db", "other", None),
            (escaped, "host=h user='u\\\\v'", "a:b", Some("p:w\\d")),
            ("h:5432:\\*:u:p", "host=h user=u", "x", None),
            ("localhost:5432:x:u:p", socket, "x", Some("p")),
            ("/run/pg:5432:x:u:p", socket, "x", Some("p")),
            ("localhost:5432:x:u:p", "host=db user=u", "x", None),
        ] {
            assert_eq!(find(file, connection, database).as_deref(), password, "{file}, {connection}, {database}");
        }
    }

    #[test]
    fn without_a_database_it_is_that_of_the_users_name() {
        let passwords = Passwords { any: None, entries: parse("*:*:other:*:no\n*:*:gate:*:yes\n") };
        assert_eq!(passwords.find(&"postgres://gate@h".parse().unwrap()), Some("yes"));
    }

    #[test]
    fn pgpassword_comes_before_the_file() {
        let passwords = Passwords { any: Some("env".to_owned()), entries: parse("*:*:*:*:file") };
        let config = "postgres://u@h/x".parse().unwrap();
        assert_eq!(passwords.find(&config), Some("env"));
    }

    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        let path = env::temp_dir().join(format!("fencegate-passfile-{}", std::process::id()));
        fs::write(&path, "*:*:*:*:p\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let shared = read(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let private = read(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!((shared.len(), private.len()), (0, 1));
    }
}
