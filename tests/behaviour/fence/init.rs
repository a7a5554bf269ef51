//! `init`, and what it creates.

use crate::fence::reason;
use crate::fence::server::{World, connect};
use crate::support::fenced::ok;
use crate::support::identity::one;
use crate::support::proxy::{NO_POLICIES, fencegate};
use crate::support::{Options, Postgres, Proxy, Release, Wire, until};
use fencegate::fence::{Refusal, Remedy};

#[tokio::test]
async fn token_function_reads_both_forms() {
    let world = World::new().await;
    let client = connect(&world.config(&format!("{}_app", world.database))).await;
    for (value, resource, expected) in [
        ("", "scheduler", "none"),
        ("47", "scheduler", "47"),
        (" 47 ", "scheduler", "47"),
        ("scheduler=47, shard/3=55", "scheduler", "47"),
        (" scheduler = 47 ,\tshard/3=55 ", "shard/3", "55"),
        ("scheduler=47, shard/3=55", "shard/30", "none"),
        ("9223372036854775807", "x", "9223372036854775807"),
        ("9223372036854775808", "x", "none"),
        ("0", "x", "none"),
        ("x=y", "x", "none"),
        ("x=1=2", "x", "none"),
    ] {
        let query = format!(
            "SELECT set_config('lease.fence', '{value}', false); SELECT coalesce(fencegate.token('{resource}')::text, 'none')"
        );
        let messages = client.simple_query(&query).await.unwrap();
        let row = messages.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(row.last(), Some(expected), "{value:?} for {resource}");
    }
    let fresh = connect(&world.config(&format!("{}_app", world.database))).await;
    assert_eq!(one(&fresh, "SELECT fencegate.token('x') IS NULL").await, ["t"]);
    assert!(fresh.batch_execute("SELECT * FROM fencegate.epoch").await.is_err(), "no table privileges");
}

