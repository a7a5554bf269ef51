//! A statement prepared through the protocol sets the value whenever it is executed.

use super::{STARTUP, WRITE, presented, start, start_session};
use crate::support::fenced::{code_in, ok};
use crate::support::message::{bind_text, execute, parse, sync};
use crate::support::{Frame, Wire};

fn run(wire: &mut Wire, name: &str, values: &[Option<&[u8]>]) -> Vec<Frame> {
    wire.exchange(&[bind_text("", name, values), execute("", 0), sync()].concat())
}

fn session(world: &super::Fenced) -> Wire {
    let mut wire = start_session(world, &[("lease.fence", STARTUP)]).0;
    let statements = [
        ("set", "SET lease.fence = 47"),
        ("local", "SET LOCAL lease.fence = 48"),
        ("constant", "SELECT set_config('lease.fence', '49', false)"),
        ("any", "SELECT set_config('lease.fence', $1, false)"),
        ("bad", "SET lease.fence = 'x'"),
        ("bad constant", "SELECT set_config('lease.fence', 'x', false)"),
    ];
    let prepare: Vec<u8> = statements.iter().flat_map(|(name, text)| parse(name, text, &[])).chain(sync()).collect();
    assert_eq!(code_in(&wire.exchange(&prepare)), "");
    assert_eq!(presented(&wire.query(WRITE)), STARTUP);
    wire
}

#[test]
fn executed_later() {
    let world = start();
    let mut wire = session(&world);
    run(&mut wire, "set", &[]);
    assert_eq!(presented(&wire.query(WRITE)), "47");
    ok(&mut wire, "RESET lease.fence");
    ok(&mut wire, "EXECUTE set");
    assert_eq!(presented(&wire.query(WRITE)), "47");
    ok(&mut wire, "BEGIN");
    run(&mut wire, "local", &[]);
    assert_eq!(presented(&wire.query(WRITE)), "48");
    ok(&mut wire, "ROLLBACK");
    assert_eq!(presented(&wire.query(WRITE)), "47");
    run(&mut wire, "constant", &[]);
    assert_eq!(presented(&wire.query(WRITE)), "49");
    run(&mut wire, "any", &[Some(b"50")]);
    assert_eq!(presented(&wire.query(WRITE)), "50");
    for name in ["bad", "bad constant"] {
        assert_eq!(code_in(&run(&mut wire, name, &[])), "LF003", "{name}");
        assert_eq!(presented(&wire.query(WRITE)), "50", "{name}");
    }
    // The server accepts a value that the text does not show. The write is then rejected.
    assert_eq!(code_in(&run(&mut wire, "any", &[Some(b"x")])), "");
    assert_eq!(code_in(&wire.query(WRITE)), "LF003");
}

/// A query does not run again when its portal is executed again.
#[test]
fn a_portal_executed_twice() {
    let world = start();
    for name in ["constant", "any"] {
        for limit in [0, 1] {
            let mut wire = session(&world);
            ok(&mut wire, "BEGIN");
            let value: &[Option<&[u8]>] = if name == "any" { &[Some(b"49")] } else { &[] };
            wire.exchange(&[bind_text("portal", name, value), execute("portal", limit), sync()].concat());
            ok(&mut wire, "SET lease.fence = 51");
            assert_eq!(code_in(&wire.exchange(&[execute("portal", limit), sync()].concat())), "");
            assert_eq!(presented(&wire.query(WRITE)), "51", "{name}, limit {limit}");
        }
    }
}
