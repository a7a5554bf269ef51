//! sqlx's pool.

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, PgConnection, PgPool, query_scalar};
use std::sync::atomic::{AtomicI64, Ordering};

const WRITE: &str = "INSERT INTO jobs SELECT count(*) FROM jobs RETURNING id::text";
const READ: &str = "SELECT quote_literal(current_setting('lease.fence')) || ' ' || pg_backend_pid()";
const TAKE_OVER: &str = "a newer leader writes";
const NONE: i64 = 0;

static TOKEN: AtomicI64 = AtomicI64::new(NONE);

fn current_token() -> String {
    Some(TOKEN.load(Ordering::Relaxed))
        .filter(|token| *token != NONE)
        .map(|token| token.to_string())
        .unwrap_or_default()
}

async fn present_token(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute(format!("SET lease.fence = '{}'", current_token()).as_str()).await?;
    Ok(())
}

async fn open_pool(options: PgConnectOptions, size: u32) -> sqlx::Result<PgPool> {
    PgPoolOptions::new()
        .max_connections(size)
        // Only reused connections are acquired.
        .after_connect(|connection, _| Box::pin(present_token(connection)))
        .before_acquire(|connection, _| Box::pin(async { present_token(connection).await.map(|()| true) }))
        .connect_with(options)
        .await
}

#[tokio::main]
async fn main() {
    // Uses PGHOST, PGPORT, PGUSER and PGDATABASE.
    let pool = open_pool(PgConnectOptions::new(), 1).await.unwrap();
    println!("version: {}", sqlx_steps::version());
    println!("first: {}", visit(&pool, 1, &[WRITE, READ]).await);
    println!("newer: {}", visit(&pool, 2, &[WRITE, READ]).await);
    println!("none: {}", visit(&pool, NONE, &[READ]).await);
    println!("refused: {}", visit(&pool, NONE, &[WRITE]).await);
    println!("rolled_back: {}", visit(&pool, 2, &[WRITE, "ROLLBACK", READ]).await);
    println!("cut_off: {}", visit(&pool, 2, &[WRITE, TAKE_OVER, READ]).await);
    println!("after: {}", visit(&pool, 3, &[WRITE, READ]).await);
}

/// Runs these statements in a transaction. Returns the result of the last one, or the SQLSTATE of its error.
async fn visit(pool: &PgPool, token: i64, actions: &[&'static str]) -> String {
    TOKEN.store(token, Ordering::Relaxed);
    match take(pool, actions).await {
        Ok(found) => found,
        Err(sqlx::Error::Database(error)) => error.code().unwrap_or_default().into_owned(),
        Err(error) => error.to_string(),
    }
}

async fn take(pool: &PgPool, actions: &[&'static str]) -> sqlx::Result<String> {
    let mut transaction = pool.begin().await?;
    let mut result = None;
    for action in actions {
        match *action {
            TAKE_OVER => take_over().await?,
            sql => result = query_scalar(sql).fetch_optional(&mut *transaction).await?,
        }
    }
    transaction.commit().await?;
    Ok(result.unwrap_or_default())
}

async fn take_over() -> sqlx::Result<()> {
    let options = PgConnectOptions::new().options([("lease.fence", "3")]);
    let pool = PgPoolOptions::new().connect_with(options).await?;
    pool.execute("DELETE FROM jobs").await?;
    Ok(())
}
