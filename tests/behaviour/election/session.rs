//! A database session under a leader's token.

use super::{LONG, election, keys, lease, run, win};
use crate::support::etcd::Etcd;
use crate::support::{DEADLINE, Options, Postgres, wait_until};
use fencegate_leader::{ConnectError, Lost};
use tokio_postgres::{Config, NoTls};

fn config(postgres: &Postgres) -> Config {
    let mut config = Config::new();
    config.host("127.0.0.1").port(postgres.port()).user("postgres").dbname("postgres");
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_carries_the_token_and_ends_with_the_leadership() {
    let (server, postgres) = (Etcd::start(), Postgres::start(Options::default()));
    let leadership = win(&election(&server, "ours", LONG)).await;
    let mut config = config(&postgres);
    config.options("-c application_name=kept");
    let client = leadership.connect(&config, NoTls).await.unwrap();
    let shown = client.query_one("SELECT current_setting('lease.fence'), current_setting('application_name')", &[]);
    let row = shown.await.unwrap();
    assert_eq!((row.get(0), row.get(1)), (leadership.token().to_string(), "kept".to_owned()));

    run(&mut server.etcdctl(&["lease", "revoke", lease(&keys(&server)[0])]));
    wait_until("the session is closed", DEADLINE, || client.is_closed());
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kept'";
    wait_until("the server has seen it", DEADLINE, || postgres.value(sessions) == "0");
    let refused = leadership.connect(&config, NoTls).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Lost(Lost::Revoked)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_does_not_keep_leadership() {
    let (server, postgres) = (Etcd::start(), Postgres::start(Options::default()));
    let leadership = win(&election(&server, "ours", LONG)).await;
    let client = leadership.connect(&config(&postgres), NoTls).await.unwrap();
    drop(leadership);
    wait_until("the session is closed", DEADLINE, || client.is_closed());
    super::wait_for_keys(&server, 0);
}
