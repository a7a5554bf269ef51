//! Prepared and bound statements: the information that must be known first, and the messages that do not wait.

use super::keyed::{UPDATE, bind_to, keyed, shadowed};
use super::*;
use fencegate_wire::message::Bound::Text;

/// The message without its last byte.
fn all_but_one(message: &BytesMut) -> &[u8] {
    &message[..message.len() - 1]
}

#[test]
fn a_bind_waits_for_its_values_only_if_they_may_contain_keys() {
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
        sends(&mut session, all_but_one(&bind));
        assert_eq!(session.server.output.is_empty(), waits, "{sql}");
        sends(&mut session, &bind[bind.len() - 1..]);
        assert_eq!(session.server.output, bind, "{sql}");
    }
}

#[test]
fn the_path_is_queried_only_if_a_key_depends_on_an_operator() {
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
        sends(&mut session, &bind("", "s"));
        assert_eq!(session.server.output == bind("", "s"), !asks, "{sql}");
        assert_eq!(text(&session.server.output).contains("current_schemas(true)"), asks, "{sql}");
    }
    // In a failed transaction the server would reject a query, and rejects the Bind too.
    let mut session = shadowed();
    prepare(&mut session, "s", UPDATE);
    sends(&mut session, &query("BEGIN"));
    replies(&mut session, &[completes("BEGIN"), at_rest(Status::Transaction)].concat());
    sends(&mut session, &query("SELECT 1"));
    replies(&mut session, &[cancelled(), at_rest(Status::Failed)].concat());
    session.server.output.clear();
    sends(&mut session, &bind("", "s"));
    assert_eq!(session.server.output, bind("", "s"));
}

/// The server rejects such a Parse if it reads the text as the proxy does.
#[test]
fn several_statements_in_one_parse_are_unverifiable() {
    for (sql, notified) in [
        ("SELECT 1", "query"),
        ("", "query"),
        ("SELECT 1; DELETE FROM jobs", "query, rejected unverifiable"),
        ("SELECT 1; SELECT 2", "query, rejected unverifiable"),
    ] {
        let mut session = session("");
        sends(&mut session, &[parse("", sql), bind("", ""), execute("")].concat());
        assert_eq!(session.host.notifications(), notified, "{sql}");
    }
}
