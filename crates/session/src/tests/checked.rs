//! Strings in which an earlier statement may change the token without showing it.

use super::*;

const CHECK: &str = "DO LANGUAGE plpgsql $fencegate$BEGIN IF pg_catalog.int8eq(fencegate.token('scheduler'), 47) IS NOT TRUE \
    THEN RAISE EXCEPTION USING ERRCODE='LF003', MESSAGE='an earlier statement of the same string has changed lease.fence', \
    DETAIL='resource=scheduler presented=47', HINT='Set the token in a separate query.'; END IF; END$fencegate$";

#[test]
fn the_server_checks_the_token_before_the_write() {
    let policies = POLICIES.to_owned() + "opaque: allow\n";
    let mut session = session_under(&policies, "47", Path::new(Some("public"), false));
    let (sets, writes) = ("SELECT set_config(n, '1', false) FROM t", "DELETE FROM jobs; PREPARE p AS SELECT 1");
    let task = sends(&mut session, &query(&format!("{sets}; {writes}")));
    assert_eq!(admissions(task), "scheduler=47");
    admit(&session, "scheduler", 47);
    session.done(Done::Admit(Ok(())));
    assert!(settle(&mut session).is_none());
    assert_eq!(session.server.output.split(), query(&format!("{sets}; {CHECK}; {writes}")));
    assert_eq!(session.host.notifications(), "query");
    // The meaning of the prepared name is uncertain until the PREPARE has completed.
    sends(&mut session, &query("EXECUTE p"));
    assert!(session.server.output.is_empty() && session.is_held_back());
    let [set, check, written, prepared] = ["SELECT 1", "DO", "DELETE 1", "PREPARE"].map(completes);
    replies(&mut session, &[&set[..], &check, &written, &prepared, &ready()].concat());
    assert_eq!(
        session.client.output,
        [set, written, prepared, ready()].concat(),
        "the reply to the check is not forwarded"
    );
    assert_eq!(session.server.output, query("EXECUTE p"));
}
