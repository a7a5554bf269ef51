//! Cancel requests.

use super::flood::{answered, beside};
use crate::support::proxy::NO_POLICIES;
use crate::support::wire::error_in;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire, message, wait_until};

const USER: [(&str, &str); 2] = [("user", "postgres"), ("database", "postgres")];

/// A session and its cancel key.
fn session(proxy: &Proxy) -> (Wire, Vec<u8>) {
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    let frames = wire.start(&USER, "");
    let key = frames.iter().find(|frame| frame.tag == b'K').expect("a key").body.clone();
    (wire, key)
}

fn send_cancel(proxy: &Proxy, key: &[u8]) -> Wire {
    let mut wire = Wire::connect(&proxy.address()).unwrap();
    wire.send(&message::cancel_request(key));
    wire
}

/// Runs a statement, and cancels it.
fn cancelled(proxy: &Proxy, postgres: &Postgres, (wire, key): &mut (Wire, Vec<u8>)) {
    wire.send(&message::query("SELECT pg_sleep(600) AS held"));
    let running =
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep% AS held'";
    wait_until("it runs", DEADLINE, || postgres.value(running) == "1");
    let mut cancel = send_cancel(proxy, key);
    assert_eq!(error_in(&wire.read_until_ready()).expect("an error").code(), "57014");
    // The server signals the process twice. The second signal must not reach the next statement.
    assert_eq!(cancel.bytes_to_end(), b"");
}

#[test]
fn of_unknown_keys() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &[]);
    let mut held = session(&proxy);
    // Like an attacker, does not wait for replies.
    let unknown = |_: &_| send_cancel(&proxy, &[7; 8]);
    beside("cancels of unknown keys", (1000, 600), unknown, 10, || cancelled(&proxy, &postgres, &mut held));
}

#[test]
fn unknown_keys_reach_no_server() {
    let postgres = Postgres::start(Options::default().setting("log_connections", "on"));
    let count = |event: &str| postgres.log().matches(event).count();
    // Cancel requests do not authenticate.
    let unauthenticated = || count("connection received").saturating_sub(count("connection authorized"));
    let proxy = Proxy::start(&postgres, NO_POLICIES, &[]);
    let (_wire, mut key) = session(&proxy);
    wait_until("the session is logged", DEADLINE, || count("connection authorized") >= 2);
    let before = unauthenticated();
    // An existing process with a wrong secret, keys of protocol 3.2, and no key.
    *key.last_mut().unwrap() ^= 1;
    for key in [key, [1; 8].into(), [2; 36].into(), [3; 256].into(), Vec::new()] {
        assert_eq!(send_cancel(&proxy, &key).bytes_to_end(), b"");
    }
    let logged = count("connection authorized");
    drop(Wire::login(&postgres.address(), "postgres", "postgres"));
    wait_until("the server has logged it", DEADLINE, || count("connection authorized") > logged);
    // A login may still be under way.
    wait_until("no request has reached the server", DEADLINE, || unauthenticated() <= before);
}

/// A client may cancel its own session as often as it likes, but must not delay others.
#[test]
fn of_ones_own_session() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &[]);
    let mut held = session(&proxy);
    let (_own, key) = session(&proxy);
    let own = |_: &_| send_cancel(&proxy, &key);
    beside("cancels of one's own session", (1000, 600), own, 10, || cancelled(&proxy, &postgres, &mut held));
}

#[test]
fn one_by_one_all_work() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start(&postgres, NO_POLICIES, &[]);
    let mut held = session(&proxy);
    answered("cancels", 20, || cancelled(&proxy, &postgres, &mut held));
}
