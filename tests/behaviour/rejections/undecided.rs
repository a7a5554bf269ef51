//! Messages that need the server's response first, while the server waits for COPY data: the server refuses such a
//! message and ends the session, as for any message there. If its COPY has failed, the message is rejected.

use crate::rejections::compare::{World, masked};
use crate::rejections::conversation::{Step, converse};
use crate::rejections::rejected::WRITE;
use crate::support::message::{
    bind_text, copy_data, copy_done, copy_fail, describe_statement, execute, function_call, query, sync, unnamed,
};
use crate::support::wire::rows_in;
use crate::support::{Address, Frame, Wire};

/// The token, the string syntax and the meaning of `later` are known only when all of this has been answered.
const COPY: &str = "SELECT set_config('lease.fence', '', false), set_config('standard_conforming_strings', 'on', false); \
    COPY notes FROM STDIN; PREPARE later AS INSERT INTO jobs VALUES (1)";
const ESCAPED: &str = r"INSERT INTO jobs SELECT 1 WHERE '\' <> ''";

/// Messages that need those answers.
fn undecided() -> [Vec<u8>; 6] {
    [
        query(WRITE),
        query(ESCAPED),
        query("EXECUTE later"),
        [unnamed(WRITE, &[]), sync()].concat(),
        [unnamed(ESCAPED, &[]), sync()].concat(),
        [bind_text("", "later", &[]), execute("", 0), sync()].concat(),
    ]
}

#[test]
fn while_the_copy_goes_on() {
    let world = World::start();
    let others = [function_call(177, &[]), describe_statement("later"), query("SELECT 1")];
    for message in undecided().iter().chain(&others) {
        let at_once = vec![Step::Ready([query(COPY), message.clone()].concat(), 1)];
        let one_by_one = vec![Step::Until(query(COPY), b'G'), Step::Ready(message.clone(), 1)];
        for steps in [at_once, one_by_one] {
            let run = |address: &Address| masked(&converse(&mut Wire::login(address, "postgres", "postgres"), &steps));
            let [direct, proxied] = [world.fenced.postgres.address(), world.fenced.proxy.address()].map(|it| run(&it));
            assert_eq!(proxied, direct, "{message:?}");
        }
    }
    assert_eq!(world.take_notes("postgres"), []);
}

/// A Sync follows the COPY, as with PQexecParams of libpq, and no data.
#[test]
fn when_its_client_ends_the_copy_at_once() {
    let world = World::start();
    for end in [copy_done(), copy_fail("changed its mind")] {
        let copy = [unnamed("COPY notes FROM STDIN", &[]), sync()].concat();
        let rest = [end.clone(), sync(), query("SELECT 'alive'")].concat();
        let steps = [Step::Until(copy, b'G'), Step::Ready(rest, 2)];
        let run = |address: &Address| masked(&converse(&mut Wire::login(address, "postgres", "postgres"), &steps));
        let [direct, proxied] = [world.fenced.postgres.address(), world.fenced.proxy.address()].map(|it| run(&it));
        assert_eq!(proxied, direct, "{end:?}");
    }
}

#[test]
fn when_the_copy_has_failed() {
    let world = World::start();
    for message in undecided() {
        let mut wire = world.fenced.login();
        let copy = Step::Until(query(COPY), b'G');
        // The session continues. The number of answers depends on whether the proxy already knows of the failure.
        let rest = [copy_data(b"too\tmany columns\n"), message.clone(), query("SELECT 'alive'")].concat();
        converse(&mut wire, &[copy]);
        wire.send(&rest);
        let answers = std::iter::from_fn(|| Some(wire.read_until(b'D')).filter(|frames| !frames.is_empty()));
        let is_alive = |frames: Vec<Frame>| rows_in(&frames).contains(&vec![Some("alive".to_owned())]);
        assert!({ answers }.any(is_alive), "{message:?}: the session has ended");
        assert_eq!(world.take_notes("postgres"), [], "{message:?}");
    }
}
