//! Only permitted roles may lead or change a lease.

use super::{Leases, call_in};
use crate::fence::server::connect;
use crate::support::fenced::{code, ok};
use crate::support::postgres::SUPERUSER;
use crate::support::programs::run;
use crate::support::proxy::fencegate;
use crate::support::ticks;
use crate::support::{Options, Postgres, Release, Wire};

/// Calls for election `e`.
const CALLS: [&str; 5] =
    ["acquire('e', 'a', '1 min')", "renew('e', 1, '1 min')", "release('e', 1)", "proclaim('e', 1, 'x')", "leader('e')"];

#[tokio::test]
async fn another_role_cannot_change_anything() {
    let leases = Leases::new().await;
    leases.run("CREATE ROLE stranger LOGIN").await;
    let stranger = connect(&leases.config("stranger")).await;
    for call in CALLS.into_iter().chain(["leases()", "renew_all('{e}', '{1}', '1 min')"]) {
        assert_eq!(call_in(&stranger, call).await, "42501", "{call}");
    }
    let leader = leases.session().await;
    for session in [&stranger, &leader] {
        for statement in [
            "SELECT FROM fencegate_state.lease",
            "INSERT INTO fencegate_state.lease (election) VALUES ('x')",
            "UPDATE fencegate_state.lease SET token = 1",
            "DELETE FROM fencegate_state.lease",
            "TRUNCATE fencegate_state.lease",
            "INSERT INTO fencegate_state.leased VALUES ('scheduler', 'mine')",
            "SELECT fencegate.lease_fence('x', 1, true, now())",
            "SELECT fencegate.end_holders('x', '{ShareLock}')",
            "SELECT FROM fencegate_state.lease_history",
            "DELETE FROM fencegate_state.lease_history",
            "SELECT FROM fencegate_state.lease_grant",
            "INSERT INTO fencegate_state.lease_grant VALUES ('stranger', '*')",
            "SELECT nextval('fencegate_state.lease_token')",
            "SELECT setval('fencegate_state.lease_token', 1)",
            "SELECT last_value FROM fencegate_state.lease_token",
            "SELECT fencegate.lease_role('e')",
            "SELECT fencegate.lease_caller()",
            "SELECT fencegate.lease_may('a', 'e')",
            "SELECT fencegate.lease_time('1 min')",
            "SELECT fencegate.lease_holder('a')",
            "SELECT fencegate.lease_prune()",
            "SELECT fencegate.lease_durable()",
            "SELECT fencegate.lease_day(now())",
            "SELECT fencegate.lease_extend('e', now(), '1 min')",
            "SELECT fencegate.lease_ended(NULL, now(), 'released')",
        ] {
            let error = session.batch_execute(statement).await.expect_err(statement);
            assert_eq!(error.code().unwrap().code(), "42501", "{statement}");
        }
    }
    let callable = "SELECT coalesce(string_agg(proname, ' ' ORDER BY proname), '') FROM pg_proc WHERE pronamespace = 'fencegate'::regnamespace \
        AND has_function_privilege('stranger', oid, 'EXECUTE')";
    assert_eq!(
        leases.ask(callable).await,
        "check_write claim leased_resources missing_token_hint own_pid own_start presented token"
    );
    leases.run("DROP ROLE stranger").await;
}

