//! The statements that drivers send on their own: on connecting, around statements, and when a pool takes a connection
//! back.

use super::world::World;
use crate::support::programs::{self, run};
use std::process::Command;

const PYTHON: &str = r#"
import asyncio, datetime, sys
import asyncpg, psycopg, psycopg_pool, sqlalchemy

host, port = sys.argv[1], int(sys.argv[2])
address = dict(host=host, port=port, user="postgres", dbname="fencegate")

def check(row):
    database, resource, mode, election, generation, token, drained, admissions, leader, leader_state = row
    assert (database, resource, generation, token, drained) == ("postgres", "scheduler", 1, 47, True), row

# Transactions around every statement, the default of psycopg.
with psycopg.connect(**address) as connection:
    check(connection.execute("SHOW FENCES").fetchone())
    for binary in (False, True):
        for _ in range(8):
            check(connection.execute("SHOW FENCES", prepare=True, binary=binary).fetchone())
            started, = connection.execute("SHOW VERSION", binary=binary).fetchone()[2:]
            assert isinstance(started, datetime.datetime) and started.tzinfo, started
    try:
        connection.execute("SHOW FENCE")
        raise SystemExit("SHOW FENCE is a command")
    except psycopg.errors.SyntaxError as error:
        assert "SHOW FENCES" in error.diag.message_hint
    connection.rollback()
    with connection.cursor() as cursor:
        cursor.execute("SHOW HELP")
        assert len(cursor.fetchall()) > 10
with psycopg_pool.ConnectionPool(kwargs=address, min_size=1, check=psycopg_pool.ConnectionPool.check_connection) as pool:
    for _ in range(2):
        with pool.connection() as connection:
            check(connection.execute("SHOW FENCES").fetchone())

# As described in docs/reference/console.md.
def check_by_sqlalchemy(connection):
    check(connection.execute(sqlalchemy.text("SHOW FENCES")).fetchone())
    assert connection.exec_driver_sql("SHOW VERSION").mappings().one()["fencegate"]

for driver in ("psycopg", "psycopg2"):
    engine = sqlalchemy.create_engine(f"postgresql+{driver}://postgres@{host}:{port}/fencegate", use_native_hstore=False)
    for _ in range(2):
        with engine.connect() as connection:
            check_by_sqlalchemy(connection)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        check_by_sqlalchemy(connection)
    engine.dispose()

async def with_asyncpg():
    async with asyncpg.create_pool(host=host, port=port, user="postgres", database="fencegate", min_size=1, max_size=1) as pool:
        for _ in range(2):
            async with pool.acquire() as connection:
                check(tuple(await connection.fetchrow("SHOW FENCES")))
                async with connection.transaction():
                    version = await connection.fetchrow("SHOW VERSION")
                assert isinstance(version["started"], datetime.datetime), version
                assert await connection.fetchval("SELECT 1") == 1
                try:
                    await connection.fetch("SHOW FENCE")
                    raise SystemExit("SHOW FENCE is a command")
                except asyncpg.PostgresSyntaxError as error:
                    assert "SHOW FENCES" in error.hint
asyncio.run(with_asyncpg())
print("done")
"#;

const NODE: &str = r#"
const { Client } = require('pg');
(async () => {
  const [host, port] = process.argv.slice(-2);
  const client = new Client({ host, port, user: 'postgres', database: 'fencegate' });
  await client.connect();
  for (const query of ['SHOW FENCES', { name: 'fences', text: 'SHOW FENCES' }, { text: 'SHOW FENCES', values: [] }]) {
    const { rows } = await client.query(query);
    if (rows[0].resource !== 'scheduler' || rows[0].token !== '47' || rows[0].drained !== true) throw new Error(JSON.stringify(rows));
  }
  const { rows } = await client.query('SHOW VERSION');
  if (!(rows[0].started instanceof Date)) throw new Error(JSON.stringify(rows));
  const error = await client.query('SHOW FENCE').catch((error) => error);
  if (error.code !== '42601' || !error.hint.includes('SHOW FENCES')) throw error;
  await client.end();
  console.log('done');
})();
"#;

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn psycopg_and_asyncpg_their_pools_and_sqlalchemy() {
    let world = World::start();
    let _writer = world.writer(47);
    let (host, port) = world.proxy.address().host_and_port();
    let output = run(Command::new(programs::python()).args(["-c", PYTHON, &host, &port]));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "done");
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn node_postgres() {
    let world = World::start();
    let _writer = world.writer(47);
    let (host, port) = world.proxy.address().host_and_port();
    let node = Command::new("node")
        .current_dir(programs::node_folder())
        .args(["-e", NODE, "--", &host, &port])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&node.stdout).trim(), "done", "{}", String::from_utf8_lossy(&node.stderr));
}

/// The statements of JDBC, pgx and SQLAlchemy, in the extended protocol as these send them.
#[tokio::test(flavor = "multi_thread")]
async fn statements_that_drivers_send_by_themselves_are_answered() {
    let world = World::start();
    drop(tokio::task::block_in_place(|| world.writer(47)));
    let mut console = world.driver().await;
    for text in [
        "SET extra_float_digits = 3",
        "SET application_name = 'PostgreSQL JDBC Driver'",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "DISCARD ALL",
        "RESET ALL",
        "UNLISTEN *",
        "CLOSE ALL",
        "DEALLOCATE ALL",
        "-- ping",
        ";",
    ] {
        console.execute(text, &[]).await.unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    for (text, answer) in [
        ("SHOW TRANSACTION ISOLATION LEVEL", "read committed"),
        ("show standard_conforming_strings", "on"),
        ("select pg_catalog.version()", "PostgreSQL 1"),
    ] {
        let row = console.query_one(text, &[]).await.unwrap();
        assert!(row.get::<_, &str>(0).starts_with(answer), "{text}");
    }
    assert_eq!(console.query_one("SELECT 1", &[]).await.unwrap().get::<_, i64>(0), 1);
    let transaction = console.transaction().await.unwrap();
    let portal = transaction.bind("SHOW HELP", &[]).await.unwrap();
    let first = transaction.query_portal(&portal, 4).await.unwrap();
    let rest = transaction.query_portal(&portal, 0).await.unwrap();
    assert_eq!((first.len(), rest.len()), (4, super::COMMANDS - 4));
    assert!(transaction.query("SHOW FENCE", &[]).await.unwrap_err().code().is_some());
    transaction.rollback().await.unwrap();
    assert_eq!(console.query("SHOW FENCES", &[]).await.unwrap().len(), 1);
}