#[tokio::test]
async fn init_may_be_run_again_and_at_once() {
    let world = World::bare().await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let run = || fencegate::fence::init(&config, Some(&control));
    let (a, b, c) = tokio::join!(run(), run(), run());
    for report in [a.unwrap(), b.unwrap(), c.unwrap()] {
        assert_eq!(report.role, control);
        assert!(report.to_run.is_empty());
    }
    assert_eq!(world.ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'fencegate' AND tableowner = current_database() || '_control'").await, "8");
    let again = run().await.unwrap();
    assert!(!again.created && again.granted.is_empty());

    // A role that may create a schema, but not grant.
    let poor = World::bare().await;
    poor.run(&format!("GRANT CREATE ON DATABASE {} TO {}", poor.database, poor.control())).await;
    let report = fencegate::fence::init(&poor.control_config(&poor.control()), None).await.unwrap();
    assert!(report.created);
    assert_eq!(report.to_run.len(), 2);
    poor.run(&report.to_run.join(";")).await;
    assert!(fencegate::fence::init(&poor.control_config(&poor.control()), None).await.unwrap().to_run.is_empty());
}

/// Whoever holds a lock on the tables, a backup or a writer that the guard has looked at, is not waited for: those who
/// come after would wait as well.
#[tokio::test]
async fn init_again_waits_for_nobody_who_uses_the_tables() {
    let world = World::new().await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let tables = "fencegate.epoch, fencegate.admission, fencegate.proxy, fencegate.reset";
    world.run(&format!("BEGIN; LOCK TABLE {tables} IN ROW EXCLUSIVE MODE")).await;
    fencegate::fence::init(&config, Some(&control)).await.unwrap();
    // What has to be changed waits, and lets others pass meanwhile.
    let (proxy, role) = (world.proxy("p1"), format!("{}_app", world.database));
    let session = world.session(&proxy).await;
    let (changed, ()) = tokio::join!(fencegate::fence::init(&config, Some(&role)), async {
        session.admit(&world.resource, 1).await.unwrap();
        world.run("COMMIT").await;
    });
    assert_eq!(changed.unwrap().role, role);
    let owners = "SELECT string_agg(DISTINCT tableowner, ',') FROM pg_tables WHERE schemaname = 'fencegate'";
    assert_eq!(world.ask(owners).await, role);
}

/// The schema as version 2 had it, in which somebody is admitted.
#[tokio::test]
async fn the_schema_of_version_2_is_upgraded_and_keeps_what_it_has() {
    let world = World::new().await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let as_it_was = "ALTER TABLE fencegate.epoch DROP COLUMN policy_loaded; ALTER TABLE fencegate.admission DROP COLUMN ending; \
        DROP INDEX fencegate.admission_epoch; CREATE INDEX admission_resource ON fencegate.admission (resource); \
        CREATE INDEX admission_pid ON fencegate.admission (pid); COMMENT ON SCHEMA fencegate IS 'fencegate schema version 2'; \
        INSERT INTO fencegate.epoch (resource, token, drained, policy_hash) VALUES ('scheduler', 7, true, 'a')";
    world.run(as_it_was).await;
    let session = world.session(&world.proxy("p1")).await;
    assert!(reason(session.admit(&world.resource, 7).await).contains("run `fencegate init`"));
    let run = || fencegate::fence::init(&config, Some(&control));
    let (one, two) = tokio::join!(run(), run());
    assert!([one.unwrap(), two.unwrap()].iter().any(|report| report.upgraded == Some((2, 4))));
    assert_eq!(run().await.unwrap().upgraded, None);
    assert_eq!(world.epoch().await, "(1,7,t)");
    let indexes = "SELECT string_agg(indexname, ' ' ORDER BY indexname) FROM pg_indexes \
        WHERE schemaname = 'fencegate' AND tablename = 'admission'";
    assert_eq!(world.ask(indexes).await, "admission_epoch admission_pkey");
    // The init of an older program brings them back.
    world.run("CREATE INDEX admission_pid ON fencegate.admission (pid)").await;
    run().await.unwrap();
    assert_eq!(world.ask(indexes).await, "admission_epoch admission_pkey");
    let session = world.session(&world.proxy("p2")).await;
    session.admit(&world.resource, 7).await.unwrap();
    session.admit(&world.resource, 8).await.unwrap();
}

/// Who goes back to an older program runs its `init`; nothing is taken away, so that the newer one finds it again.
#[tokio::test]
async fn the_schema_of_a_newer_program_is_told_as_such() {
    let world = World::new().await;
    world.run("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 10'").await;
    let session = world.session(&world.proxy("p1")).await;
    let refused = session.admit(&world.resource, 1).await;
    let Err(Refusal::Unavailable { cause, .. }) = refused else { panic!("{refused:?}") };
    assert!(cause.reason.contains("version 10"), "{cause}");
    assert_eq!(cause.remedy, Remedy::Upgrade);
    fencegate::fence::init(&world.control_config("postgres"), Some(&world.control())).await.unwrap();
    world.session(&world.proxy("p2")).await.admit(&world.resource, 1).await.unwrap();
}

/// The master of a managed service: it creates roles and databases, and is no superuser.
#[tokio::test]
async fn the_master_of_a_managed_service_needs_nobody_else() {
    let world = World::bare().await;
    let (database, master) = (world.database.clone(), format!("{}_master", world.database));
    world
        .run(&format!("CREATE ROLE {master} LOGIN CREATEROLE CREATEDB; ALTER DATABASE {database} OWNER TO {master}"))
        .await;
    let client = connect(&world.config(&master)).await;
    let role = format!("{database}_gate");
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let config = world.control_config(&master);
    let report = fencegate::fence::init(&config, Some(&role)).await.unwrap();
    assert!(report.created && report.to_run.is_empty(), "{report:?}");
    assert_eq!(report.granted, ["pg_read_all_stats", "pg_signal_backend"]);
    client.batch_execute(&format!("CREATE ROLE {database}_leader LOGIN")).await.unwrap();
    let patterns = fencegate::fence::grant_leases(&config, &format!("{database}_leader"), "cron/*").await.unwrap();
    assert_eq!(patterns, ["cron/*"]);
    // Again, as after an upgrade: the schema is the role's by now.
    assert!(!fencegate::fence::init(&config, Some(&role)).await.unwrap().created);
    let lent = format!(
        "SELECT pg_has_role('{master}', '{role}', 'MEMBER') OR has_database_privilege('{role}', '{database}', 'CREATE')"
    );
    assert_eq!(world.ask(&lent).await, "f", "what was lent is taken back");
    let owner = "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'fencegate'";
    assert_eq!(world.ask(owner).await, role);

    // A master that may not do so is told what to have run.
    let poor = World::bare().await;
    let (database, control) = (poor.database.clone(), poor.control());
    poor.run(&format!("CREATE ROLE {database}_master LOGIN; ALTER DATABASE {database} OWNER TO {database}_master"))
        .await;
    let error =
        fencegate::fence::init(&poor.control_config(&format!("{database}_master")), Some(&control)).await.unwrap_err();
    assert!(error.to_string().contains(&format!("run: GRANT \"{control}\" TO {database}_master")), "{error}");
}

/// Since version 16 the master has only those roles to grant that were given to it for that.
#[test]
#[ignore = "needs what comes from the network: make soak"]
fn the_master_of_a_managed_service_on_18() {
    let postgres = Postgres::start(Options::default().release(Release::Eighteen));
    postgres.sql("CREATE ROLE master LOGIN CREATEROLE CREATEDB; ALTER DATABASE postgres OWNER TO master");
    let address = format!("postgres://master@127.0.0.1:{}/postgres", postgres.port());
    ok(&mut Wire::login(&postgres.address(), "master", "postgres"), "CREATE ROLE gate LOGIN");
    let init = || {
        let output = fencegate().args(["init", "--control", &address, "--role", "gate"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
    };
    let (code, said) = init();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("GRANT pg_read_all_stats TO \"gate\";\nGRANT pg_signal_backend TO \"gate\";"), "{said}");
    postgres.sql("GRANT pg_monitor, pg_signal_backend TO master WITH ADMIN OPTION");
    let (code, said) = init();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("granted pg_monitor to gate") && said.contains("granted pg_signal_backend to gate"),
        "{said}"
    );
    let lent = "SELECT pg_has_role('master', 'gate', 'SET') OR has_database_privilege('gate', 'postgres', 'CREATE')";
    assert_eq!(postgres.value(lent), "f", "what was lent is taken back");
}

#[test]
fn a_proxy_is_not_taken_for_the_server() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE ROLE app LOGIN");
    let proxy = Proxy::start(&postgres, NO_POLICIES, &[]);
    let (host, port) = proxy.address().host_and_port();
    for role in ["postgres", "app"] {
        let output =
            fencegate().args(["init", "--control", &format!("postgres://{role}@{host}:{port}/postgres")]).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("this is a fencegate, not the server behind it"), "{said}");
    }
    assert_eq!(postgres.value("SELECT to_regnamespace('fencegate') IS NULL"), "t");
}

