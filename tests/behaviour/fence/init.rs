//! `init`, and the objects that it creates.

use crate::fence::reason;
use crate::fence::server::{VERSION_5, World, connect};
use crate::support::fenced::ok;
use crate::support::identity::one;
use crate::support::proxy::{NO_POLICIES, fencegate};
use crate::support::{Options, Postgres, Proxy, Release, Wire, until};
use fencegate_fence::{FenceError, Remedy};

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
    assert!(fresh.batch_execute("SELECT * FROM fencegate_state.epoch").await.is_err(), "no table privileges");
}

#[tokio::test]
async fn init_may_be_run_again_and_at_once() {
    let world = World::bare().await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let run = || fencegate_fence::init(&config, Some(&control));
    let (a, b, c) = tokio::join!(run(), run(), run());
    for report in [a.unwrap(), b.unwrap(), c.unwrap()] {
        assert_eq!(report.role, control);
        assert!(report.to_run.is_empty());
    }
    assert_eq!(world.ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'fencegate_state' AND tableowner = current_database() || '_control'").await, "8");
    let again = run().await.unwrap();
    assert!(!again.created && again.granted.is_empty());

    // A role that may create a schema, but may not grant.
    let poor = World::bare().await;
    poor.run(&format!("GRANT CREATE ON DATABASE {} TO {}", poor.database, poor.control())).await;
    let report = fencegate_fence::init(&poor.control_config(&poor.control()), None).await.unwrap();
    assert!(report.created);
    assert_eq!(report.to_run.len(), 2);
    poor.run(&report.to_run.join(";")).await;
    assert!(fencegate_fence::init(&poor.control_config(&poor.control()), None).await.unwrap().to_run.is_empty());
}

/// As a superuser runs it for an upgrade or for `--leases-for`, while proxies run.
#[tokio::test]
async fn init_without_a_role_keeps_the_owner() {
    let world = World::new().await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let init = async |role: Option<&str>| fencegate_fence::init(&config, role).await;
    let session = world.session(&world.proxy("p1")).await;
    session.admit(&world.resource, 1).await.unwrap();
    let owners = "SELECT string_agg(DISTINCT pg_get_userbyid(owner), ' ') FROM ( \
        SELECT nspowner FROM pg_namespace WHERE nspname IN ('fencegate', 'fencegate_state') \
        UNION SELECT relowner FROM pg_class WHERE relnamespace = 'fencegate_state'::regnamespace \
        UNION SELECT typowner FROM pg_type WHERE typnamespace = 'fencegate'::regnamespace \
        UNION SELECT proowner FROM pg_proc WHERE pronamespace = 'fencegate'::regnamespace) o(owner)";
    // An upgrade creates missing objects.
    world
        .run(
            "DROP TABLE fencegate_state.reset; DROP FUNCTION fencegate.leases(); DROP SEQUENCE fencegate_state.lease_token; \
             COMMENT ON SCHEMA fencegate IS 'fencegate schema version 2'",
        )
        .await;
    let report = init(None).await.unwrap();
    assert_eq!((report.role.as_str(), report.created, report.versions.map(|it| it.0)), (&*control, false, Some(2)));
    assert_eq!(world.ask(owners).await, control);
    session.admit(&world.resource, 2).await.unwrap();
    world.session(&world.proxy("p2")).await.admit(&world.resource, 3).await.unwrap();
    let patterns = fencegate_fence::grant_leases(&config, &format!("{}_app", world.database), "*").await.unwrap();
    assert_eq!((patterns, world.ask(owners).await), (vec!["*".to_owned()], control.clone()));

    // init does not advise a GRANT that would give every privilege.
    world.run("ALTER SCHEMA fencegate OWNER TO postgres").await;
    let refused = fencegate_fence::init(&world.control_config(&control), None).await.unwrap_err().to_string();
    assert!(refused.contains("belongs to the superuser postgres") && !refused.contains("GRANT"), "{refused}");
    world.run(&format!("ALTER SCHEMA fencegate OWNER TO {control}")).await;

    // An object that was given to another role keeps its owner until `init` names a role.
    let owner = "SELECT tableowner FROM pg_tables WHERE schemaname = 'fencegate_state' AND tablename = 'reset'";
    world.run("ALTER TABLE fencegate_state.reset OWNER TO postgres").await;
    init(None).await.unwrap();
    assert_eq!(world.ask(owner).await, "postgres");
    init(Some(&control)).await.unwrap();
    assert_eq!(world.ask(owners).await, control);

    // A role that is given to one `init` remains the owner when other `init` runs are concurrent.
    let role = format!("{}_app", world.database);
    world.run(&format!("GRANT pg_signal_backend TO {role}")).await;
    let (named, a, b) = tokio::join!(init(Some(&role)), init(None), init(None));
    assert_eq!(named.unwrap().role, role);
    a.and(b).unwrap();
    assert_eq!(world.ask(owners).await, role);

    // A new schema belongs to the connecting role.
    let bare = World::bare().await;
    let report = fencegate_fence::init(&bare.control_config("postgres"), None).await.unwrap();
    assert_eq!((report.role.as_str(), report.created), ("postgres", true));
    assert_eq!(bare.ask(owners).await, "postgres");
}

/// `init` does not wait for holders of a lock on the tables, such as a backup or a writer that the guard has checked,
/// because later requests would wait behind it.
#[tokio::test]
async fn repeated_init_does_not_wait_for_users_of_the_tables() {
    let world = World::new().await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let tables = "fencegate_state.epoch, fencegate_state.admission, fencegate_state.proxy, fencegate_state.reset";
    world.run(&format!("BEGIN; LOCK TABLE {tables} IN ROW EXCLUSIVE MODE")).await;
    fencegate_fence::init(&config, Some(&control)).await.unwrap();
    // A necessary change waits without blocking others.
    let (proxy, role) = (world.proxy("p1"), format!("{}_app", world.database));
    let session = world.session(&proxy).await;
    let (changed, ()) = tokio::join!(fencegate_fence::init(&config, Some(&role)), async {
        session.admit(&world.resource, 1).await.unwrap();
        world.run("COMMIT").await;
    });
    assert_eq!(changed.unwrap().role, role);
    let owners = "SELECT string_agg(DISTINCT tableowner, ',') FROM pg_tables WHERE schemaname = 'fencegate_state'";
    assert_eq!(world.ask(owners).await, role);
}

/// The schema of version 2, in which a process is admitted.
#[tokio::test]
async fn the_schema_of_version_2_is_upgraded_and_keeps_its_content() {
    let world = World::new().await;
    let (config, control) = (world.control_config("postgres"), world.control());
    let as_it_was = "ALTER TABLE fencegate_state.epoch DROP COLUMN policy_loaded; ALTER TABLE fencegate_state.admission DROP COLUMN ending; \
        ALTER TABLE fencegate_state.admission DROP COLUMN system_identifier, DROP COLUMN database; \
        ALTER TABLE fencegate_state.proxy DROP COLUMN system_identifier, DROP COLUMN database; \
        DROP TRIGGER receive_epoch ON fencegate_state.epoch; DROP FUNCTION fencegate.receive_epoch, fencegate.own_database; \
        DROP INDEX fencegate_state.admission_epoch; CREATE INDEX admission_resource ON fencegate_state.admission (resource); \
        CREATE INDEX admission_pid ON fencegate_state.admission (pid); \
        INSERT INTO fencegate_state.epoch (resource, token, drained, policy_hash) VALUES ('scheduler', 7, true, 'a')";
    world.run(as_it_was).await;
    world.run(VERSION_5).await;
    world.run("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 2'").await;
    let session = world.session(&world.proxy("p1")).await;
    assert!(reason(session.admit(&world.resource, 7).await).contains("run `fencegate init`"));
    let run = || fencegate_fence::init(&config, Some(&control));
    let (one, two) = tokio::join!(run(), run());
    assert!([one.unwrap(), two.unwrap()].iter().any(|report| report.versions == Some((2, 6))));
    assert_eq!(run().await.unwrap().versions, None);
    assert_eq!(world.epoch().await, "(1,7,t)");
    let indexes = "SELECT string_agg(indexname, ' ' ORDER BY indexname) FROM pg_indexes \
        WHERE schemaname = 'fencegate_state' AND tablename = 'admission'";
    assert_eq!(world.ask(indexes).await, "admission_epoch admission_pkey");
    // The `init` of an older program creates the index again.
    world.run("CREATE INDEX admission_pid ON fencegate_state.admission (pid)").await;
    run().await.unwrap();
    assert_eq!(world.ask(indexes).await, "admission_epoch admission_pkey");
    let session = world.session(&world.proxy("p2")).await;
    session.admit(&world.resource, 7).await.unwrap();
    session.admit(&world.resource, 8).await.unwrap();
}

/// The tables were in the other schema, which all roles may use.
#[tokio::test]
async fn the_schema_of_version_5_is_moved_while_in_use() {
    let world = World::new().await;
    let (config, control) = (world.control_config("postgres"), world.control());
    // Keep the session, so that no proxy deletes its admission.
    let admitted = world.session(&world.proxy("p1")).await;
    admitted.admit(&world.resource, 7).await.unwrap();
    world.run(VERSION_5).await;
    // The guard's function as of another version. `older` is a control connection of that version.
    world
        .run(
            "CREATE FUNCTION fencegate.is_admitted(text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS \
               'BEGIN RETURN EXISTS (SELECT FROM fencegate.admission WHERE resource = $1); END'; \
             GRANT EXECUTE ON FUNCTION fencegate.is_admitted TO PUBLIC; \
             CREATE VIEW highest AS SELECT token FROM fencegate.epoch",
        )
        .await;
    let app = connect(&world.config(&format!("{}_app", world.database))).await;
    let is_admitted = "SELECT fencegate.is_admitted('scheduler')";
    assert_eq!(one(&app, is_admitted).await, ["t"]);
    let older = connect(world.config(&control).application_name("fencegate control")).await;
    older.batch_execute("PREPARE p AS SELECT FROM fencegate.epoch").await.unwrap();
    let run = || fencegate_fence::init(&config, Some(&control));
    let (one_report, two) = tokio::join!(run(), run());
    assert!([one_report.unwrap(), two.unwrap()].iter().any(|report| report.versions == Some((5, 6))));
    until("the older control connection has ended", async || older.batch_execute("").await.is_err()).await;
    assert_eq!((world.epoch().await, one(&app, is_admitted).await), ("(1,7,t)".to_owned(), vec!["t".to_owned()]));
    assert_eq!(world.ask("SELECT token FROM highest").await, "7");
    let left = "SELECT count(*) FROM pg_class WHERE relnamespace = 'fencegate'::regnamespace";
    assert_eq!(world.ask(left).await, "0");
    // The `init` of an earlier program would create a table without tokens.
    let earlier = "CREATE TABLE IF NOT EXISTS fencegate.epoch (resource text PRIMARY KEY)";
    assert!(world.root.batch_execute(earlier).await.is_err());
    assert_eq!(run().await.unwrap().versions, None);
    let session = world.session(&world.proxy("p2")).await;
    session.admit(&world.resource, 7).await.unwrap();
    session.admit(&world.resource, 8).await.unwrap();
}

/// Nothing is removed, so that the newer program still works.
#[tokio::test]
async fn a_schema_of_a_newer_program_is_reported() {
    let world = World::new().await;
    world.run("COMMENT ON SCHEMA fencegate IS 'fencegate schema version 10'").await;
    let session = world.session(&world.proxy("p1")).await;
    let refused = session.admit(&world.resource, 1).await;
    let Err(FenceError::Store { error, .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("version 10"), "{error}");
    assert_eq!(error.remedy(), Remedy::Upgrade);
    let report = fencegate_fence::init(&world.control_config("postgres"), Some(&world.control())).await.unwrap();
    assert_eq!(report.versions, Some((10, 6)));
    world.session(&world.proxy("p2")).await.admit(&world.resource, 1).await.unwrap();
}

/// The master role of a managed service can create roles and databases, but is not a superuser.
#[tokio::test]
async fn the_master_role_of_a_managed_service_is_sufficient() {
    let world = World::bare().await;
    let (database, master) = (world.database.clone(), format!("{}_master", world.database));
    world
        .run(&format!("CREATE ROLE {master} LOGIN CREATEROLE CREATEDB; ALTER DATABASE {database} OWNER TO {master}"))
        .await;
    let client = connect(&world.config(&master)).await;
    let role = format!("{database}_gate");
    client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let config = world.control_config(&master);
    let report = fencegate_fence::init(&config, Some(&role)).await.unwrap();
    assert!(report.created && report.to_run.is_empty(), "{report:?}");
    assert_eq!(report.granted, ["pg_read_all_stats", "pg_signal_backend"]);
    client.batch_execute(&format!("CREATE ROLE {database}_leader LOGIN")).await.unwrap();
    let patterns = fencegate_fence::grant_leases(&config, &format!("{database}_leader"), "cron/*").await.unwrap();
    assert_eq!(patterns, ["cron/*"]);
    // Run it again, as after an upgrade: the schema now belongs to the role.
    assert!(!fencegate_fence::init(&config, Some(&role)).await.unwrap().created);
    let lent = format!(
        "SELECT pg_has_role('{master}', '{role}', 'MEMBER') OR has_database_privilege('{role}', '{database}', 'CREATE')"
    );
    assert_eq!(world.ask(&lent).await, "f", "temporary privileges are revoked");
    let owner = "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'fencegate'";
    assert_eq!(world.ask(owner).await, role);

    // If the master may not do this, the error has the statement to run.
    let poor = World::bare().await;
    let (database, control) = (poor.database.clone(), poor.control());
    poor.run(&format!("CREATE ROLE {database}_master LOGIN; ALTER DATABASE {database} OWNER TO {database}_master"))
        .await;
    let error =
        fencegate_fence::init(&poor.control_config(&format!("{database}_master")), Some(&control)).await.unwrap_err();
    assert!(
        error.to_string().contains(&format!("run as a role that may: GRANT \"{control}\" TO {database}_master")),
        "{error}"
    );
}

/// Since version 16, a master role can only grant roles that it may administer.
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
    assert_eq!(postgres.value(lent), "f", "temporary privileges are revoked");
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
        assert!(said.contains("this is a fencegate proxy, not the server behind it"), "{said}");
    }
    assert_eq!(postgres.value("SELECT to_regnamespace('fencegate') IS NULL"), "t");
}

