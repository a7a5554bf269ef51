//! PostgreSQL 18 behind the proxy: long cancel keys of protocol 3.2, direct TLS, and the fence itself.

use crate::support::fenced::{Fenced, code, ok};
use crate::support::wire::error_in;
use crate::support::{Address, DEADLINE, Options, ProxyOptions, Release, Wire, message, wait_until};
use crate::transparency::FENCED;

fn world() -> Fenced {
    let schema = "CREATE TABLE ledger (id int PRIMARY KEY)";
    Fenced::start_with(Options::default().release(Release::Eighteen), schema, &ProxyOptions::default().policies(FENCED))
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_long_key_cancels() {
    let world = world();
    let [direct, proxied] =
        [world.postgres.address(), world.proxy.address()].map(|address| cancel_by_long_key(&world, &address));
    assert_eq!(direct, proxied);
}

/// Length of the key that canceled a statement.
fn cancel_by_long_key(world: &Fenced, address: &Address) -> usize {
    let mut wire = Wire::connect(address).unwrap();
    wire.send(&message::startup(message::PROTOCOL_3_2, &[("user", "postgres"), ("database", "postgres")]));
    let greeting = wire.authenticate("postgres", "");
    assert!(greeting.iter().all(|frame| frame.tag != b'v'), "the server knows 3.2: {greeting:?}");
    let key = greeting.into_iter().find(|frame| frame.tag == b'K').expect("a key").body;
    assert!(key.len() > 8, "{} bytes", key.len());
    wire.send(&message::query("SELECT pg_sleep(600)"));
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    wait_until("the statement sleeps", DEADLINE, || world.postgres.value(asleep) == "1");
    // An old client would truncate the key, which then cancels nothing.
    for cut in [8, key.len() - 1] {
        cancel(address, &key[..cut]);
        assert_eq!(world.postgres.value(asleep), "1");
    }
    cancel(address, &key);
    assert_eq!(error_in(&wire.read_until_ready()).unwrap().code(), "57014");
    key.len()
}

fn cancel(address: &Address, key: &[u8]) {
    let mut wire = Wire::connect(address).unwrap();
    wire.send(&message::cancel_request(key));
    assert_eq!(wire.bytes_to_end(), b"");
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn direct_tls_is_closed_without_a_response() {
    let world = world();
    // A ClientHello with the ALPN protocol `postgresql`, complete enough for a server without TLS.
    let hello = b"\x16\x03\x01\x00\x20\x01\x00\x00\x1c\x03\x03\x00\x10\x00\x0d\x00\x0b\x0apostgresql";
    for address in [world.postgres.address(), world.proxy.address(), world.postgres.socket(), world.proxy.socket()] {
        let mut wire = Wire::connect(&address).unwrap();
        wire.send(hello);
        assert_eq!(wire.bytes_to_end(), b"", "{address:?}");
    }
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn the_fence_holds() {
    let world = world();
    let mut old = world.holder(1);
    ok(&mut old, "BEGIN; INSERT INTO ledger VALUES (1)");
    // The old session is drained: its uncommitted write is rolled back, and it receives the reason.
    let mut new = world.holder(2);
    ok(&mut new, "INSERT INTO ledger VALUES (2)");
    assert_eq!(code(&mut old, "COMMIT"), "LF001");
    assert_eq!(code(&mut world.holder(1), "INSERT INTO ledger VALUES (3)"), "LF001");
    assert_eq!(code(&mut world.login(), "INSERT INTO ledger VALUES (4)"), "LF002");
    assert_eq!(ok(&mut new, "SELECT id FROM ledger"), [[Some("2".to_owned())]]);
}

/// The proxy uses the process's backend number, from which the temporary schema has its name.
#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_session_knows_which_temporary_relations_are_its_own() {
    let world = world();
    let (mut own, mut other) = (world.login(), world.login());
    ok(&mut own, "CREATE TEMP VIEW entries AS SELECT * FROM ledger");
    ok(&mut other, "CREATE TEMP TABLE entries (id int)");
    assert_eq!(code(&mut own, "INSERT INTO entries VALUES (1)"), "LF002");
    ok(&mut other, "INSERT INTO entries VALUES (1)");
}
