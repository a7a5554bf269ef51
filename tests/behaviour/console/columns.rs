//! The columns of each command: their names and types are stable.

use super::world::World;
use crate::support::fenced::{code_in, ok};
use crate::support::message::{self, query};
use crate::support::ticks::{WRITE, refused};
use crate::support::{DEADLINE, Wire, wait_until};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Client, Row};

/// Each command, with its columns and their types. i: int8, t: text, b: bool, z: timestamptz.
const COLUMNS: [(&str, &str); 15] = [
    (
        "SHOW FENCES",
        "database t, resource t, mode t, election t, generation i, token i, drained b, admissions i, leader i, leader_state t",
    ),
    (
        "SHOW SESSIONS",
        "session i, database t, user t, address t, application_name t, pid i, started z, state t, state_since z, \
         presented t, admitted t, queries i, received_bytes i, sent_bytes i",
    ),
    (
        "SHOW ADMISSIONS",
        "database t, resource t, generation i, token i, pid i, backend_start z, admitted z, proxy t, session i, alive b",
    ),
    ("SHOW LEASES", "database t, election t, token i, state t, holder t, role t, acquired z, renewed z, expires z"),
    (
        "SHOW POLICIES",
        "database t, resource t, table t, operations t, key t, functions t, on_missing t, mode t, election t, status t, \
         enforcing i, proxies i",
    ),
    (
        "SHOW REJECTIONS",
        "time z, session i, user t, database t, resource t, verdict t, sqlstate t, presented i, highest i, statement t, \
         table t, mode t",
    ),
    (
        "SHOW STATS",
        "database t, resource t, mode t, admitted i, stale i, missing i, invalid i, unverifiable i, unissued i, \
         unavailable i, exempt i",
    ),
    ("SHOW DATABASES", "name t, host t, current_connections i, fenced b, paused b, locked_by t"),
    (
        "SHOW CLIENTS",
        "type t, user t, database t, state t, addr t, application_name t, connect_time z, request_time z, remote_pid i, \
         session i",
    ),
    ("SHOW SERVERS", "host t, up b, role t, timeline i, system_identifier t, last_seen z, sessions i, error t"),
    ("SHOW CONFIG", "key t, value t, default t, source t, reload t"),
    ("SHOW VERSION", "fencegate t, server t, started z"),
    ("SHOW HELP", "command t, description t"),
    ("RELOAD", "what t, name t, change t, before t, after t, in_force b"),
    (
        "FENCE RESET scheduler TO 47",
        "database t, resource t, generation_before i, token_before i, generation i, token i",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_command_has_its_columns_and_types() {
    let world = World::start();
    let _writer = tokio::task::block_in_place(|| world.writer(47));
    let console = world.driver().await;
    for (command, expected) in COLUMNS {
        let prepared = console.prepare(command).await.unwrap();
        let columns: Vec<_> =
            prepared.columns().iter().map(|column| format!("{} {}", column.name(), letter(column.type_()))).collect();
        assert_eq!(columns.join(", "), expected, "{command}");
        // Binary values, with the described types.
        let rows = console.query(&prepared, &[]).await.unwrap();
        let may_be_empty = ["RELOAD", "SHOW LEASES", "SHOW REJECTIONS"].contains(&command);
        assert!(may_be_empty || !rows.is_empty(), "{command}");
        for row in &rows {
            (0..row.len()).for_each(|index| decodes(row, index));
        }
    }
}

/// A failure prints the expected table.
#[test]
fn the_tables_of_the_page_list_every_command_and_column() {
    let page = include_str!("../../../docs/reference/console.md");
    let section = |name: &str| {
        let (_, rest) = page.split_once(&format!("<!-- {name} -->\n")).unwrap();
        rest.split_once(&format!("<!-- end of {name} -->")).unwrap().0
    };
    let row = |(command, columns): &(&str, &str)| {
        let kinds = [(" i", " int8"), (" b", " bool"), (" z", " timestamptz"), (" t", "")];
        let column = |column: &str| {
            let (end, kind) = kinds.into_iter().find(|(end, _)| column.ends_with(end)).unwrap();
            format!("`{}`{kind}", column.trim_end_matches(end))
        };
        let columns: Vec<_> = columns.split(", ").map(column).collect();
        format!("| `{}` | {} |\n", command.trim_end_matches(" scheduler TO 47"), columns.join(", "))
    };
    let rows: String = COLUMNS.iter().map(row).collect();
    let table = format!("| command | columns |\n|---|---|\n{rows}");
    assert!(section("columns") == table, "expected in docs/reference/console.md:\n{table}");

    let world = World::start();
    let help = world.console().rows("SHOW HELP").unwrap();
    let mut commands: BTreeSet<String> = help.into_iter().filter_map(|mut row| row.remove(0)).collect();
    commands.insert("HELP".to_owned());
    let cells = section("commands").lines().skip(2).map(|row| row.split(" | ").next().unwrap());
    let listed: BTreeSet<String> =
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    assert_eq!(listed, commands);
}

fn letter(kind: &Type) -> &'static str {
    match *kind {
        Type::INT8 => "i",
        Type::TEXT => "t",
        Type::BOOL => "b",
        Type::TIMESTAMPTZ => "z",
        _ => panic!("{kind}"),
    }
}

fn decodes(row: &Row, index: usize) {
    match *row.columns()[index].type_() {
        Type::INT8 => drop(row.get::<_, Option<i64>>(index)),
        Type::TEXT => drop(row.get::<_, Option<String>>(index)),
        Type::BOOL => drop(row.get::<_, Option<bool>>(index)),
        _ => drop(row.get::<_, Option<SystemTime>>(index)),
    }
}

/// The only row with this value in the column.
async fn row<'a, T: FromSql<'a> + PartialEq>(rows: &'a [Row], column: &str, value: T) -> &'a Row {
    let mut found = rows.iter().filter(|row| row.get::<_, Option<T>>(column).as_ref() == Some(&value));
    let row = found.next().unwrap_or_else(|| panic!("no such {column}"));
    assert!(found.next().is_none(), "{column} twice");
    row
}

async fn all(console: &Client, command: &str) -> Vec<Row> {
    console.query(command, &[]).await.unwrap()
}

fn is_recent(time: SystemTime) -> bool {
    time.elapsed().is_ok_and(|ago| ago < Duration::from_secs(60))
}

/// The output of SHOW matches the actual state.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_admissions_and_rejections_are_shown() {
    let world = World::start();
    let console = world.driver().await;
    let (writer, mut stale) = tokio::task::block_in_place(|| {
        let mut stale = crate::support::ticks::session(&world.proxy.address(), 46);
        let writer = world.writer(47);
        refused(&mut stale, WRITE, "LF001");
        crate::support::ticks::ok(&mut stale, "BEGIN");
        (writer, stale)
    });
    let pid =
        world.postgres.value("SELECT pid FROM fencegate_state.admission WHERE token = 47").parse::<i64>().unwrap();

    let sessions = all(&console, "SHOW SESSIONS").await;
    assert_eq!(sessions.len(), 2);
    let of_writer = row(&sessions, "pid", pid).await;
    assert_eq!(of_writer.get::<_, &str>("presented"), "47");
    assert_eq!(of_writer.get::<_, &str>("admitted"), "scheduler=47");
    assert_eq!(of_writer.get::<_, &str>("user"), "postgres");
    assert_eq!(of_writer.get::<_, &str>("state"), "idle");
    assert!(of_writer.get::<_, &str>("address").starts_with("127.0.0.1:"));
    assert!(is_recent(of_writer.get("started")) && is_recent(of_writer.get("state_since")));
    let of_stale = row(&sessions, "presented", "46").await;
    assert_eq!((of_stale.get::<_, &str>("admitted"), of_stale.get::<_, &str>("state")), ("", "idle in transaction"));
    let number: i64 = of_stale.get("session");

    let admissions = all(&console, "SHOW ADMISSIONS").await;
    assert_eq!(admissions.len(), 1);
    let admission = row(&admissions, "pid", pid).await;
    assert_eq!((admission.get::<_, i64>("token"), admission.get::<_, bool>("alive")), (47, true));
    assert_eq!(admission.get::<_, i64>("session"), of_writer.get::<_, i64>("session"));
    assert!(is_recent(admission.get("backend_start")) && is_recent(admission.get("admitted")));

    let rejections = all(&console, "SHOW REJECTIONS").await;
    assert_eq!(rejections.len(), 1);
    let rejection = row(&rejections, "session", number).await;
    assert_eq!((rejection.get::<_, &str>("verdict"), rejection.get::<_, &str>("sqlstate")), ("stale", "LF001"));
    assert_eq!((rejection.get::<_, i64>("presented"), rejection.get::<_, i64>("highest")), (46, 47));
    assert_eq!((rejection.get::<_, &str>("resource"), rejection.get::<_, &str>("statement")), ("scheduler", "INSERT"));
    assert_eq!(rejection.get::<_, &str>("table"), "ticks");
    assert!(is_recent(rejection.get("time")));

    let stats = all(&console, "SHOW STATS").await;
    let of_scheduler = row(&stats, "resource", "scheduler").await;
    assert_eq!((of_scheduler.get::<_, &str>("database"), of_scheduler.get::<_, &str>("mode")), ("postgres", "enforce"));
    let counts = ["admitted", "stale", "missing"].map(|verdict| of_scheduler.get::<_, i64>(verdict));
    assert_eq!(counts, [1, 1, 0]);

    // SHOW SESSIONS follows a change of the token, and omits sessions that have ended.
    tokio::task::block_in_place(|| {
        crate::support::ticks::ok(&mut stale, "ROLLBACK; SET lease.fence = 'scheduler=48, other=1'")
    });
    row(&all(&console, "SHOW SESSIONS").await, "presented", "other=1, scheduler=48").await;
    drop(writer);
    while all(&console, "SHOW SESSIONS").await.len() > 1 {
        tokio::task::yield_now().await;
    }
}

/// The state is the same for a fenced write as for other statements, and in both protocols.
#[test]
fn a_statement_that_runs_is_shown_as_active() {
    let world = World::start();
    let mut writer = world.writer(47);
    let mut locker = Wire::login(&world.postgres.address(), "postgres", "postgres");
    let mut console = world.console();
    for message in [query(WRITE), [message::unnamed(WRITE, &[]), message::sync()].concat()] {
        ok(&mut locker, "BEGIN; LOCK TABLE ticks");
        writer.send(&message);
        wait_until("it is shown", DEADLINE, || {
            ok(&mut console, "SHOW SESSIONS").iter().any(|row| row[7].as_deref() == Some("active"))
        });
        ok(&mut locker, "COMMIT");
        assert_eq!(code_in(&writer.read_until_ready()), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_version_and_help_are_shown() {
    let world = World::start();
    let console = world.driver().await;
    let config = all(&console, "SHOW CONFIG").await;
    assert_eq!(config.len(), fencegate::config::SETTINGS.len());
    let control = row(&config, "key", "control").await;
    assert_eq!(
        (control.get::<_, &str>("source"), control.get::<_, &str>("reload")),
        ("flag or environment", "applies")
    );
    let connections = row(&config, "key", "max_connections").await;
    assert_eq!((connections.get::<_, &str>("value"), connections.get::<_, &str>("default")), ("1000", "1000"));
    assert_eq!(connections.get::<_, &str>("source"), "default");

    let admins = row(&config, "key", "admin_roles").await;
    assert_eq!((admins.get::<_, &str>("value"), admins.get::<_, &str>("source")), ("postgres", "default"));

    let tls = row(&config, "key", "tls").await;
    assert_eq!((tls.get::<_, &str>("value"), tls.get::<_, &str>("source")), ("off", "default"));

    let version = all(&console, "SHOW VERSION").await;
    assert_eq!(version[0].get::<_, &str>("fencegate"), env!("CARGO_PKG_VERSION"));
    assert_eq!(version[0].get::<_, &str>("server"), world.postgres.value("SHOW server_version"));
    assert!(is_recent(version[0].get("started")));

    let help = all(&console, "HELP").await;
    assert_eq!(help.len(), super::COMMANDS);
    for (command, _) in COLUMNS {
        let keywords = command.strip_suffix(" scheduler TO 47").unwrap_or(command);
        assert!(help.iter().any(|row| row.get::<_, &str>(0).starts_with(keywords)), "{keywords}");
    }
}
