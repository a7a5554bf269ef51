//! The reference pages of settings, errors, events and database objects match the program.

use crate::support::guardian::Folder;
use crate::support::proxy::fencegate;
use crate::support::{Options, Postgres, programs};
use fencegate::config::{Fallback, Reload, SETTINGS, Setting};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const SETTINGS_PAGE: &str = include_str!("../../docs/reference/settings.md");
const ERRORS_PAGE: &str = include_str!("../../docs/reference/errors.md");
const EVENTS_PAGE: &str = include_str!("../../docs/reference/events.md");
const OBJECTS_PAGE: &str = include_str!("../../docs/reference/database-objects.md");

/// On failure, the message contains the expected table.
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
        Reload::Stays => "restart",
    };
    format!("| `{}` | {} | {} | {default} | {reload} |\n", setting.key, setting.help, setting.range)
}

#[test]
fn the_table_of_errors_is_complete() {
    let rows = ERRORS_PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let shown: BTreeSet<String> = rows.filter(|code| is_code(code)).map(str::to_owned).collect();
    // pgwire reports this code in the console.
    let mut said = BTreeSet::from(["26000".to_owned()]);
    let fences = "crates/fence/src/fence_error.rs";
    for folder in [fences, "src/net", "src/operate", "src/server", "crates/session/src", "src/state", "crates/wire/src"]
    {
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
    // Only the server reports this code.
    assert!(said.remove("25006"));
    assert_eq!(shown, said);
}

/// True for an SQLSTATE, but not for a word of five capitals.
fn is_code(literal: &str) -> bool {
    let known = |character: char| character.is_ascii_digit() || character.is_ascii_uppercase();
    literal.len() == 5 && literal.chars().all(known) && literal.contains(|character: char| character.is_ascii_digit())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The sources of the program and of all crates.
fn sources() -> Vec<PathBuf> {
    ["src", "crates"].into_iter().flat_map(|it| files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(it))).collect()
}

#[test]
fn the_table_of_events_is_complete() {
    let mut missing = Vec::new();
    for file in sources() {
        for (level, message) in messages(&fs::read_to_string(file).unwrap()) {
            let is_event = message.contains('_') && message.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            // Sentences at the level debug are not part of the documented log and may change.
            let is_shown = is_event || level != "debug";
            // `{error}` is the last line of a program that exits.
            if is_shown && !message.contains('{') && !EVENTS_PAGE.contains(&format!("`{message}`")) {
                missing.push(message);
            }
        }
    }
    assert_eq!(missing, [""; 0], "missing in docs/reference/events.md");
}

/// The log messages in a file, with their levels.
fn messages(source: &str) -> Vec<(&'static str, String)> {
    let calls = ["error", "warn", "info", "debug"].map(|level| {
        let start = format!("{level}!(");
        let calls = source.split(&start).skip(1).map(in_parentheses);
        // The last text of a call, without backticks, which would end the quotation.
        let texts = calls.filter_map(|call| call.rsplit('"').nth(1)).map(|text| text.replace('`', ""));
        texts.map(|text| (level, text)).collect::<Vec<_>>()
    });
    calls.concat()
}

/// The text up to the parenthesis that closes the call.
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
fn every_listed_event_exists() {
    let sources = sources();
    let source: String = sources.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let tables = EVENTS_PAGE.split("| event | level |").skip(1);
    let rows = tables.flat_map(|table| table.lines().skip(2).take_while(|line| line.starts_with("| `")));
    let events: Vec<&str> = rows.flat_map(|row| quoted(cell(row, 0))).collect();
    assert!(events.len() > 80, "{}", events.len());
    let unknown: Vec<&&str> = events.iter().filter(|event| !source.contains(&format!("\"{event}\""))).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

fn cell(row: &str, index: usize) -> &str {
    row.trim_matches('|').split(" | ").nth(index).unwrap().trim()
}

/// Texts in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of the tables in a section of the page.
fn rows_of(section: &str) -> impl Iterator<Item = &'static str> {
    let (_, rest) = OBJECTS_PAGE.split_once(&format!("## {section}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    section.lines().filter(|line| line.starts_with("| `"))
}

fn names(rows: impl Iterator<Item = &'static str>) -> BTreeSet<String> {
    rows.flat_map(|row| quoted(cell(row, 0))).map(str::to_owned).collect()
}

/// A database with the schemas, the guard on a table with partitions and keys, and a role that may lead.
#[test]
fn database_objects_and_grants_are_as_documented() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(
        "CREATE TABLE jobs (n int);
         CREATE TABLE parts (n int) PARTITION BY RANGE (n);
         CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9);
         CREATE TABLE shards (shard int);
         CREATE ROLE leader LOGIN",
    );
    let folder = Folder::new("objects");
    let policies = "version: 1
resources:
  - {name: jobs, tables: [public.jobs, public.parts]}
  - {name: 'shard/{shard}', tables: [{name: public.shards, key: shard}]}
";
    fs::write(folder.join("policies.yaml"), policies).unwrap();
    let control = postgres.control_url() + "postgres";
    programs::run(fencegate().args(["init", "--control", &control, "--leases-for", "leader"]));
    let guard = ["guard", "install", "--control", &control, "--policies", &folder.path().display().to_string()];
    programs::run(fencegate().args(guard));
    let found = |query: &str| -> BTreeSet<String> {
        postgres.sql(query).into_iter().filter_map(|mut row| row.remove(0)).collect()
    };

    let state = found(
        "SELECT relname FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
         WHERE relnamespace = 'fencegate_state'::regnamespace AND NOT coalesce(indisprimary, false)
         UNION SELECT tgname FROM pg_trigger WHERE tgrelid = 'fencegate_state.epoch'::regclass",
    );
    assert_eq!(names(rows_of("Schema `fencegate_state`: tables")), state);

    let guard = || rows_of("The guard");
    let is_function = |row: &&str| cell(row, 1).contains("function");
    let functions_of_guard = names(guard().filter(is_function));
    let mut functions = names(rows_of("Schema `fencegate`: functions"));
    functions.extend(functions_of_guard.clone());
    assert_eq!(functions, found("SELECT proname FROM pg_proc WHERE pronamespace = 'fencegate'::regnamespace"));
    let event_triggers = names(guard().filter(|row| cell(row, 1).contains("event triggers")));
    assert_eq!(event_triggers, found("SELECT evtname FROM pg_event_trigger"));
    let row = guard().find(|row| row.contains("fencegate_guard_…")).unwrap();
    let triggers = found("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'fencegate_guard_%'");
    let ends = |trigger: &String| quoted(cell(row, 2)).any(|end| trigger.ends_with(end));
    assert!(!triggers.is_empty() && triggers.iter().all(ends), "{triggers:?}");

    let executable = |role: &str| {
        found(&format!(
            "SELECT proname FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) WHERE pronamespace = 'fencegate'::regnamespace AND grantee = {role}"
        ))
    };
    let mut public = functions_of_guard;
    let row = rows_of("Grants").find(|row| cell(row, 2) == "PUBLIC" && cell(row, 3) == "EXECUTE").unwrap();
    public.extend(quoted(cell(row, 1)).map(str::to_owned));
    assert_eq!(executable("0"), public, "see Grants");
    let granted = rows_of("Grants").find(|row| cell(row, 2) == "the roles of `--leases-for`").unwrap();
    let granted: BTreeSet<String> = quoted(cell(granted, 1)).map(str::to_owned).collect();
    assert_eq!(executable("'leader'::regrole"), granted);
    let schemas = "SELECT nspname || ' ' || privilege_type FROM pg_namespace, aclexplode(nspacl)
        WHERE nspname LIKE 'fencegate%' AND grantee = 0";
    assert_eq!(found(schemas), BTreeSet::from(["fencegate USAGE".to_owned()]));
    let relations = "SELECT relname FROM pg_class, aclexplode(relacl)
        WHERE relnamespace = 'fencegate_state'::regnamespace AND grantee <> relowner";
    assert_eq!(found(relations), BTreeSet::new());
}
