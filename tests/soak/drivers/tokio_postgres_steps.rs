//! tokio-postgres.

use crate::support::{Address, DEADLINE};
use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt, future};
use std::fmt::Write;
use std::ops::Range;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls, SimpleQueryMessage, Statement};

const LARGE: usize = 4 * 1024 * 1024;

pub fn run(address: &Address) -> String {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, steps(address)).await.expect("timed out") })
}

async fn steps(address: &Address) -> String {
    let mut report = Report(String::new());
    report.step("version", version());
    let (mut client, notifications) = connect(address, 1).await;
    report.step("token", value(&client, "SELECT current_setting('lease.fence')").await);
    client.execute("INSERT INTO jobs VALUES (1, 'one')", &[]).await.unwrap();
    report.step("writes", value(&client, "SELECT payload FROM jobs WHERE id = 1").await);
    let insert = client.prepare("INSERT INTO jobs VALUES ($1)").await.unwrap();
    offers(address, &mut client, notifications, &insert, &mut report).await;
    is_refused(address, &client, &insert, &mut report).await;
    is_ended(address, client, &mut report).await;
    report.0
}

/// Optional features, used while the session has the current token.
async fn offers(
    address: &Address,
    client: &mut Client,
    mut notifications: UnboundedReceiver<String>,
    insert: &Statement,
    report: &mut Report,
) {
    insert_prepared(client, insert, 100).await.unwrap();
    report.step("prepares", value(client, "SELECT sum(id) FROM jobs WHERE id BETWEEN 100 AND 109").await);

    insert_as_a_batch(client, insert, 200).await.unwrap();
    report.step("batches", value(client, "SELECT sum(id) FROM jobs WHERE id BETWEEN 200 AND 209").await);

    report.step("copies", copies(client).await);
    report.step("scrolls", scrolls(client).await);

    let large = "x".repeat(LARGE);
    client.execute("INSERT INTO jobs VALUES (2, $1)", &[&large]).await.unwrap();
    let read: String = client.query_one("SELECT payload FROM jobs WHERE id = 2", &[]).await.unwrap().get(0);
    report.step("carries_large_values", if read == large { "same" } else { "another" }.to_owned());

    client.batch_execute("LISTEN ticks; NOTIFY ticks, 'tick'").await.unwrap();
    report.step("listens", notifications.recv().await.unwrap());

    let cancel = client.cancel_token();
    let canceller = once_asleep(address, async move { cancel.cancel_query(NoTls).await.unwrap() });
    let error = client.batch_execute("SELECT pg_sleep(600)").await.unwrap_err();
    canceller.await.unwrap();
    assert_eq!(error.code().unwrap().code(), "57014");
    report.step("cancels", value(client, "SELECT 'cancelled'").await);
}

/// A newer leader takes over. Then the session presents a newer token.
async fn is_refused(address: &Address, client: &Client, insert: &Statement, report: &mut Report) {
    take_over(address, 2).await;
    report.step("is_refused", shown(client, "INSERT INTO jobs VALUES (3)").await);
    report.step("refusals", refusals(address, client, insert).await);

    client.batch_execute("BEGIN").await.unwrap();
    shown(client, "INSERT INTO jobs VALUES (3)").await;
    let error = client.batch_execute("SELECT 'refused'").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "25P02");
    client.batch_execute("ROLLBACK").await.unwrap();
    report.step("aborts", value(client, "SELECT 'on'").await);

    client.batch_execute("SET lease.fence = 2").await.unwrap();
    client.execute("INSERT INTO jobs VALUES (3, 'three')", &[]).await.unwrap();
    report.step("goes_on", value(client, "SELECT payload FROM jobs WHERE id = 3").await);
}

/// A newer leader takes over during a transaction.
async fn is_ended(address: &Address, client: Client, report: &mut Report) {
    client.batch_execute("BEGIN; INSERT INTO jobs VALUES (4)").await.unwrap();
    take_over(address, 3).await;
    report.step("is_cut_off", shown(&client, "SELECT 'on'").await);

    let (client, _) = connect(address, 3).await;
    client.batch_execute("BEGIN; INSERT INTO jobs VALUES (4)").await.unwrap();
    let to = address.clone();
    let leader = once_asleep(address, async move { take_over(&to, 4).await });
    report.step("is_interrupted", shown(&client, "SELECT pg_sleep(600)").await);
    leader.await.unwrap();

    let (client, _) = connect(address, 4).await;
    client.execute("INSERT INTO jobs VALUES (4, 'four')", &[]).await.unwrap();
    report.step("starts_again", value(&client, "SELECT payload FROM jobs WHERE id = 4").await);
}

