//! Keys in bound values, and keys that depend on the search path.

use super::*;
use fencegate_statement::ServerEncoding;
use fencegate_wire::message::Bound::{self, Binary, Null, Text};

const KEYED: &str = "version: 1\nresources:\n  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}\n";
pub(super) const INSERT: &str = "INSERT INTO shards (k, v) VALUES ($1, $2)";
pub(super) const UPDATE: &str = "UPDATE shards SET v = 1 WHERE k = 3";
/// An integer whose bytes are not all ASCII.
const LARGE: Bound = Binary(&[0, 0, 0, 200]);

pub(super) fn keyed() -> Session<OneSession> {
    let mut session = session_under(KEYED, "47", Path::new(Some("public"), false));
    let table = session.host.policies.resources[0].tables[0].name.clone();
    session.host.catalog = Arc::new(Catalog::with_views([(table, true)], []));
    session
}

/// A session in whose catalog the schema `app` contains an operator `=`.
pub(super) fn shadowed() -> Session<OneSession> {
    let mut session = keyed();
    let table = session.host.policies.resources[0].tables[0].name.clone();
    session.host.catalog = Arc::new(Catalog::with_views([(table, true)], []).shadowed_by("app"));
    session
}

/// A Bind of the unnamed portal.
pub(super) fn bind_to(statement: &str, values: &[Bound]) -> BytesMut {
    let mut body = BytesMut::from(format!("\0{statement}\0").as_bytes());
    body.put_u16(values.len() as u16);
    values.iter().for_each(|value| body.put_u16(u16::from(matches!(value, Binary(_)))));
    body.put_u16(values.len() as u16);
    for value in values {
        match value {
            Null => body.put_i32(-1),
            Text(bytes) | Binary(bytes) => {
                body.put_i32(bytes.len() as i32);
                body.put_slice(bytes);
            }
        }
    }
    body.put_u16(0);
    frame(frontend::BIND, &body)
}

/// The requested admissions, or the host's notifications.
pub(super) fn outcome(session: &Session<OneSession>, task: Option<Task>) -> String {
    if task.is_some() { admissions(task) } else { session.host.notifications() }
}

#[test]
fn the_key_is_the_bound_value() {
    const NOT_KEPT: ServerEncoding = ServerEncoding::Other;
    const UTF8: ServerEncoding = ServerEncoding::Utf8;
    for (sql, values, server, expected) in [
        (INSERT, &[Text(b"3"), Text(b"x")][..], UTF8, "shard/3=47"),
        (INSERT, &[Text(b" 03"), Null], UTF8, "shard/3=47"),
        (INSERT, &[Null, Text(b"3")], UTF8, "query, rejected unverifiable"),
        (INSERT, &[LARGE, Text("é".as_bytes())], UTF8, "shard/200=47"),
        ("DELETE FROM shards WHERE k = $1", &[Binary(&[0, 4])], UTF8, "shard/4=47"),
        // A non-ASCII value may mean anything to the server.
        (INSERT, &[Text(b"3"), Null], NOT_KEPT, "shard/3=47"),
        (INSERT, &[LARGE, Null], NOT_KEPT, "query, rejected unverifiable"),
    ] {
        let mut session = keyed();
        prepare(&mut session, "s", sql);
        session.settings.lexing.server = server;
        let bind = bind_to("s", values);
        sends(&mut session, &bind[..bind.len() - 1]);
        assert!(session.server.output.is_empty(), "a value is incomplete");
        sends(&mut session, &bind[bind.len() - 1..]);
        assert_eq!(session.server.output, bind);
        let task = sends(&mut session, &execute(""));
        assert_eq!(outcome(&session, task), expected, "{sql} {values:?} {server:?}");
    }
}

/// A pending message may change the encoding.
#[test]
fn a_bind_waits_until_the_encoding_of_its_key_is_known() {
    for (sql, values, waits) in [
        (INSERT, [Text(b"3"), LARGE], false),
        (INSERT, [LARGE, Text(b"3")], true),
        ("INSERT INTO shards (v, k) VALUES ($1, $2)", [LARGE, Text(b"3")], false),
        ("INSERT INTO shards (v, k) VALUES ($1, $2)", [Text(b"3"), LARGE], true),
    ] {
        let mut session = keyed();
        prepare(&mut session, "s", sql);
        sends(&mut session, &query("SELECT 1"));
        session.server.output.clear();
        sends(&mut session, &bind_to("s", &values));
        assert_eq!(session.server.output.is_empty(), waits, "{sql} {values:?}");
        assert_eq!(session.is_held_back(), waits);
        replies(&mut session, &ready());
        assert_eq!(session.server.output, bind_to("s", &values));
    }
}

#[test]
fn a_portal_resolves_names_by_the_path_at_bind() {
    let mut plain = keyed();
    prepare(&mut plain, "s", UPDATE);
    sends(&mut plain, &bind("", "s"));
    assert_eq!(plain.server.output, bind("", "s"), "every path includes the catalog");
    for (schemas, expected) in
        [("{pg_catalog,public}", "shard/3=47"), ("{app,pg_catalog,public}", "query, rejected unverifiable")]
    {
        let mut session = shadowed();
        prepare(&mut session, "s", UPDATE);
        sends(&mut session, &[bind("", "s"), execute("")].concat());
        let asked = session.server.output.split();
        assert!(text(&asked).contains("current_schemas(true)") && asked.ends_with(&sync()));
        let reply = reply_in_pipeline(&["47", "on", "UTF8", schemas, "public"]);
        let task = replies(&mut session, &[&reply[..], &ready()].concat());
        assert!(session.server.output.starts_with(&bind("", "s")) && session.client.output.is_empty());
        assert_eq!(outcome(&session, task), expected, "{schemas}");
    }
}

/// During a COPY the proxy cannot send a query, and the server rejects the Bind.
#[test]
fn a_bind_during_a_copy_is_forwarded() {
    let mut session = shadowed();
    prepare(&mut session, "s", UPDATE);
    sends(&mut session, &query("COPY free FROM STDIN"));
    replies(&mut session, &copies_in());
    session.server.output.clear();
    sends(&mut session, &bind("", "s"));
    assert_eq!(session.server.output, bind("", "s"));
}

#[test]
fn the_path_for_keys_is_queried_after_pending_replies() {
    let mut session = shadowed();
    sends(&mut session, &query("SELECT 1"));
    session.server.output.clear();
    assert!(sends(&mut session, &query(UPDATE)).is_none());
    assert!(session.server.output.is_empty() && session.is_held_back());
    replies(&mut session, &ready());
    assert!(text(&session.server.output).contains("current_schemas(true)"));
    let task = replies(&mut session, &reply_in_query(&["47", "on", "UTF8", "{pg_catalog,public}", "public"]));
    assert_eq!(admissions(task), "shard/3=47");
}
