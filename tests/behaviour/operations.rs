//! The reference of settings, errors, events and database objects is complete, and backup and restore of fences work as
//! documented.

use crate::support::fenced::{self, Fenced, code, code_in, ok};
use crate::support::guardian::Folder;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, message, programs, wait_until};
use fencegate::config::{Fallback, Reload, SETTINGS, Setting};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const SETTINGS_PAGE: &str = include_str!("../../docs/reference/settings.md");
const ERRORS_PAGE: &str = include_str!("../../docs/reference/errors.md");
const EVENTS_PAGE: &str = include_str!("../../docs/reference/events.md");
const OBJECTS_PAGE: &str = include_str!("../../docs/reference/database-objects.md");

/// The message of a failure contains the expected table.
#[test]
fn the_table_of_settings_is_that_of_the_code() {
    let rows: String = SETTINGS.iter().map(row).collect();
    let table = format!("| key | what it is | range | default | reload |\n|---|---|---|---|---|\n{rows}");
    let (_, rest) = SETTINGS_PAGE.split_once("<!-- settings -->\n").unwrap();
    let (shown, _) = rest.split_once("<!-- end of settings -->").unwrap();
    assert!(shown == table, "expected in docs/reference/settings.md:\n{table}");
}

fn row(setting: &Setting) -> String {
    let default = match setting.default {
        Fallback::Required => "required".to_owned(),
        Fallback::Is(text) => format!("`{text}`"),
        Fallback::Nothing(meaning) => meaning.to_owned(),
    };
    let reload = match setting.reload {
        Reload::Applies => "applies",
        Reload::ReadsFiles => "reads files",
        Reload::Stays => "restart",
    };
    format!("| `{}` | {} | {} | {default} | {reload} |\n", setting.key, setting.help, setting.range)
}

#[test]
fn the_table_of_errors_is_complete() {
    let rows = ERRORS_PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let shown: BTreeSet<String> = rows.filter(|code| is_code(code)).map(str::to_owned).collect();
    // pgwire's own, of the console.
    let mut said = BTreeSet::from(["26000".to_owned()]);
    let fences = "src/fence/client_error.rs";
    for folder in [fences, "src/net", "src/operate", "src/server", "src/session", "src/state", "src/wire"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let files = if folder.is_dir() { files(&folder) } else { vec![folder.clone()] };
        let within = |file: &PathBuf| file.strip_prefix(&folder).unwrap().to_owned();
        let is_test = |file: &PathBuf| within(file).components().any(|part| part.as_os_str() == "tests");
        for file in files.into_iter().filter(|file| !is_test(file)) {
            let text = fs::read_to_string(file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            said.extend(code.split('"').filter(|literal| is_code(literal)).map(str::to_owned));
        }
    }
    assert_eq!(shown, said);
}

/// An SQLSTATE; words of five capitals are not.
fn is_code(literal: &str) -> bool {
    let known = |character: char| character.is_ascii_digit() || character.is_ascii_uppercase();
    literal.len() == 5 && literal.chars().all(known) && literal.contains(|character: char| character.is_ascii_digit())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn the_table_of_events_is_complete() {
    let mut missing = Vec::new();
    for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        for (level, message) in messages(&fs::read_to_string(file).unwrap()) {
            let is_event = message.contains('_') && message.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            // What is told of a thing in words, at the level of what is only for us, may change.
            let is_shown = is_event || level != "debug";
            // `{error}` is the last line of a program that ends.
            if is_shown && !message.contains('{') && !EVENTS_PAGE.contains(&format!("`{message}`")) {
                missing.push(message);
            }
        }
    }
    assert_eq!(missing, [""; 0], "missing in docs/reference/events.md");
}

/// What is logged in a file, with its level.
fn messages(source: &str) -> Vec<(&'static str, String)> {
    let calls = ["error", "warn", "info", "debug"].map(|level| {
        let start = format!("{level}!(");
        let calls = source.split(&start).skip(1).map(in_parentheses);
        // The last text of a call; the backticks in it would end what is quoted.
        let texts = calls.filter_map(|call| call.rsplit('"').nth(1)).map(|text| text.replace('`', ""));
        texts.map(|text| (level, text)).collect::<Vec<_>>()
    });
    calls.concat()
}

/// What stands before the parenthesis that closes the one before the text.
fn in_parentheses(text: &str) -> &str {
    let (mut depth, mut quoted) = (1, false);
    let end = text.find(|character| {
        match character {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    &text[..end.expect("a parenthesis")]
}

#[test]
fn the_tables_of_database_objects_are_complete() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut missing = Vec::new();
    for file in ["fence/store/schema.sql", "fence/store/leases.sql", "guard/guard.sql", "guard/notice.sql"] {
        let source = fs::read_to_string(root.join(file)).unwrap();
        missing.extend(created(&source).filter(|name| !OBJECTS_PAGE.contains(&format!("`{name}`"))).map(str::to_owned));
    }
    assert_eq!(missing, [""; 0], "missing in docs/reference/database-objects.md");
}

/// The objects that a script creates, without their schemas.
fn created(source: &str) -> impl Iterator<Item = &str> {
    let statements = source.lines().filter_map(|line| line.trim_start().strip_prefix("CREATE "));
    statements.filter_map(|rest| {
        // Keywords are in capitals.
        let is_name = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_lowercase());
        let name = rest.split(['(', ' ', ';']).find(is_name)?;
        Some(name.rsplit('.').next().unwrap())
    })
}

const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs]}\n";

