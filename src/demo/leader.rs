//! A session of the demo.
//!
//! Must never retry or interpret a response: the story shows responses unchanged.

use super::check::{DemoReply, Row};
use super::transcript::{DemoError, Transcript};
use fencegate_postgres::sql::{number, query_rows, text};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage, SimpleQueryRow};

/// A socket of the stage: the number in its name.
#[derive(Clone, Copy)]
pub(super) enum Route {
    Direct = 5432,
    Proxy = 6432,
}

pub(super) struct Participant {
    client: Client,
    /// Name in the transcript.
    pub(super) who: String,
}

impl Participant {
    /// A leader that presents its token.
    pub(super) async fn leader(name: &str, token: i64, folder: &Path, route: Route) -> Result<Self, DemoError> {
        let options = format!("-c lease.fence={token}");
        let client = connect(folder, route, "scheduler", Some(&options)).await?;
        Ok(Participant { client, who: format!("{name} (token {token})") })
    }

    /// A participant without a token, connected directly to PostgreSQL.
    pub(super) async fn direct(who: &str, folder: &Path) -> Result<Self, DemoError> {
        let client = connect(folder, Route::Direct, "postgres", None).await?;
        Ok(Participant { client, who: who.to_owned() })
    }

    /// Runs one statement and prints it with its response.
    pub(super) async fn say(&self, transcript: &Transcript, sql: &str) -> DemoReply {
        self.timed(transcript, sql).await.0
    }

    /// Like [`Self::say`], and measures the duration.
    pub(super) async fn timed(&self, transcript: &Transcript, sql: &str) -> (DemoReply, Duration) {
        let start = Instant::now();
        let answer = self.run(sql).await;
        let took = start.elapsed();
        transcript.statement(&self.who, sql, &answer);
        (answer, took)
    }

    pub(super) async fn run(&self, sql: &str) -> DemoReply {
        match self.client.simple_query(sql).await {
            Ok(messages) => DemoReply::Done(summary(sql, &messages)),
            Err(error) => match error.as_db_error() {
                Some(refusal) => DemoReply::Refused {
                    severity: refusal.severity().to_owned(),
                    code: refusal.code().code().to_owned(),
                    message: refusal.message().to_owned(),
                    detail: refusal.detail().unwrap_or_default().to_owned(),
                },
                None => DemoReply::Lost(error.to_string()),
            },
        }
    }

    /// Runs a statement that must succeed for the demo to be meaningful.
    pub(super) async fn must(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, DemoError> {
        query_rows(&self.client, sql).await.map_err(DemoError::Database)
    }

    /// Reads a tick from the table.
    pub(super) async fn row(&self, tick: &str) -> Result<Row, DemoError> {
        let rows = self.must(&format!("SELECT run_by, token FROM public.ticks WHERE tick = '{tick}'")).await?;
        let row = rows.first().ok_or_else(|| DemoError::Story(format!("the tick {tick} is not in the table")))?;
        Ok(Row { run_by: text(row, "run_by"), token: number(row, "token") })
    }
}

async fn connect(folder: &Path, route: Route, user: &str, options: Option<&str>) -> Result<Client, DemoError> {
    let mut config = Config::new();
    config.host_path(folder).port(route as u16).user(user).dbname("app");
    if let Some(options) = options {
        config.options(options);
    }
    let (client, connection) = config.connect(NoTls).await.map_err(DemoError::Database)?;
    // The session's next statement reports an error of the connection.
    tokio::spawn(connection);
    Ok(client)
}

/// The command tag as psql shows it; for a query, its first value.
fn summary(sql: &str, messages: &[SimpleQueryMessage]) -> String {
    let mut command = sql.split_whitespace().next().unwrap_or_default().to_owned();
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => return row.get(0).unwrap_or("nobody").to_owned(),
            SimpleQueryMessage::CommandComplete(rows) if command == "UPDATE" => command = format!("UPDATE {rows}"),
            _ => {}
        }
    }
    command
}