struct Report(String);

impl Report {
    fn step(&mut self, name: &str, result: String) {
        writeln!(self.0, "{name}: {result}").unwrap();
    }
}

/// The version in Cargo.lock.
fn version() -> String {
    let lock = include_str!("../../../Cargo.lock");
    let (_, package) = lock.split_once("name = \"tokio-postgres\"\nversion = \"").unwrap();
    package.split('"').next().unwrap().to_owned()
}

async fn insert_prepared(client: &Client, insert: &Statement, first: i32) -> Result<(), Error> {
    for number in first..first + 10 {
        client.execute(insert, &[&number]).await?;
    }
    Ok(())
}

/// tokio-postgres sends futures that are polled together as a pipeline.
async fn insert_as_a_batch(client: &Client, insert: &Statement, first: i32) -> Result<(), Error> {
    let inserts = (first..first + 10).map(|number| client.execute_raw(insert, [number]));
    future::try_join_all(inserts).await.map(drop)
}

async fn copy_in(client: &Client, numbers: Range<i32>) -> Result<(), Error> {
    let mut sink = Box::pin(client.copy_in("COPY jobs (id) FROM STDIN").await?);
    for number in numbers {
        sink.send(Bytes::from(format!("{number}\n"))).await?;
    }
    sink.as_mut().finish().await.map(drop)
}

async fn refusals(address: &Address, client: &Client, insert: &Statement) -> String {
    // A COPY that fails before its data breaks the connection, even without a proxy.
    let (another, _) = connect(address, 1).await;
    let refused = [
        insert_prepared(client, insert, 300).await,
        insert_as_a_batch(client, insert, 300).await,
        copy_in(&another, 300..310).await,
    ];
    refused.map(|result| result.unwrap_err().code().unwrap().code().to_owned()).join(" ")
}

async fn copies(client: &Client) -> String {
    copy_in(client, 1000..2000).await.unwrap();
    let query = "COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT";
    let lines: Vec<Bytes> = client.copy_out(query).await.unwrap().try_collect().await.unwrap();
    let text = String::from_utf8(lines.concat()).unwrap();
    text.lines().map(|line| line.parse::<i64>().unwrap()).sum::<i64>().to_string()
}

async fn scrolls(client: &mut Client) -> String {
    let transaction = client.transaction().await.unwrap();
    let portal = transaction.bind("SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999", &[]).await.unwrap();
    let mut sum = 0;
    loop {
        let rows = transaction.query_portal(&portal, 70).await.unwrap();
        if rows.is_empty() {
            return sum.to_string();
        }
        sum += rows.iter().map(|row| i64::from(row.get::<_, i32>(0))).sum::<i64>();
    }
}

/// A connection with that token, and the payloads of its notifications.
async fn connect(address: &Address, token: i64) -> (Client, UnboundedReceiver<String>) {
    let (host, port) = address.host_and_port();
    let mut config = Config::new();
    config.host(host).port(port.parse().unwrap()).user("postgres").dbname("postgres");
    let (client, mut connection) = config.options(format!("-c lease.fence={token}")).connect(NoTls).await.unwrap();
    let (sender, payloads) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.payload().to_owned());
            }
        }
    });
    (client, payloads)
}

async fn take_over(address: &Address, token: i64) {
    connect(address, token).await.0.batch_execute("DELETE FROM jobs WHERE id <> 4").await.unwrap();
}

/// Runs the action in a separate task once a statement sleeps.
fn once_asleep(address: &Address, action: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let address = address.clone();
    tokio::spawn(async move {
        connect(&address, 1).await.0.batch_execute("SELECT until_asleep()").await.unwrap();
        action.await;
    })
}

/// The first value of a simple query, as text.
async fn value(client: &Client, sql: &str) -> String {
    let messages = client.simple_query(sql).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    row.unwrap().to_owned()
}

async fn shown(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(sql).await.unwrap_err();
    let server = error.as_db_error().unwrap_or_else(|| panic!("{error}"));
    format!(
        "tokio_postgres::Error {} {} {}",
        server.code().code(),
        server.severity(),
        server.detail().unwrap_or_default()
    )
}
