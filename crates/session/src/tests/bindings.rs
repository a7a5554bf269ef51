//! Prepared and bound statements: the information that must be known first, and the messages that do not wait.

use super::keyed::{UPDATE, bind_to, keyed, shadowed};
use super::*;
use fencegate_wire::message::Bound::Text;

/// Everything that it says but its last byte.
fn all_but_one(message: &BytesMut) -> &[u8] {
    &message[..message.len() - 1]
}

#[test]
fn values_are_waited_for_only_where_keys_may_stand_in_them() {
    let [without, with] = ["UPDATE shards SET v = 1 WHERE k = 3", "INSERT INTO shards (k, v) VALUES ($1, $2)"];
    for (session, sql, waits) in [
        (keyed as fn() -> Session<OneSession>, with, true),
        (keyed, without, false),
        (|| session("47"), with, false),
        (|| session("47"), "SELECT 1", false),
    ] {
        let mut session = session();
        prepare(&mut session, "s", sql);
        let bind = bind_to("s", &[Text(b"3"), Text(b"4")]);
        says(&mut session, all_but_one(&bind));
        assert_eq!(session.server.output.is_empty(), waits, "{sql}");
        says(&mut session, &bind[bind.len() - 1..]);
        assert_eq!(session.server.output, bind, "{sql}");
    }
}

#[test]
fn the_path_that_tells_keys_is_asked_for_only_where_a_write_has_such_keys() {
    let unkeyed = || {
        let mut session = session("47");
        session.host.catalog = shadowed().host.catalog.clone();
        session
    };
    for (session, sql, asks) in [
        (shadowed as fn() -> Session<OneSession>, UPDATE, true),
        (shadowed, "INSERT INTO shards (k, v) VALUES (3, 1)", false),
        (shadowed, "SELECT 1 FROM free WHERE k = 3", false),
        (shadowed, "SELECT 1", false),
        (unkeyed, UPDATE, false),
        (unkeyed, "SELECT 1", false),
        (keyed, UPDATE, false),
    ] {
        let mut session = session();
        prepare(&mut session, "s", sql);
        says(&mut session, &bind("", "s"));
        assert_eq!(session.server.output == bind("", "s"), !asks, "{sql}");
        assert_eq!(text(&session.server.output).contains("current_schemas(true)"), asks, "{sql}");
    }
    // In a failed transaction nothing is answered, and the server refuses it.
    let mut session = shadowed();
    prepare(&mut session, "s", UPDATE);
    says(&mut session, &query("BEGIN"));
    answers(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
    says(&mut session, &query("SELECT 1"));
    answers(&mut session, &[cancelled(), at_rest(Status::Failed)].concat());
    session.server.output.clear();
    says(&mut session, &bind("", "s"));
    assert_eq!(session.server.output, bind("", "s"));
}

/// The server refuses it, if it is as the proxy reads it.
#[test]
fn several_statements_in_one_parse_are_judged_as_none_of_them() {
    for (sql, told) in [
        ("SELECT 1", "query"),
        ("", "query"),
        ("SELECT 1; DELETE FROM jobs", "query, rejected unverifiable"),
        ("SELECT 1; SELECT 2", "query, rejected unverifiable"),
    ] {
        let mut session = session("");
        says(&mut session, &[parse("", sql), bind("", ""), execute("")].concat());
        assert_eq!(session.host.told(), told, "{sql}");
    }
}
