//! tokio-postgres.

use crate::support::{Address, DEADLINE};
use futures_util::{SinkExt, TryStreamExt, future};
use std::fmt::Write;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, SimpleQueryMessage};

const LARGE: usize = 4 * 1024 * 1024;

pub fn run(address: &Address) -> String {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, steps(address)).await.expect("it ends") })
}

async fn steps(address: &Address) -> String {
    let mut report = String::new();
    let mut step = |name: &str, result: String| writeln!(report, "{name}: {result}").unwrap();
    step("version", version());
    let (mut client, mut notifications) = connect(address, 1).await;
    step("token", value(&client, "SELECT current_setting('lease.fence')").await);

    client.execute("INSERT INTO jobs VALUES (1, 'one')", &[]).await.unwrap();
    step("writes", value(&client, "SELECT payload FROM jobs WHERE id = 1").await);

    let insert = client.prepare("INSERT INTO jobs VALUES ($1)").await.unwrap();
    for number in 100..110 {
        client.execute(&insert, &[&number]).await.unwrap();
    }
    step("prepares", value(&client, "SELECT sum(id) FROM jobs WHERE id BETWEEN 100 AND 109").await);

    // Futures that are polled together are sent as a pipeline.
    let numbers: Vec<i32> = (200..210).collect();
    future::try_join_all(numbers.iter().map(|number| client.execute_raw(&insert, [number]))).await.unwrap();
    step("batches", value(&client, "SELECT sum(id) FROM jobs WHERE id BETWEEN 200 AND 209").await);

    step("copies", copies(&client).await);
    step("scrolls", scrolls(&mut client).await);

    let large = "x".repeat(LARGE);
    client.execute("INSERT INTO jobs VALUES (2, $1)", &[&large]).await.unwrap();
    let read: String = client.query_one("SELECT payload FROM jobs WHERE id = 2", &[]).await.unwrap().get(0);
    step("carries_large_values", if read == large { "same" } else { "another" }.to_owned());

    client.batch_execute("LISTEN ticks; NOTIFY ticks, 'tick'").await.unwrap();
    step("listens", notifications.recv().await.unwrap());

    let cancel = client.cancel_token();
    let canceller = once_asleep(address, async move { cancel.cancel_query(NoTls).await.unwrap() });
    let error = client.batch_execute("SELECT pg_sleep(600)").await.unwrap_err();
    canceller.await.unwrap();
    assert_eq!(error.code().unwrap().code(), "57014");
    step("cancels", value(&client, "SELECT 'cancelled'").await);

    take_over(address, 2).await;
    step("is_refused", shown(&client, "INSERT INTO jobs VALUES (3)").await);

    client.batch_execute("BEGIN").await.unwrap();
    shown(&client, "INSERT INTO jobs VALUES (3)").await;
    let error = client.batch_execute("SELECT 'refused'").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "25P02");
    client.batch_execute("ROLLBACK").await.unwrap();
    step("aborts", value(&client, "SELECT 'on'").await);

    client.batch_execute("SET lease.fence = 2").await.unwrap();
    client.execute("INSERT INTO jobs VALUES (3, 'three')", &[]).await.unwrap();
    step("goes_on", value(&client, "SELECT payload FROM jobs WHERE id = 3").await);

    client.batch_execute("BEGIN; INSERT INTO jobs VALUES (4)").await.unwrap();
    take_over(address, 3).await;
    step("is_cut_off", shown(&client, "SELECT 'on'").await);

    let (client, _) = connect(address, 3).await;
    client.batch_execute("BEGIN; INSERT INTO jobs VALUES (4)").await.unwrap();
    let to = address.clone();
    let leader = once_asleep(address, async move { take_over(&to, 4).await });
    step("is_interrupted", shown(&client, "SELECT pg_sleep(600)").await);
    leader.await.unwrap();

    let (client, _) = connect(address, 4).await;
    client.execute("INSERT INTO jobs VALUES (4, 'four')", &[]).await.unwrap();
    step("starts_again", value(&client, "SELECT payload FROM jobs WHERE id = 4").await);
    report
}

/// That which Cargo.lock names.
fn version() -> String {
    let lock = include_str!("../../Cargo.lock");
    let (_, package) = lock.split_once("name = \"tokio-postgres\"\nversion = \"").unwrap();
    package.split('"').next().unwrap().to_owned()
}

async fn copies(client: &Client) -> String {
    let mut sink = Box::pin(client.copy_in("COPY jobs (id) FROM STDIN").await.unwrap());
    for number in 1000..2000 {
        sink.send(bytes::Bytes::from(format!("{number}\n"))).await.unwrap();
    }
    sink.as_mut().finish().await.unwrap();
    let query = "COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT";
    let lines: Vec<bytes::Bytes> = client.copy_out(query).await.unwrap().try_collect().await.unwrap();
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
async fn connect(address: &Address, token: i64) -> (Client, mpsc::UnboundedReceiver<String>) {
    let (host, port) = address.host_and_port();
    let mut config = Config::new();
    config.host(host).port(port.parse().unwrap()).user("postgres").dbname("postgres");
    let (client, mut connection) = config.options(format!("-c lease.fence={token}")).connect(NoTls).await.unwrap();
    let (sender, payloads) = mpsc::unbounded_channel();
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

/// Does it in a task of its own, as soon as a statement sleeps.
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