#[tokio::test]
async fn a_pattern_names_the_elections() {
    let leases = Leases::new().await;
    let role = format!("{}_jobs", leases.database);
    leases.run(&format!("CREATE ROLE {role} LOGIN")).await;
    assert_eq!(leases.may_lead(&role, "job/*").await, ["job/*"]);
    assert_eq!(leases.may_lead(&role, "job/*").await, ["job/*"]);
    assert_eq!(leases.may_lead(&role, r"a_b%\*").await, [r"a_b%\*", "job/*"]);
    let session = connect(&leases.config(&role)).await;
    for (election, may) in [
        ("job/1", true),
        ("job/", true),
        ("job/1/2", true),
        ("job", false),
        ("xjob/1", false),
        ("JOB/1", false),
        (r"a_b%\", true),
        (r"a_b%\x", true),
        (r"axb%\", false),
        (r"a_bx\", false),
        ("other", false),
    ] {
        let won = call_in(&session, &format!("acquire('{election}', 'a', '1 min')")).await;
        assert_eq!(won != "42501", may, "{election}: {won}");
    }
    for call in CALLS {
        assert_eq!(call_in(&session, call).await, "42501", "{call}");
    }
}

/// The current role counts, not the login role. Memberships of that role count too.
#[tokio::test]
async fn the_current_role_counts() {
    let leases = Leases::new().await;
    let (one, two, login) =
        (format!("{}_1", leases.database), format!("{}_2", leases.database), format!("{}_l", leases.database));
    leases
        .run(&format!("CREATE ROLE {one}; CREATE ROLE {two}; CREATE ROLE {login} LOGIN; GRANT {one}, {two} TO {login}"))
        .await;
    leases.may_lead(&one, "1").await;
    leases.may_lead(&two, "2").await;
    let session = connect(&leases.config(&login)).await;
    assert_eq!(call_in(&session, "acquire('1', 'a', '1 min')").await, "1");
    assert_eq!(call_in(&session, "acquire('2', 'a', '1 min')").await, "2");
    session.batch_execute(&format!("SET ROLE {one}")).await.unwrap();
    assert_eq!(call_in(&session, "acquire('1', 'a', '1 min')").await, "1");
    assert_eq!(call_in(&session, "acquire('2', 'a', '1 min')").await, "42501");
    assert_eq!(leases.ask("SELECT role FROM fencegate_state.lease WHERE election = '1'").await, login);
    let control = connect(&leases.config(&leases.control())).await;
    assert_eq!(call_in(&control, "leader('1')").await, "42501", "the owner has no grant");
    assert_eq!(call_in(&control, "leases()").await, "1", "the owner sees all leases");
}

/// A function in an index runs in the session of the role that analyzes the table. For autovacuum this is a superuser.
#[tokio::test]
async fn code_in_a_superusers_session_may_not_lead() {
    let leases = Leases::new().await;
    let (role, schema) = (format!("{}_crons", leases.database), "its_own");
    leases.run(&format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {role}")).await;
    leases.may_lead(&role, "cron/*").await;
    let session = connect(&leases.config(&role)).await;
    session
        .batch_execute(&format!(
            "CREATE FUNCTION {schema}.steal(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN \
               IF session_user = '{role}' THEN RETURN i; END IF; \
               PERFORM fencegate.acquire('other', 'thief', '1 min'); RETURN i; END $$; \
             CREATE TABLE {schema}.t (i int); INSERT INTO {schema}.t VALUES (1); CREATE INDEX ON {schema}.t ({schema}.steal(i))"
        ))
        .await
        .unwrap();
    let superuser = connect(&leases.config("postgres")).await;
    let error = superuser.batch_execute(&format!("ANALYZE {schema}.t")).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42501", "{error}");
    assert_eq!(leases.ask("SELECT count(*) FROM fencegate_state.lease WHERE election = 'other'").await, "0");
}

/// The superuser `postgres` owns the schema, and autovacuum analyzes as this role.
#[test]
fn a_superuser_that_owns_the_schema_may_not_lead() {
    superuser_that_owns_the_schema_may_lead_nothing(Options::default());
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn a_superuser_that_owns_the_schema_may_not_lead_on_18() {
    superuser_that_owns_the_schema_may_lead_nothing(Options::default().release(Release::Eighteen));
}

fn superuser_that_owns_the_schema_may_lead_nothing(options: Options) {
    let postgres = Postgres::start(options);
    ticks::init(&postgres, SUPERUSER);
    postgres.sql("CREATE ROLE worker LOGIN; CREATE SCHEMA its_own AUTHORIZATION worker");
    ticks::may_lead(&postgres, "worker", "job/*");
    let mut worker = Wire::login(&postgres.socket(), "worker", "postgres");
    for call in CALLS {
        let call = call.replace("'e'", "'scheduler'");
        let steal = format!(
            "DROP TABLE IF EXISTS its_own.t; CREATE TABLE its_own.t (i int); INSERT INTO its_own.t VALUES (1); \
             CREATE OR REPLACE FUNCTION its_own.steal(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN \
               IF session_user <> 'worker' THEN PERFORM * FROM fencegate.{call}; END IF; RETURN i; END $$; \
             CREATE INDEX ON its_own.t (its_own.steal(i))"
        );
        ok(&mut worker, &steal);
        let mut superuser = Wire::login(&postgres.socket(), SUPERUSER, "postgres");
        assert_eq!(code(&mut superuser, "ANALYZE its_own.t"), "42501", "{call}");
    }
    assert_eq!(postgres.value("SELECT count(*) FROM fencegate_state.lease"), "0");
    assert_eq!(
        code(
            &mut Wire::login(&postgres.socket(), SUPERUSER, "postgres"),
            "SELECT fencegate.acquire('e', 'a', '1 min')"
        ),
        "42501"
    );
}

#[tokio::test]
async fn init_reports_the_roles_that_may_lead() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE ROLE app LOGIN");
    let control = postgres.control_url() + "postgres";
    let init = |arguments: &[&str]| {
        let output = run(fencegate().args(["init", "--control", &control]).args(arguments));
        String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned()
    };
    assert_eq!(init(&["--leases-for", "app", "--elections", "cron/*"]), "app may lead cron/*");
    assert_eq!(init(&["--leases-for", "app"]), "app may lead *, cron/*");
    let output = fencegate().args(["init", "--control", &control, "--leases-for", "nobody"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("role \"nobody\" does not exist"), "{told}");
    let output = fencegate().args(["init", "--control", &control, "--elections", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
