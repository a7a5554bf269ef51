//! Passwords from PGPASSWORD and the password file, by libpq's rules.
//!
//! Must never print a password or use a password file that others can read.

use parking_lot::Mutex;
use std::{
    env, fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tokio_postgres::{Config, config::Host};
use tracing::warn;

/// The port that libpq looks up for a connection without one.
const DEFAULT_PORT: u16 = 5432;

/// Maximum number of bytes read from the file.
const LARGEST_FILE: u64 = 1024 * 1024;

/// The last logged error. The file is read often; each error is logged once.
static LOGGED: Mutex<Option<String>> = Mutex::new(None);

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
enum PassfileError {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("it is not a regular file")]
    NotRegular,
    #[error("group or others have access to it: run chmod 0600")]
    Shared,
}

/// One line of the file.
struct PassfileEntry {
    /// Host, port, database and user; None: any.
    fields: [Option<String>; 4],
    password: String,
}

/// The password for a new connection: from PGPASSWORD, or from the file that PGPASSFILE names (by default `~/.pgpass`).
/// A file that cannot be used is ignored with a warning, and a missing file without one. Blocks.
pub fn password(config: &Config) -> Option<String> {
    if let Some(password) = env::var("PGPASSWORD").ok().filter(|password| !password.is_empty()) {
        return Some(password);
    }
    let path = match env::var_os("PGPASSFILE").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => env::home_dir()?.join(".pgpass"),
    };
    let entries = read(&path);
    let error = entries.as_ref().err().map(|error| format!("{}: {error}", path.display()));
    let mut logged = LOGGED.lock();
    if *logged != error {
        if let Err(error) = &entries {
            warn!(file = %path.display(), reason = %error, "password_file_not_used");
        }
        *logged = error;
    }
    drop(logged);
    find(&entries.unwrap_or_default(), config).map(str::to_owned)
}

/// Finds the password of a connection. The default database is the user's name, as in libpq.
fn find<'a>(entries: &'a [PassfileEntry], config: &Config) -> Option<&'a str> {
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
        // Names under which the file may list the host.
        let names = match host {
            Host::Tcp(name) => vec![name.clone()],
            Host::Unix(directory) => vec!["localhost".to_owned(), directory.to_string_lossy().into_owned()],
        };
        let matching = |entry: &&PassfileEntry| {
            let is = |field: usize, value: &str| entry.fields[field].as_deref().is_none_or(|it| it == value);
            names.iter().any(|name| is(0, name)) && is(1, &port) && is(2, database) && is(3, user)
        };
        entries.iter().find(matching).map(|entry| entry.password.as_str())
    })
}

/// The entries of the file; none if it does not exist.
fn read(path: &Path) -> Result<Vec<PassfileEntry>, PassfileError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
        Ok(it) if !it.is_file() => return Err(PassfileError::NotRegular),
        Ok(it) if it.permissions().mode() & 0o077 != 0 => return Err(PassfileError::Shared),
        Ok(_) => {}
    }
    let mut text = String::new();
    fs::File::open(path)?.take(LARGEST_FILE).read_to_string(&mut text)?;
    Ok(parse(&text))
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

/// Splits at the first colon that is not escaped by a backslash.
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

    fn find_in(file: &str, connection: &str, database: &str) -> Option<String> {
        let mut config: Config = connection.parse().unwrap();
        config.dbname(database);
        find(&parse(file), &config).map(str::to_owned)
    }

    #[test]
    fn the_first_line_that_matches_wins() {
        let file = "# db:5432:app:gate:no\ndb:5432:app:gate:one\ndb:*:*:gate:two\n*:*:*:*:three\n";
        let escaped = "short:line\n\nh:5432:a\\:b:u\\\\v:p\\:w\\\\d:more\n";
        // The file refers to a socket by `localhost` or by its directory.
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
            assert_eq!(find_in(file, connection, database).as_deref(), password, "{file}, {connection}, {database}");
        }
    }

    #[test]
    fn without_a_database_it_is_that_of_the_users_name() {
        let entries = parse("*:*:other:*:no\n*:*:gate:*:yes\n");
        assert_eq!(find(&entries, &"postgres://gate@h".parse().unwrap()), Some("yes"));
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
        assert!(matches!(shared, Err(PassfileError::Shared)));
        assert_eq!(private.unwrap().len(), 1);
        assert_eq!(read(&path).unwrap().len(), 0, "it is gone");
    }
}
