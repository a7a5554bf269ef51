//! Keys: of the values that are bound to a statement, and by the search path.

use super::*;
use fencegate_statement::ServerEncoding;
use fencegate_wire::message::Bound::{self, Binary, Null, Text};

const KEYED: &str = "version: 1\nresources:\n  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}\n";
pub(super) const INSERT: &str = "INSERT INTO shards (k, v) VALUES ($1, $2)";
pub(super) const UPDATE: &str = "UPDATE shards SET v = 1 WHERE k = 3";
/// An integer that is not all ASCII.
const LARGE: Bound = Binary(&[0, 0, 0, 200]);

pub(super) fn keyed() -> Session<OneSession> {
    let mut session = session_under(KEYED, "47", Path::new(Some("public"), false));
    let table = session.host.policies.resources[0].tables[0].name.clone();
    session.host.catalog = Arc::new(Catalog::with_views([(table, true)], []));
    session
}

/// Somebody has made an operator = in the schema `app`.
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
    if task.is_some() { admissions(task) } else { session.host.told() }
}

#[test]
fn the_key_is_the_value_that_is_bound() {
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
        says(&mut session, &bind[..bind.len() - 1]);
        assert!(session.server.output.is_empty(), "not all values are there");
        says(&mut session, &bind[bind.len() - 1..]);
        assert_eq!(session.server.output, bind);
        let task = says(&mut session, &execute(""));
        assert_eq!(outcome(&session, task), expected, "{sql} {values:?} {server:?}");
    }
}

/// A pending message may change the encoding.
#[test]
fn a_key_waits_until_it_is_known_how_it_is_read() {
    for (sql, values, waits) in [
        (INSERT, [Text(b"3"), LARGE], false),
        (INSERT, [LARGE, Text(b"3")], true),
        ("INSERT INTO shards (v, k) VALUES ($1, $2)", [LARGE, Text(b"3")], false),
        ("INSERT INTO shards (v, k) VALUES ($1, $2)", [Text(b"3"), LARGE], true),
    ] {
        let mut session = keyed();
        prepare(&mut session, "s", sql);
        says(&mut session, &query("SELECT 1"));
        session.server.output.clear();
        says(&mut session, &bind_to("s", &values));
        assert_eq!(session.server.output.is_empty(), waits, "{sql} {values:?}");
        assert_eq!(session.is_held_back(), waits);
        answers(&mut session, &ready());
        assert_eq!(session.server.output, bind_to("s", &values));
    }
}

#[test]
fn the_names_in_a_portal_are_those_of_the_path_when_it_is_bound() {
    let mut plain = keyed();
    prepare(&mut plain, "s", UPDATE);
    says(&mut plain, &bind("", "s"));
    assert_eq!(plain.server.output, bind("", "s"), "any path leads to the catalog");
    for (schemas, expected) in
        [("{pg_catalog,public}", "shard/3=47"), ("{app,pg_catalog,public}", "query, rejected unverifiable")]
    {
        let mut session = shadowed();
        prepare(&mut session, "s", UPDATE);
        says(&mut session, &[bind("", "s"), execute("")].concat());
        let asked = session.server.output.split();
        assert!(text(&asked).contains("current_schemas(true)") && asked.ends_with(&sync()));
        let told = told_in_pipeline(&["47", "on", "UTF8", schemas, "public"]);
        let task = answers(&mut session, &[&told[..], &ready()].concat());
        assert!(session.server.output.starts_with(&bind("", "s")) && session.client.output.is_empty());
        assert_eq!(outcome(&session, task), expected, "{schemas}");
    }
}

/// Nothing can be asked then, and the server refuses it.
#[test]
fn what_is_bound_during_a_copy_passes() {
    let mut session = shadowed();
    prepare(&mut session, "s", UPDATE);
    says(&mut session, &query("COPY free FROM STDIN"));
    answers(&mut session, &copies_in());
    session.server.output.clear();
    says(&mut session, &bind("", "s"));
    assert_eq!(session.server.output, bind("", "s"));
}

#[test]
fn the_path_that_tells_keys_is_asked_for_once_nothing_is_owed() {
    let mut session = shadowed();
    says(&mut session, &query("SELECT 1"));
    session.server.output.clear();
    assert!(says(&mut session, &query(UPDATE)).is_none());
    assert!(session.server.output.is_empty() && session.is_held_back());
    answers(&mut session, &ready());
    assert!(text(&session.server.output).contains("current_schemas(true)"));
    let task = answers(&mut session, &told_in_query(&["47", "on", "UTF8", "{pg_catalog,public}", "public"]));
    assert_eq!(admissions(task), "shard/3=47");
}
