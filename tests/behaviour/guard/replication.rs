//! Rows that a subscription applies: no statement writes them, and no client.

use super::world::{POLICIES, World, without_token};
use crate::support::fenced::code;
use crate::support::postgres::Options;
use crate::support::ticks::WRITE;
use crate::support::{DEADLINE, wait_until};

#[test]
fn logical_apply() {
    // A worker that failed is started again at once.
    let options = Options::default().setting("wal_retrieve_retry_interval", "50ms");
    let world = World::start_with("logical_apply", POLICIES, options);
    let postgres = &world.postgres;
    postgres.sql("CREATE DATABASE source");
    postgres.sql_in(
        "source",
        "CREATE TABLE ticks (id int, token bigint, note text); CREATE PUBLICATION ticks FOR TABLE ticks",
    );
    postgres.sql_in("source", "SELECT pg_create_logical_replication_slot('ticks', 'pgoutput')");
    postgres.sql(&format!(
        "CREATE SUBSCRIPTION ticks CONNECTION 'host=127.0.0.1 port={} user=postgres dbname=source' PUBLICATION ticks
         WITH (create_slot = false, slot_name = 'ticks', copy_data = false)",
        postgres.port()
    ));
    let before = world.state();
    postgres.sql_in("source", "INSERT INTO ticks VALUES (1000, 1, 'applied')");
    let says = |text: &str| wait_until(text, DEADLINE, || postgres.log().contains(text));
    says("and this session has no token for it");
    postgres.sql("ALTER ROLE postgres IN DATABASE postgres SET lease.fence = '4'");
    says("fencing token 4 for resource \"scheduler\" is stale: the highest is 5");
    assert_eq!(world.state(), before);

    postgres.sql("ALTER ROLE postgres IN DATABASE postgres SET lease.fence = '5'");
    wait_until("the row is applied", DEADLINE, || {
        postgres.value("SELECT count(*) FROM ticks WHERE note = 'applied'") == "1"
    });
    assert_eq!(code(&mut without_token(&postgres.socket()), WRITE), "", "the role's own token");
    postgres.sql("DROP SUBSCRIPTION ticks");
}
