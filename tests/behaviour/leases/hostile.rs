//! Malicious arguments and settings; tokens only increase.

use super::{Leases, call_in};

#[tokio::test]
async fn arguments_are_bounded() {
    let leases = Leases::new().await;
    let session = leases.session().await;
    let (longest, long) = ("x".repeat(512), "ü".repeat(257));
    for call in [
        "acquire(NULL, 'a', '1 min')".to_owned(),
        "acquire('', 'a', '1 min')".into(),
        format!("acquire('{long}', 'a', '1 min')"),
        "acquire('e', NULL, '1 min')".into(),
        "acquire('e', '', '1 min')".into(),
        format!("acquire('e', '{long}', '1 min')"),
        "acquire('e', 'a', NULL)".into(),
        "acquire('e', 'a', '0')".into(),
        "acquire('e', 'a', '99 ms')".into(),
        "acquire('e', 'a', '-1 min')".into(),
        "acquire('e', 'a', '24:00:01')".into(),
        "acquire('e', 'a', '178000000 years')".into(),
        "acquire('e', 'a', '-178000000 years')".into(),
        "renew(NULL, 1, '1 min')".into(),
        "renew('e', 1, NULL)".into(),
        "renew('e', 1, '1 month')".into(),
        "release(NULL, 1)".into(),
        "leader('')".into(),
        "proclaim('e', 1, NULL)".into(),
    ] {
        assert_eq!(call_in(&session, &call).await, "22023", "{call}");
    }
    assert_eq!(leases.ask("SELECT count(*) FROM fencegate_state.lease").await, "0");
    assert_eq!(call_in(&session, &format!("acquire('{longest}', '{longest}', '24 hours')")).await, "1");
    assert_eq!(call_in(&session, &format!("release('{longest}', 1)")).await, "t");
    for token in ["NULL", "0", "-1", "9223372036854775807"] {
        for election in ["e", "none"] {
            assert_eq!(call_in(&session, &format!("renew('{election}', {token}, '1 min')")).await, "LF001", "{token}");
            assert_eq!(call_in(&session, &format!("release('{election}', {token})")).await, "f", "{token}");
        }
        call_in(&session, "acquire('e', 'a', '1 min')").await;
    }
}

#[tokio::test]
async fn a_name_may_have_any_bytes() {
    let leases = Leases::new().await;
    let session = leases.session().await;
    let names = [
        "'", "\"", "\\", "%", "_", "*", "a b", "a\nb", "\u{1}", "é", "e\u{301}", "ﬀ", "A", "a", "/", "{init}", "{}",
        "$1", "--",
    ];
    for (number, name) in (1..).zip(names) {
        let quoted = name.replace('\'', "''");
        let token: i64 = call_in(&session, &format!("acquire('{quoted}', '{quoted}', '1 min')")).await.parse().unwrap();
        assert_eq!(token, number, "{name:?} is a separate election");
        assert_eq!(call_in(&session, &format!("leader('{quoted}')")).await, name);
    }
}

/// The functions run as the owner of the schema, so they must not use the caller's settings or objects.
#[tokio::test]
async fn the_callers_settings_and_objects_have_no_effect() {
    let leases = Leases::new().await;
    let session = leases.session().await;
    leases.run("GRANT CREATE ON SCHEMA public TO PUBLIC").await;
    session
        .batch_execute(
            "CREATE FUNCTION public.trap() RETURNS boolean LANGUAGE plpgsql AS \
               'BEGIN RAISE EXCEPTION ''run as %'', current_user; END'; \
             CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
               $$SELECT '2000-01-01'::timestamptz WHERE public.trap()$$; \
             CREATE FUNCTION public.is_less(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT public.trap()'; \
             CREATE OPERATOR public.> (FUNCTION = public.is_less, LEFTARG = timestamptz, RIGHTARG = timestamptz); \
             CREATE TEMPORARY TABLE lease (election text, token bigint); \
             SET search_path = pg_temp, public, pg_catalog; SET standard_conforming_strings = off; SET transform_null_equals = on; \
             SET lock_timeout = 0; SET TimeZone = 'America/New_York'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = sql_standard",
        )
        .await
        .unwrap();
    assert_eq!(call_in(&session, "acquire('e', 'a', '1 min')").await, "1");
    assert_eq!(call_in(&session, "acquire('e', 'b', '1 min')").await, "");
    assert_ne!(call_in(&session, "renew('e', 1, '1 min')").await, "LF001");
    assert_eq!(call_in(&session, "renew('e', 2, '1 min')").await, "LF001");
    assert_eq!(call_in(&session, "leader('e')").await, "a");
    assert_eq!(call_in(&session, "release('e', 1)").await, "t");
}

#[tokio::test]
async fn tokens_grow_past_rows_that_were_pruned_or_restored() {
    let leases = Leases::new().await;
    for holder in ["a", "b", "c"] {
        leases.call(&format!("acquire('e', '{holder}', '1 min')")).await;
        leases.age("e", "1 hour").await;
    }
    // The row is pruned when another election's lease is issued, 30 days later.
    leases.run("CREATE TABLE dump AS SELECT * FROM fencegate_state.lease").await;
    leases.age("e", "31 days").await;
    assert_eq!(leases.call("acquire('other', 'a', '1 min')").await, "4");
    assert_eq!(leases.ask("SELECT string_agg(election, ',') FROM fencegate_state.lease").await, "other");
    assert_eq!(leases.history("e").await, "");
    assert_eq!(leases.call("acquire('e', 'd', '1 min')").await, "5");
    // An older row replaces the newer one.
    leases
        .run("DELETE FROM fencegate_state.lease WHERE election = 'e'; INSERT INTO fencegate_state.lease SELECT * FROM dump")
        .await;
    assert_eq!(leases.call("acquire('e', 'e', '1 min')").await, "6");
    // The rows are restored but the sequence is not. Rows above the sequence are not pruned, and the next token is the
    // row's plus one.
    leases.run("UPDATE fencegate_state.lease SET token = 1000 WHERE election = 'e'").await;
    leases.age("e", "31 days").await;
    assert_eq!(leases.call("acquire('third', 'a', '1 min')").await, "7");
    assert_eq!(leases.call("acquire('e', 'f', '1 min')").await, "1001");
}

#[tokio::test]
async fn the_last_token_is_not_followed_by_the_first() {
    let leases = Leases::new().await;
    leases.call("acquire('e', 'a', '1 min')").await;
    leases.run("UPDATE fencegate_state.lease SET token = 9223372036854775807").await;
    leases.age("e", "1 hour").await;
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "22003");
    leases.run("SELECT setval('fencegate_state.lease_token', 9223372036854775807)").await;
    assert_eq!(leases.call("acquire('f', 'b', '1 min')").await, "2200H");
}

#[tokio::test]
async fn stored_rows_are_bounded() {
    let leases = Leases::new().await;
    let session = leases.session().await;
    for token in 1..=120 {
        assert_eq!(call_in(&session, "acquire('e', 'a', '1 min')").await, token.to_string());
        assert_eq!(call_in(&session, &format!("release('e', {token})")).await, "t");
    }
    assert_eq!(leases.ask("SELECT count(*) || ' ' || max(token) FROM fencegate_state.lease_history").await, "100 120");
}
