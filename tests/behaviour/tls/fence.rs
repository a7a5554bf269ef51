//! The fence with TLS on both sides: errors reach the client, and large messages pass.

use super::world::{leak, offering, psql, psycopg};
use crate::support::certificates::{Authority, text};
use crate::support::fenced::Fenced;
use crate::support::ticks::POLICIES;
use crate::support::{Address, Options, ProxyOptions};
use fencegate_postgres::tls::{Connector, ControlConfig};
use fencegate_postgres::{ServerTls, SslMode};
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio_postgres::Client;

/// A TLS session of tokio-postgres.
pub struct Session {
    pub runtime: Runtime,
    pub client: Client,
}

pub fn connect(address: &Address, root: &Path) -> Session {
    let (host, port) = address.host_and_port();
    let mut config = tokio_postgres::Config::new();
    config.host(host).port(port.parse().unwrap()).user("postgres").dbname("postgres");
    let tls = ServerTls { mode: SslMode::VerifyFull, root_certificate: Some(root.to_owned()), identity: None };
    let config = ControlConfig::new(config, Arc::new(Connector::new(tls).unwrap()));
    let runtime = Runtime::new().unwrap();
    let (client, connection) = runtime.block_on(config.connect()).unwrap();
    runtime.spawn(connection);
    Session { runtime, client }
}

impl Session {
    fn run(&self, sql: &str) -> Result<(), (String, String)> {
        let result = self.runtime.block_on(self.client.batch_execute(sql));
        result.map_err(|error| {
            let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
            (error.severity().to_owned(), error.code().code().to_owned())
        })
    }
}

fn fenced() -> (Fenced, Authority) {
    let authority = Authority::new("authority");
    let certificate = authority.sign_local("server");
    let ca = leak(text(&authority.pem()));
    let options = ProxyOptions::default()
        .policies(POLICIES)
        .arguments(&offering(&authority.sign_local("proxy")))
        .arguments(&["--tls", "require", "--upstream-sslmode", "verify-full", "--upstream-sslrootcert", ca]);
    let schema = "CREATE TABLE ticks (n int)";
    (Fenced::start_with(Options::default().tls(&certificate), schema, &options), authority)
}

#[test]
fn stale_writers_receive_the_error() {
    let (fenced, authority) = fenced();
    let [old, new] = [1, 2].map(|token| {
        let session = connect(&fenced.proxy.address(), &authority.pem());
        session.run(&format!("SET lease.fence = {token}")).unwrap();
        session
    });
    old.run("INSERT INTO ticks VALUES (1)").unwrap();
    old.run("BEGIN; INSERT INTO ticks VALUES (2)").unwrap();
    new.run("INSERT INTO ticks VALUES (3)").unwrap();
    assert_eq!(old.run("COMMIT"), Err(("FATAL".into(), "LF001".into())));
    let late = connect(&fenced.proxy.address(), &authority.pem());
    late.run("SET lease.fence = 1").unwrap();
    assert_eq!(late.run("INSERT INTO ticks VALUES (4)"), Err(("ERROR".into(), "LF001".into())));
    late.run("SELECT 1").unwrap();
    assert_eq!(fenced.postgres.value("SELECT string_agg(n::text, ' ' ORDER BY n) FROM ticks"), "1 3");
}

#[test]
fn long_messages_pass_in_both_directions() {
    let (fenced, _) = fenced();
    let length = 20 * 1024 * 1024;
    let ask = format!("SELECT length(repeat('a', {length})), repeat('b', {length})");
    let answer = psql(&fenced.proxy.address(), "sslmode=require", &ask).unwrap();
    assert_eq!(answer.len(), length + "20971520|".len());
    // Both directions at the same time, in a pipeline. Then the client disconnects without Terminate.
    let program = format!(
        "
import sys, os, psycopg
c = psycopg.connect(sys.argv[1])
big = 'x' * {length}
with c.pipeline():
    cursors = [c.execute('select %s::text', (big,)) for _ in range(4)]
assert all(cursor.fetchone()[0] == big for cursor in cursors)
with c.cursor().copy(\"COPY (SELECT repeat('y', 1000) FROM generate_series(1, 20000)) TO STDOUT\") as copy:
    print(sum(len(block) for block in copy), flush=True)
os._exit(0)
"
    );
    let said = psycopg(&fenced.proxy.address(), "sslmode=require", &program);
    assert_eq!(said.as_deref(), Ok("20020000"));
    crate::support::wait_until("the session has ended", crate::support::DEADLINE, || {
        fenced.postgres.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = '' AND state = 'idle'")
            == "0"
    });
}
