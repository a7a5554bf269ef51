//! Clients receive each failure of the database with its SQLSTATE, text and remedy, but without details that only the
//! log may contain.

use super::*;
use crate::FenceError;
use crate::store::probed::Probed;
use fencegate_postgres::ServerTls;
use fencegate_postgres::tls::Connector;
use std::collections::BTreeSet;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_postgres::{Client, Config, NoTls};

/// A message of the server that may contain the control role or the server's address.
const SECRET: &str = "the server's own words";

fn config() -> ControlConfig {
    let mut config = Config::new();
    config.user("warden").dbname("app");
    ControlConfig::new(config, Arc::new(Connector::new(ServerTls::default()).unwrap()))
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag], &length.to_be_bytes()[..], body].concat()
}

/// An error response. ReadyForQuery follows, except after a FATAL error.
fn refusal(severity: &str, code: &str) -> Vec<u8> {
    let body = format!("S{severity}\0C{code}\0M{SECRET}\0\0");
    let ready = if severity == "FATAL" { Vec::new() } else { message(b'Z', b"I") };
    [message(b'E', body.as_bytes()), ready].concat()
}

/// A row with these columns, all of type text.
fn row(columns: &[(&str, &str)]) -> Vec<u8> {
    let number = u16::try_from(columns.len()).unwrap().to_be_bytes();
    let (mut description, mut data) = (number.to_vec(), number.to_vec());
    for (name, value) in columns {
        description.extend_from_slice(name.as_bytes());
        description.extend_from_slice(b"\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
        data.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
        data.extend_from_slice(value.as_bytes());
    }
    [message(b'T', &description), message(b'D', &data), message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat()
}

/// A connection to a server that answers the login and each Query with the next of these answers. After the last
/// answer, the server closes the connection.
async fn connect(answers: Vec<Vec<u8>>) -> Result<Client, tokio_postgres::Error> {
    let (mut server, stream) = duplex(4096);
    tokio::spawn(async move {
        for answer in answers {
            assert!(server.read(&mut [0; 8192]).await.unwrap() > 0);
            server.write_all(&answer).await.unwrap();
        }
    });
    let (client, connection) = Config::new().user("warden").connect_raw(stream, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The answer to a successful login.
fn welcome() -> Vec<u8> {
    [message(b'R', &[0; 4]), message(b'Z', b"I")].concat()
}

async fn on_login(code: &str) -> StoreError {
    let error = connect(vec![refusal("FATAL", code)]).await.err().unwrap();
    StoreError::on_connect(&config(), error)
}

async fn on_query(answer: Option<Vec<u8>>) -> StoreError {
    let client = connect([welcome()].into_iter().chain(answer).collect()).await.unwrap();
    StoreError::on_query(client.simple_query("SELECT 1").await.unwrap_err())
}

/// The failure if the first Query of a connection has this answer.
async fn on_opening(columns: &[(&str, &str)]) -> StoreError {
    let usual = [("role", "warden"), ("database", "app"), ("version", VERSION), ("missing_grant", ""), ("lacking", "")];
    let value = |(name, usual)| (name, columns.iter().find(|it| it.0 == name).map_or(usual, |it| it.1));
    let client = connect(vec![welcome(), row(&usual.map(value))]).await.unwrap();
    let probed = Probed::of(&config(), &client, "off").await.unwrap();
    probed.may_fence().and_then(|()| probed.has_schema()).and_then(|()| probed.has_privileges()).unwrap_err()
}

fn blockers() -> Vec<Blocker> {
    vec![Blocker { holder: "process 7".to_owned(), query: "LOCK TABLE t".to_owned() }]
}

/// A failure, the text for a client, and the beginning of the remedy.
type Case = (StoreError, &'static str, &'static str);

async fn cases() -> Vec<Case> {
    let (retry, connects, init) = (
        "Retry. If the error persists, see",
        "Retry. If the error persists, check",
        "Retrying will not help. Run fencegate init",
    );
    let database = || "app".to_owned();
    let closed = connect(Vec::new()).await.err().unwrap();
    vec![
        // No connection.
        (StoreError::on_connect(&config(), closed), "cannot open the control connection: connection closed", connects),
        (on_login("28P01").await, "cannot open the control connection: the server rejected its password", connects),
        (
            on_login("28000").await,
            "cannot open the control connection: the server does not permit its role to log in",
            connects,
        ),
        (
            on_login("53300").await,
            "cannot open the control connection: the server has no connection slot left",
            connects,
        ),
        (
            on_login("57P03").await,
            "cannot open the control connection: the server answered with SQLSTATE 57P03",
            connects,
        ),
        (on_login("3D000").await, "database \"app\" does not exist", retry),
        (
            on_login("42501").await,
            "the control role lacks a privilege: GRANT CONNECT ON DATABASE \"app\" TO the role",
            "Retrying will not help. Run the GRANT",
        ),
        // The database does not meet the fences' requirements.
        (
            on_opening(&[("missing_grant", "pg_signal_backend")]).await,
            "the control role lacks a privilege: GRANT pg_signal_backend TO the role",
            "Retrying will not help. Run the GRANT",
        ),
        (on_opening(&[("version", "")]).await, "database app has no fencegate schema: run `fencegate init`", init),
        (
            on_opening(&[("version", "fencegate schema version 1")]).await,
            "the schema fencegate of database app is \"fencegate schema version 1\", not \"fencegate schema version 6\": \
             run `fencegate init`",
            init,
        ),
        (
            on_opening(&[("version", "fencegate schema version 10")]).await,
            "the schema fencegate of database app is \"fencegate schema version 10\", and this program supports only \
             \"fencegate schema version 6\"",
            "Retrying will not help. The database has the schema of a newer version",
        ),
        (
            on_opening(&[("lacking", "DELETE on admission")]).await,
            "the control role lacks privileges in the schemas of fencegate in database app (DELETE on admission)",
            init,
        ),
        (StoreError::Standby, "the server is in recovery: a standby accepts no writes", retry),
        (StoreError::Superseded, "the control connection leads to a server that is not the primary of the list", retry),
        (StoreError::Vacated, "the database is being dropped", retry),
        // A Query failed.
        (StoreError::TimedOut(LIMIT), "the control connection did not answer within 5 s", retry),
        (on_query(None).await, "the control connection was lost: connection closed", retry),
        (
            on_query(Some(refusal("FATAL", "57P01"))).await,
            "the control connection was lost: the server answered with SQLSTATE 57P01",
            retry,
        ),
        (
            on_query(Some(refusal("ERROR", "0A000"))).await,
            "the control connection was lost: the server answered with SQLSTATE 0A000",
            retry,
        ),
        (on_query(Some(refusal("ERROR", "55P03"))).await, "timed out after 5 s waiting for a lock", retry),
        (
            on_query(Some(refusal("ERROR", "42501"))).await,
            "the database refused the control role: the server's own words",
            init,
        ),
        // The notification queue is full.
        (
            on_query(Some(refusal("ERROR", "54000"))).await,
            "the database refused: the server answered with SQLSTATE 54000",
            retry,
        ),
        (StoreError::UnknownForm("Admit"), "the database's response to Admit has an unknown format", retry),
        // Processes block the Query.
        (
            StoreError::Blocked(blockers()),
            "its lock is held by: process 7",
            "Retry. If the error persists, terminate these",
        ),
        (
            StoreError::TablesLocked(blockers()),
            "tables of fencegate are locked: process 7",
            "Retry. If the error persists, terminate these",
        ),
        // The catalog.
        (StoreError::Catalog(CatalogError::UnknownEdge), "the catalog has an unknown type of dependency", retry),
        (
            StoreError::CatalogOfSession { schema: "pg_temp_3".to_owned(), error: Box::new(on_login("28P01").await) },
            "cannot open the control connection: the server rejected its password, \
             with the temporary relations of this session (schema pg_temp_3)",
            connects,
        ),
        (
            StoreError::CatalogOfSession {
                schema: "pg_temp_3".to_owned(),
                error: Box::new(StoreError::Unprepared { database: database() }),
            },
            "database app has no fencegate schema: run `fencegate init`, \
             with the temporary relations of this session (schema pg_temp_3)",
            init,
        ),
    ]
}

#[tokio::test]
async fn each_database_failure_reaches_the_client_with_its_remedy() {
    for (error, message, hint) in cases().await {
        let queries = if error.blockers().is_empty() { "" } else { ", query: LOCK TABLE t" };
        let refused = FenceError::Store { resource: "jobs".to_owned(), error: error.clone() };
        let text = refused.text();
        let proof = "cannot prove which token for resource \"jobs\" is the highest";
        assert_eq!(
            (text.code, refused.kind().label(), text.detail.as_str()),
            ("LF006", "unavailable", "resource=jobs")
        );
        assert_eq!(text.message, format!("{proof}: {message}{queries}"));
        assert!(text.hint.starts_with(&format!("Nothing was written. {hint}")), "{error}: {}", text.hint);
        assert_eq!((refused.tokens(), refused.resource()), ((None, None), "jobs"));
        assert_eq!((refused.log_reason(), error.text().message.as_str()), (error.to_string(), message));
    }
}

#[tokio::test]
async fn every_failure_has_a_case() {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for (error, ..) in cases().await {
        names.insert(format!("{error:?}").split([' ', '(']).next().unwrap().to_owned());
    }
    let all = [
        "Blocked",
        "Catalog",
        "CatalogOfSession",
        "Denied",
        "LockNotAvailable",
        "Lost",
        "Newer",
        "NoDatabase",
        "Privilege",
        "Refused",
        "SchemaPrivileges",
        "Standby",
        "Superseded",
        "TablesLocked",
        "TimedOut",
        "UnknownForm",
        "Unprepared",
        "Unreachable",
        "Vacated",
        "Version",
    ];
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

#[tokio::test]
async fn the_log_contains_the_servers_message_and_the_role() {
    for (error, log) in [
        (on_login("28P01").await, format!("cannot open the control connection: {SECRET}")),
        (on_query(Some(refusal("FATAL", "57P01"))).await, format!("the control connection was lost: {SECRET}")),
        (on_query(Some(refusal("ERROR", "54000"))).await, format!("the database refused: {SECRET}")),
        (on_query(Some(refusal("ERROR", "42501"))).await, format!("the database refused the control role: {SECRET}")),
        (
            on_opening(&[("missing_grant", "pg_signal_backend")]).await,
            "the control role warden lacks a privilege: GRANT pg_signal_backend TO warden".to_owned(),
        ),
    ] {
        assert_eq!(error.to_string(), log);
    }
}

/// The source chain ends with the driver's error, including the server's SQLSTATE.
#[tokio::test]
async fn the_source_of_a_failure_is_the_drivers_error() {
    let refused = FenceError::Store { resource: "jobs".to_owned(), error: on_login("53300").await };
    let mut next: Option<&(dyn Error + 'static)> = Some(&refused);
    let code = std::iter::from_fn(|| {
        let error = next?;
        next = error.source();
        Some(error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code).cloned())
    });
    assert_eq!(code.collect::<Vec<_>>(), [None, None, None, Some(SqlState::TOO_MANY_CONNECTIONS), None]);
}

/// Code that repeats a Query relies on this.
#[tokio::test]
async fn only_a_statement_error_counts_as_an_answer() {
    for (code, is_answer) in [("55P03", true), ("42501", true), ("54000", true), ("26000", false), ("0A000", false)] {
        assert_eq!(on_query(Some(refusal("ERROR", code))).await.is_answer(), is_answer, "{code}");
    }
    for code in ["57P01", "57P02", "57P03"] {
        assert!(!on_query(Some(refusal("FATAL", code))).await.is_answer(), "{code}");
    }
    assert!(!on_query(None).await.is_answer() && !StoreError::TimedOut(LIMIT).is_answer());
}

/// The log relies on this: it never repeats a failure.
#[tokio::test]
async fn failures_with_equal_texts_are_equal() {
    assert_eq!(on_login("53300").await, on_login("53300").await);
    assert_ne!(on_login("53300").await, on_login("57P03").await);
    assert_ne!(on_query(None).await, on_login("53300").await);
}