#[tokio::test]
async fn a_schema_of_a_stranger_is_not_taken_over() {
    let world = World::bare().await;
    let (database, control) = (world.database.clone(), world.control());
    world
        .run(&format!("CREATE ROLE {database}_evil LOGIN; GRANT CREATE ON DATABASE {database} TO {database}_evil"))
        .await;
    let evil = connect(&world.config(&format!("{database}_evil"))).await;
    let init = async || fencegate::fence::init(&world.control_config("postgres"), Some(&control)).await;
    let is_refused = |refused: Result<_, fencegate::fence::InitError>| {
        refused.is_err_and(|error| error.to_string().contains(&format!("belongs to role {database}_evil")))
    };
    // It comes in between, and is committed only when `init` has looked.
    evil.batch_execute("BEGIN; CREATE SCHEMA fencegate").await.unwrap();
    let waits =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
    let (refused, ()) = tokio::join!(init(), async {
        until("init waits", async || world.ask(waits).await == "t").await;
        evil.batch_execute("COMMIT").await.unwrap();
    });
    assert!(is_refused(refused));
    assert!(is_refused(init().await));
    world.run(&format!("ALTER SCHEMA fencegate OWNER TO {control}")).await;
    world
        .run(&format!("CREATE TABLE fencegate.epoch (n int); ALTER TABLE fencegate.epoch OWNER TO {database}_evil"))
        .await;
    assert!(is_refused(init().await));
}

/// One that does not inherit keeps the membership that it had.
#[tokio::test]
async fn a_master_keeps_what_it_had() {
    let world = World::bare().await;
    let (database, control) = (world.database.clone(), world.control());
    let master = format!("{database}_master");
    world.run(&format!("CREATE ROLE {master} LOGIN CREATEROLE NOINHERIT; GRANT {control} TO {master} WITH ADMIN OPTION; ALTER DATABASE {database} OWNER TO {master}")).await;
    fencegate::fence::init(&world.control_config(&master), Some(&control)).await.unwrap();
    let has = format!(
        "SELECT admin_option FROM pg_auth_members WHERE member = '{master}'::regrole AND roleid = '{control}'::regrole"
    );
    assert_eq!(world.ask(&has).await, "t");
}
