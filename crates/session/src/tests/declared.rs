//! Parameter types declared by a Parse, and keys checked by the guard.

use super::keyed::{INSERT, bind_to, keyed, outcome};
use super::*;
use fencegate_wire::message::Bound::{self, Text};

/// Prepares a statement whose parameters have the types with these OIDs.
fn prepare_typed(session: &mut Session<OneSession>, name: &str, sql: &str, types: &[u32]) {
    let mut body = BytesMut::from(format!("{name}\0{sql}\0").as_bytes());
    body.put_u16(types.len() as u16);
    types.iter().for_each(|oid| body.put_u32(*oid));
    sends(session, &[frame(frontend::PARSE, &body), sync()].concat());
    replies(session, &[parsed(), ready()].concat());
    session.server.output.clear();
    session.client.output.clear();
}

#[test]
fn a_key_is_read_as_its_declared_type() {
    let key: [Bound; 2] = [Text(b"03"), Text(b"x")];
    for (types, expected) in [
        (&[23, 25][..], "shard/3=47"),
        (&[], "shard/3=47"),
        (&[1700, 25], "query, rejected unverifiable"),
        (&[16_500], "query, rejected unverifiable"),
    ] {
        let mut session = keyed();
        prepare_typed(&mut session, "s", INSERT, types);
        let task = sends(&mut session, &[bind_to("s", &key), execute("")].concat());
        assert_eq!(outcome(&session, task), expected, "{types:?}");
    }
}

/// A domain's checks may run any code, which may change the lexing.
#[test]
fn binding_a_value_of_a_declared_type_may_run_code() {
    for (types, waits) in [(&[16_500][..], true), (&[], false)] {
        let mut session = session("");
        prepare_typed(&mut session, "s", "SHOW work_mem", types);
        sends(&mut session, &bind_to("s", &[Text(b"1")]));
        session.server.output.clear();
        sends(&mut session, &parse("", r"SELECT '\'"));
        assert_eq!(session.is_held_back(), waits, "{types:?}");
        replies(&mut session, &is_bound());
    }
}

/// The guard checks each row of a COPY. Other statements show their keys in the text.
#[test]
fn a_copy_to_a_keyed_table_passes_only_with_the_guard() {
    const COPY: &str = "COPY shards FROM STDIN";
    const VALUES: &str = "INSERT INTO shards (k) VALUES (3)";
    for (sql, is_guarded, expected) in [
        (COPY, true, "query"),
        (COPY, false, "query, rejected unverifiable"),
        (VALUES, true, "shard/3=47"),
        (VALUES, false, "shard/3=47"),
    ] {
        let mut session = keyed();
        if is_guarded {
            let table = session.host.policies.resources[0].tables[0].name.clone();
            session.host.catalog = Arc::new(Catalog::with_views([(table, true)], []).guarded());
        }
        let task = sends(&mut session, &query(sql));
        assert_eq!(outcome(&session, task), expected, "{sql} {is_guarded}");
    }
}
