//! Passwords from PGPASSWORD and the password file, by libpq's rules.
//!
//! Must never print a password, nor take one from a file that others can read.

use parking_lot::Mutex;
use std::{
    env, fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tokio_postgres::{Config, config::Host};
use tracing::warn;

/// The port that libpq asks the file for when a connection names none.
const DEFAULT_PORT: u16 = 5432;

/// The most bytes that are read of the file.
const LARGEST_FILE: u64 = 1024 * 1024;

/// What was last wrong with the file: it is read often, and told once.
static TOLD: Mutex<Option<String>> = Mutex::new(None);

/// One line of the file.
struct PassfileEntry {
    /// Host, port, database and user; None: any.
    fields: [Option<String>; 4],
    password: String,
}

/// The password for a new connection: PGPASSWORD, or what the file that PGPASSFILE names, or else `~/.pgpass`, says now. A file
/// that group or others have rights to is left out with a warning, one that is not there without. Blocks.
pub fn password(config: &Config) -> Option<String> {
    if let Some(password) = env::var("PGPASSWORD").ok().filter(|password| !password.is_empty()) {
        return Some(password);
    }
    let path = match env::var_os("PGPASSFILE").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => env::home_dir()?.join(".pgpass"),
    };
    let entries = read(&path);
    let trouble = entries.as_ref().err().map(|why| format!("{}: {why}", path.display()));
    let mut told = TOLD.lock();
    if *told != trouble {
        if let Err(why) = &entries {
            warn!(file = %path.display(), reason = why, "password_file_not_used");
        }
        *told = trouble;
    }
    drop(told);
    find(&entries.unwrap_or_default(), config).map(str::to_owned)
}

/// The password for a connection. Without a database it is to that of the user's name, as with libpq.
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
        // As the file may name it.
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

/// Nothing where there is no file. The error says why it is not used.
fn read(path: &Path) -> Result<Vec<PassfileEntry>, String> {
    let cannot_read = |error: io::Error| format!("it cannot be read: {error}");
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot_read(error)),
        Ok(it) if !it.is_file() => return Err("it is not a regular file".to_owned()),
        Ok(it) if it.permissions().mode() & 0o077 != 0 => {
            return Err("group or others have rights to it: chmod it to 0600".to_owned());
        }
        Ok(_) => {}
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(cannot_read)?;
    file.take(LARGEST_FILE).read_to_string(&mut text).map_err(cannot_read)?;
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

    fn find_in(file: &str, connection: &str, database: &str) -> Option<String> {
        let mut config: Config = connection.parse().unwrap();
        config.dbname(database);
        find(&parse(file), &config).map(str::to_owned)
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
        assert!(shared.is_err_and(|why| why.contains("chmod")));
        assert_eq!(private.unwrap().len(), 1);
        assert_eq!(read(&path).unwrap().len(), 0, "it is gone");
    }
}