#[test]
fn a_dump_carries_the_fences() {
    let world = Fenced::start("CREATE TABLE jobs (n int)", POLICIES);
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (47)");
    let dump = programs::run(&mut programs::pg_dump(&world.postgres.address(), "postgres"));

    let other = Postgres::start(Options::default());
    let file = Folder::new("dump");
    fs::write(file.join("dump.sql"), dump.stdout).unwrap();
    programs::run(programs::psql(&other.address(), "postgres").arg("-qf").arg(file.join("dump.sql")));
    fenced::init(&other, "postgres");
    let restored = Fenced { proxy: Proxy::start(&other, POLICIES, &[]), postgres: other };
    assert_eq!(code(&mut restored.holder(46), "INSERT INTO jobs VALUES (46)"), "LF001");
    ok(&mut restored.holder(47), "INSERT INTO jobs VALUES (47)");
}

/// A dump is a read, also of what fencegate keeps. A restore writes and defines what is fenced: only an exempt role may.
#[test]
fn dumped_and_restored_through_the_proxy() {
    let world = Fenced::start("CREATE TABLE jobs (n int)", &(POLICIES.to_owned() + "exempt_roles: [migrator]\n"));
    world.postgres.sql("CREATE ROLE migrator SUPERUSER LOGIN");
    ok(&mut world.holder(47), "INSERT INTO jobs VALUES (47)");
    let folder = Folder::new("dump");
    let dump = folder.join("dump");
    programs::run(programs::pg_dump(&world.proxy.address(), "postgres").args(["-Fc", "-f"]).arg(&dump));

    let restore = |role: &str| {
        // The proxy's connections to it close a moment after the last session.
        wait_until("it can be dropped", DEADLINE, || {
            world.postgres.try_sql("postgres", "DROP DATABASE IF EXISTS restored").is_ok()
        });
        world.postgres.sql("CREATE DATABASE restored");
        let mut restore = programs::pg_restore(&world.proxy.address(), "restored");
        restore.env("PGUSER", role).arg(&dump).output().unwrap()
    };
    let refused = restore("postgres");
    // At the latest; before, if the proxy looks while the schema `fencegate` is there in part.
    let reasons = ["this session has no token", "it touches what fencegate keeps in the database"];
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && reasons.iter().any(|reason| stderr.contains(reason)), "{refused:?}");
    let restored = restore("migrator");
    assert!(restored.status.success(), "{restored:?}");

    let mut wire = Wire::login(&world.proxy.address(), "postgres", "restored");
    ok(&mut wire, "SET lease.fence = 46");
    assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (46)"), "LF001");
    ok(&mut wire, "SET lease.fence = 47; INSERT INTO jobs VALUES (47)");
    assert_eq!(world.postgres.sql_in("restored", "SELECT n FROM jobs").len(), 2);
}

/// A proxy passes on what is about its own sessions: a load balancer brings the request to the proxy of the session.
#[test]
fn a_cancel_request_uses_the_proxy_of_its_session() {
    let world = Fenced::start("CREATE TABLE jobs (n int)", POLICIES);
    let other = Proxy::start(&world.postgres, POLICIES, &[]);
    let mut wire = Wire::connect(&world.proxy.address()).unwrap();
    let greeting = wire.start(&[("user", "postgres"), ("database", "postgres")], "");
    let key = greeting.iter().find(|frame| frame.tag == b'K').expect("BackendKeyData");
    wire.send(&message::query("SELECT pg_sleep(600)"));
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'";
    wait_until("the statement runs", DEADLINE, || world.postgres.value(sleeps) == "1");
    for (proxy, sleeping) in [(&other, "1"), (&world.proxy, "0")] {
        let mut cancel = Wire::connect(&proxy.address()).unwrap();
        cancel.send(&message::cancel_request(&key.body));
        assert_eq!(cancel.bytes_to_end(), b"", "nothing is said to it");
        wait_until("it has been dropped, or passed on", DEADLINE, || world.postgres.value(sleeps) == sleeping);
    }
    assert_eq!(code_in(&wire.read_until_ready()), "57014");
}
