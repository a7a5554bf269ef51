//! A database that was dropped or has no fencegate schema: its cached state, and the messages about it.

use super::*;
use crate::store::{Found, StoreError};
use fencegate_catalog::Fenced;

const MISSING: &str = "database \"memory\" does not exist";
const UNPREPARED: &str = "database memory has no fencegate schema: run `fencegate init`";

#[tokio::test(start_paused = true)]
async fn a_missing_database_stays_missing_until_a_session_starts() {
    let proxy = Proxy::start(&server(), "one").await;
    let notes = proxy.resource("notes");
    let has_epoch = async || proxy.fence.has_epoch(&notes).await.map_err(|error| error.to_string());
    assert!(!proxy.fence.is_missing());
    proxy.server.set_found(Found::Missing);
    assert!(!proxy.fence.is_missing(), "no connection was tried");
    assert_eq!(has_epoch().await, Err(MISSING.to_owned()));
    assert!(proxy.fence.is_missing() && !proxy.fence.is_unprepared() && !proxy.fence.fences_nothing());
    let client = proxy.client(1);
    assert!(!proxy.fence.is_missing(), "a client has logged in");
    drop(client);
    assert!(proxy.fence.is_missing());
    proxy.server.set_found(Found::Nothing);
    assert_eq!(has_epoch().await, Err(MISSING.to_owned()), "the result is cached for a moment");
    proxy.fence.note_login();
    assert_eq!(has_epoch().await, Ok(false));
    assert!(!proxy.fence.is_missing());
}

#[tokio::test(start_paused = true)]
async fn a_database_without_schema_fences_nothing_unless_a_fenced_table_exists() {
    let proxy = Proxy::start(&server(), "one").await;
    let has_tables = |has| proxy.fence.policies.set_fenced_tables(has);
    for (found, tables, unprepared, nothing) in [
        (Found::Nothing, false, false, false),
        (Found::Nothing, true, false, false),
        (Found::Unprepared, true, true, false),
        (Found::Unprepared, false, true, true),
    ] {
        proxy.server.set_found(found);
        has_tables(tables);
        let asked = proxy.fence.has_epoch(&proxy.resource("notes")).await.map_err(|error| error.to_string());
        assert_eq!(asked, if unprepared { Err(UNPREPARED.to_owned()) } else { Ok(false) });
        assert_eq!((proxy.fence.is_unprepared(), proxy.fence.fences_nothing()), (unprepared, nothing), "{tables}");
    }
}

#[tokio::test(start_paused = true)]
async fn fenced_tables_are_known_from_the_last_catalog_read() {
    let proxy = Proxy::start(&server(), "one").await;
    let fenced = Fenced(&proxy.policies.resources);
    let has_tables = || proxy.fence.policies.has_fenced_tables();
    proxy.fence.policies.set_fenced_tables(true);
    proxy.server.set_found(Found::Missing);
    assert_eq!(proxy.fence.catalog(fenced).await.unwrap_err().to_string(), MISSING);
    assert_eq!(proxy.fence.dependencies(fenced).await.unwrap_err().to_string(), MISSING);
    let of_session = proxy.fence.catalog_of_session(fenced, "pg_temp_3").await.unwrap_err().to_string();
    assert_eq!(of_session, format!("{MISSING}, with the temporary relations of this session (schema pg_temp_3)"));
    assert!(has_tables());
    proxy.server.set_found(Found::Nothing);
    assert!(!proxy.fence.catalog(fenced).await.unwrap().has_fenced_tables());
    assert!(!has_tables());
}

#[tokio::test(start_paused = true)]
async fn a_reset_reports_a_missing_or_unprepared_database() {
    let proxy = Proxy::start(&server(), "one").await;
    let notes = proxy.resource("notes");
    let reset = async || proxy.fence.reset(&notes, 3, "operator", true).await.unwrap_err();
    proxy.server.set_found(Found::Missing);
    assert_eq!(reset().await, ResetError::NoDatabase);
    let client = proxy.client(1);
    assert_eq!(reset().await.to_string(), MISSING, "the database has a session");
    drop(client);
    proxy.server.set_found(Found::Unprepared);
    assert_eq!(reset().await, ResetError::Unprepared);
    // Other failures do not show whether the schema exists.
    proxy.fence.store.keep_closed(Some(Instant::now() + Duration::from_secs(1)));
    assert_eq!(reset().await, ResetError::Store(StoreError::Vacated));
    proxy.fence.store.keep_closed(None);
    proxy.server.set_found(Found::Nothing);
    assert_eq!(reset().await, ResetError::NoEpoch, "the reset does not report an earlier failure");
}

/// The proxy retries every two seconds. It logs nothing if the database has nothing to fence.
#[tokio::test(start_paused = true)]
async fn a_control_connection_failure_is_logged_once() {
    let log = Log::start();
    let proxy = Proxy::start(&server(), "one").await;
    let _client = proxy.client(1);
    for (found, tables) in [
        (Found::Missing, false),
        (Found::Nothing, true),
        (Found::Missing, true),
        (Found::Unprepared, true),
        (Found::Nothing, true),
        (Found::Unprepared, false),
    ] {
        proxy.fence.policies.set_fenced_tables(tables);
        proxy.server.set_found(found);
        sleep(Duration::from_secs(10)).await;
    }
    let text = log.end();
    let lines = text.lines().filter(|line| line.contains("control_not_listening"));
    let why = |line: &str| [MISSING, UNPREPARED].map(|why| line.contains(why));
    assert_eq!(lines.map(why).collect::<Vec<_>>(), [[true, false], [true, false], [false, true]], "{text}");
}
