//! Fences that only observe.

use super::keyed::INSERT;
use super::*;
use fencegate_fence::session::MOST_AT_ONCE;
use fencegate_wire::message::Bound::{self, Null, Text};

const OBSERVED: &str =
    "version: 1\nresources:\n  - {name: 'shard/{k}', mode: observe, tables: [{name: public.shards, key: k}]}\n";

fn observing() -> Session<OneSession> {
    let mut session = session_under(OBSERVED, "47", Path::new(Some("public"), false));
    let table = session.host.policies.resources[0].tables[0].name.clone();
    session.host.catalog = Arc::new(Catalog::with_views([(table, true)], []));
    prepare(&mut session, "s", INSERT);
    session.host.notifications();
    session
}

/// Inserts a row with this key. Returns the host's notifications.
fn write(session: &mut Session<OneSession>, key: usize, status: Status) -> String {
    let key = key.to_string();
    let values: [Bound; 2] = [Text(key.as_bytes()), Null];
    assert!(sends(session, &[keyed::bind_to("s", &values), execute(""), sync()].concat()).is_none());
    assert!(!session.server.output.split().is_empty(), "the write of key {key} passes");
    replies(session, &[is_bound(), completes("INSERT 0 1"), at_rest(status)].concat());
    session.client.output.clear();
    session.host.notifications()
}

/// An enforcing fence bounds the memory by refusing further keys. An observing fence stops remembering them.
#[test]
fn memory_of_a_transaction_with_many_keys_is_bounded() {
    let mut session = observing();
    for key in 0..MOST_AT_ONCE + 100 {
        let notified = write(&mut session, key, Status::Transaction);
        assert_eq!(notified, format!("observed shard/{key}=47, query"));
    }
    assert_eq!(session.transaction.observed().written.len(), MOST_AT_ONCE);
    // Remembered keys are still compared with the token. Other keys are not.
    session.settings.parameter = Parameter::new(ParameterValue::read(Some("48")));
    assert_eq!(write(&mut session, 0, Status::Transaction), "passed 1, query");
    assert_eq!(
        write(&mut session, MOST_AT_ONCE, Status::Transaction),
        format!("observed shard/{MOST_AT_ONCE}=48, query")
    );
    write(&mut session, 1, Status::Idle);
    assert!(session.transaction.observed().written.is_empty());
}
