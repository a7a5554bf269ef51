//! sqlx.

use futures_util::TryStreamExt;
use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgListener, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection, query, query_scalar, raw_sql};
use std::ops::Range;

const LARGE: usize = 4 * 1024 * 1024;

#[tokio::main]
async fn main() {
    println!("version: {}", sqlx_steps::version());
    let mut connection = connect(1).await;
    println!("token: {}", value(&mut connection, "SELECT current_setting('lease.fence')").await);

    query("INSERT INTO jobs VALUES (1, 'one')").execute(&mut connection).await.unwrap();
    println!("writes: {}", value(&mut connection, "SELECT payload FROM jobs WHERE id = 1").await);

    insert_prepared(&mut connection, 100).await.unwrap();
    let sum = "SELECT sum(id)::text FROM jobs WHERE id BETWEEN 100 AND 109";
    println!("prepares: {}", value(&mut connection, sum).await);

    insert_as_a_batch(&mut connection, 200).await.unwrap();
    let sum = "SELECT sum(id)::text FROM jobs WHERE id BETWEEN 200 AND 209";
    println!("batches: {}", value(&mut connection, sum).await);

    println!("copies: {}", copies(&mut connection).await);

    let large = "x".repeat(LARGE);
    query("INSERT INTO jobs VALUES (2, $1)").bind(&large).execute(&mut connection).await.unwrap();
    let same = value(&mut connection, "SELECT payload FROM jobs WHERE id = 2").await == large;
    println!("carries_large_values: {}", if same { "same" } else { "another" });

    println!("listens: {}", listens().await);

    take_over(2).await;
    println!("is_refused: {}", shown(&mut connection, "INSERT INTO jobs VALUES (3)").await);
    println!("refusals: {}", refusals(&mut connection).await);
    println!("aborts: {}", aborts(&mut connection).await);

    connection.execute("SET lease.fence = 2").await.unwrap();
    connection.execute("INSERT INTO jobs VALUES (3, 'three')").await.unwrap();
    println!("goes_on: {}", value(&mut connection, "SELECT payload FROM jobs WHERE id = 3").await);
    is_ended(connection).await;
}

/// A newer leader takes over during a transaction.
async fn is_ended(mut connection: PgConnection) {
    connection.execute("BEGIN; INSERT INTO jobs VALUES (4)").await.unwrap();
    take_over(3).await;
    println!("is_cut_off: {}", shown(&mut connection, "SELECT 'on'").await);

    let mut connection = connect(3).await;
    connection.execute("BEGIN; INSERT INTO jobs VALUES (4)").await.unwrap();
    let leader = tokio::spawn(async {
        connect(1).await.execute("SELECT until_asleep()").await.unwrap();
        take_over(4).await;
    });
    println!("is_interrupted: {}", shown(&mut connection, "SELECT pg_sleep(600)").await);
    leader.await.unwrap();

    let mut connection = connect(4).await;
    connection.execute("INSERT INTO jobs VALUES (4, 'four')").await.unwrap();
    println!("starts_again: {}", value(&mut connection, "SELECT payload FROM jobs WHERE id = 4").await);
}

/// sqlx prepares the statement once, and keeps it.
async fn insert_prepared(connection: &mut PgConnection, first: i32) -> sqlx::Result<()> {
    for number in first..first + 10 {
        query("INSERT INTO jobs VALUES ($1)").bind(number).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn insert_as_a_batch(connection: &mut PgConnection, first: i32) -> sqlx::Result<()> {
    let inserts: Vec<_> = (first..first + 10).map(|number| format!("INSERT INTO jobs VALUES ({number})")).collect();
    raw_sql(&inserts.join(";")).execute(connection).await?;
    Ok(())
}

async fn copy_in(connection: &mut PgConnection, numbers: Range<i32>) -> sqlx::Result<()> {
    let mut copy = connection.copy_in_raw("COPY jobs (id) FROM STDIN").await?;
    for number in numbers {
        copy.send(format!("{number}\n").into_bytes()).await?;
    }
    copy.finish().await?;
    Ok(())
}

async fn refusals(connection: &mut PgConnection) -> String {
    let refused = [
        insert_prepared(connection, 300).await,
        insert_as_a_batch(connection, 300).await,
        copy_in(connection, 300..310).await,
    ];
    refused.map(|result| sqlstate(&result.unwrap_err())).join(" ")
}

fn sqlstate(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).unwrap_or_else(|| panic!("{error}")).into_owned()
}

async fn copies(connection: &mut PgConnection) -> i64 {
    copy_in(connection, 1000..2000).await.unwrap();
    let query = "COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT";
    let chunks: Vec<_> = connection.copy_out_raw(query).await.unwrap().try_collect().await.unwrap();
    let text = String::from_utf8(chunks.concat()).unwrap();
    text.lines().map(|line| line.parse::<i64>().unwrap()).sum()
}

async fn listens() -> String {
    let pool = PgPoolOptions::new().connect_with(options(1)).await.unwrap();
    let mut listener = PgListener::connect_with(&pool).await.unwrap();
    listener.listen("ticks").await.unwrap();
    pool.execute("NOTIFY ticks, 'tick'").await.unwrap();
    listener.recv().await.unwrap().payload().to_owned()
}

async fn aborts(connection: &mut PgConnection) -> String {
    let mut transaction = connection.begin().await.unwrap();
    shown(&mut transaction, "INSERT INTO jobs VALUES (3)").await;
    let error = transaction.execute("SELECT 'refused'").await.unwrap_err();
    assert_eq!(sqlstate(&error), "25P02");
    transaction.rollback().await.unwrap();
    value(connection, "SELECT 'on'").await
}

fn options(token: i64) -> PgConnectOptions {
    // Uses PGHOST, PGPORT, PGUSER and PGDATABASE.
    PgConnectOptions::new().options([("lease.fence", token.to_string())])
}

async fn connect(token: i64) -> PgConnection {
    PgConnection::connect_with(&options(token)).await.unwrap()
}

/// Another leader writes with that token.
async fn take_over(token: i64) {
    connect(token).await.execute("DELETE FROM jobs WHERE id <> 4").await.unwrap();
}

async fn value(connection: &mut PgConnection, sql: &'static str) -> String {
    query_scalar(sql).fetch_one(connection).await.unwrap()
}

async fn shown(connection: &mut PgConnection, sql: &'static str) -> String {
    let error = connection.execute(sql).await.unwrap_err();
    let server = error.as_database_error().unwrap_or_else(|| panic!("{error}")).downcast_ref::<PgDatabaseError>();
    let severity = format!("{:?}", server.severity()).to_uppercase();
    format!("sqlx::Error::Database {} {severity} {}", server.code(), server.detail().unwrap_or_default())
}