#[tokio::test]
async fn a_strangers_schema_is_not_taken_over() {
    let world = World::bare().await;
    let (database, control) = (world.database.clone(), world.control());
    world
        .run(&format!("CREATE ROLE {database}_evil LOGIN; GRANT CREATE ON DATABASE {database} TO {database}_evil"))
        .await;
    let evil = connect(&world.config(&format!("{database}_evil"))).await;
    let init = async || fencegate_fence::init(&world.control_config("postgres"), Some(&control)).await;
    let is_refused = |refused: Result<_, fencegate_fence::InitError>| {
        refused.is_err_and(|error| error.to_string().contains(&format!("belongs to role {database}_evil")))
    };
    // The stranger's schema is created during `init`, and committed after its check.
    evil.batch_execute("BEGIN; CREATE SCHEMA fencegate_state").await.unwrap();
    let waits =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
    let (refused, ()) = tokio::join!(init(), async {
        until("init waits", async || world.ask(waits).await == "t").await;
        evil.batch_execute("COMMIT").await.unwrap();
    });
    assert!(is_refused(refused));
    assert!(is_refused(init().await));
    // Without a role, `init` keeps owners, but does not trust this one.
    assert!(is_refused(fencegate_fence::init(&world.control_config("postgres"), None).await));
    world.run(&format!("ALTER SCHEMA fencegate_state OWNER TO {control}")).await;
    world
        .run(&format!(
            "CREATE TABLE fencegate_state.epoch (n int); ALTER TABLE fencegate_state.epoch OWNER TO {database}_evil"
        ))
        .await;
    assert!(is_refused(init().await));
}

/// A master role that does not inherit keeps its membership.
#[tokio::test]
async fn a_master_role_keeps_its_privileges() {
    let world = World::bare().await;
    let (database, control) = (world.database.clone(), world.control());
    let master = format!("{database}_master");
    world.run(&format!("CREATE ROLE {master} LOGIN CREATEROLE NOINHERIT; GRANT {control} TO {master} WITH ADMIN OPTION; ALTER DATABASE {database} OWNER TO {master}")).await;
    fencegate_fence::init(&world.control_config(&master), Some(&control)).await.unwrap();
    let has = format!(
        "SELECT admin_option FROM pg_auth_members WHERE member = '{master}'::regrole AND roleid = '{control}'::regrole"
    );
    assert_eq!(world.ask(&has).await, "t");
}
