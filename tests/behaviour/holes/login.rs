//! Messages that a client sends before authentication are not executed without a verdict.

use crate::support::fenced::Fenced;
use crate::support::{Options, ProxyOptions, Wire, message};

const POLICIES: &str = "version: 1\nresources:\n  - {name: ledger, tables: [public.ledger]}\n";

/// The password arrives before the server requests it. The message behind the password does not answer that request,
/// and is judged.
#[test]
fn a_statement_behind_an_early_password_is_judged() {
    let schema =
        "CREATE TABLE ledger (id int); CREATE ROLE clerk LOGIN PASSWORD 'secret'; GRANT ALL ON ledger TO clerk";
    let options = Options::default().hba("host all clerk all password");
    let world = Fenced::start_with(options, schema, &ProxyOptions::default().policies(POLICIES));
    let parameters = [("user", "clerk"), ("database", "postgres")];
    let mut ahead = message::startup(message::PROTOCOL_3_0, &parameters);
    ahead.extend(message::password("secret"));
    ahead.extend(message::query("INSERT INTO ledger VALUES (1)"));
    for step in [usize::MAX, 7] {
        let mut wire = Wire::connect(&world.proxy.address()).unwrap();
        ahead.chunks(step.min(ahead.len())).for_each(|piece| wire.send(piece));
        wire.read_until_ready();
        let answer = wire.read_until_ready();
        assert!(answer.iter().any(|frame| frame.tag == b'E'), "{answer:?}");
        assert_eq!(world.postgres.value("SELECT count(*) FROM ledger"), "0");
    }
}
