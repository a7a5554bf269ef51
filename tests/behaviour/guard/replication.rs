//! Rows applied by a subscription, without a statement or client.

use super::command::{stderr, stdout};
use super::world::{POLICIES, World, guard, without_token};
use crate::support::fenced::{code, init, ok};
use crate::support::guardian::Folder;
use crate::support::postgres::{Options, Postgres};
use crate::support::ticks::{self, WRITE};
use crate::support::{DEADLINE, Proxy, Wire, programs, wait_until};
use std::fs;

/// Restarts a failed worker immediately.
fn options() -> Options {
    Options::default().setting("wal_retrieve_retry_interval", "50ms")
}

/// Creates the subscription `name`, as this role, to the publication of the same name.
fn subscribe(subscriber: &Postgres, role: &str, publisher: &Postgres, name: &str, options: &str) {
    let statement = format!(
        "CREATE SUBSCRIPTION {name} CONNECTION 'host=127.0.0.1 port={} user=postgres dbname=postgres' PUBLICATION {name} {options}",
        publisher.port()
    );
    ok(&mut Wire::login(&subscriber.socket(), role, "postgres"), &statement);
}

#[test]
fn logical_apply() {
    rows_need_the_token_of_the_owner("logical_apply", false);
}

#[test]
fn initial_copy() {
    rows_need_the_token_of_the_owner("initial_copy", true);
}

/// The rows exist before the subscription and are copied, or come later and are applied.
fn rows_need_the_token_of_the_owner(name: &str, are_copied: bool) {
    let world = World::start_with(name, POLICIES, options());
    let postgres = &world.postgres;
    postgres.sql("CREATE DATABASE source");
    postgres.sql_in(
        "source",
        "CREATE TABLE ticks (id int, token bigint, note text); CREATE PUBLICATION ticks FOR TABLE ticks",
    );
    postgres.sql_in("source", "SELECT pg_create_logical_replication_slot('ticks', 'pgoutput')");
    let subscribe = || {
        postgres.sql(&format!(
            "CREATE SUBSCRIPTION ticks CONNECTION 'host=127.0.0.1 port={} user=postgres dbname=source' PUBLICATION ticks
             WITH (create_slot = false, slot_name = 'ticks', copy_data = {are_copied})",
            postgres.port()
        ));
    };
    if !are_copied {
        subscribe();
    }
    let before = world.state();
    postgres.sql_in("source", "INSERT INTO ticks VALUES (1000, 1, 'replicated')");
    if are_copied {
        subscribe();
    }
    let says = |text: &str| wait_until(text, DEADLINE, || postgres.log().contains(text));
    says("and this session has no token for it");
    postgres.sql("ALTER ROLE postgres IN DATABASE postgres SET lease.fence = '4'");
    says("fencing token 4 for resource \"scheduler\" is stale: the highest is 5");
    assert_eq!(world.state(), before);

    postgres.sql("ALTER ROLE postgres IN DATABASE postgres SET lease.fence = '5'");
    wait_until("the row is applied", DEADLINE, || {
        postgres.value("SELECT count(*) FROM ticks WHERE note = 'replicated'") == "1"
    });
    assert_eq!(code(&mut without_token(&postgres.socket()), WRITE), "", "the role's own token");
    let status = stdout(&world.guard("status"));
    assert!(status.ends_with("(subscription ticks)             ok\n"), "{status}");
    postgres.sql("DROP SUBSCRIPTION ticks");
}

/// A subscriber whose tables were created from `pg_dump -s` has the guard too. The guard stops the initial copy and
/// later rows, and `guard status` reports the reason, until the subscription's owner is exempt.
#[test]
fn a_subscriber_made_by_a_dump_of_the_schema() {
    let publisher = World::start("dump_of_the_schema");
    publisher.postgres.sql("CREATE PUBLICATION ticks FOR TABLE ticks");
    let dump = programs::run(programs::pg_dump(&publisher.postgres.address(), "postgres").arg("-s")).stdout;
    let subscriber = Postgres::start(options());
    let file = Folder::new("dump");
    fs::write(file.join("dump.sql"), dump).unwrap();
    programs::run(programs::psql(&subscriber.address(), "postgres").arg("-qf").arg(file.join("dump.sql")));
    let guard = |what: &str| guard(what, &(subscriber.control_url() + "postgres"), Some(&publisher.folder));
    assert!(guard("install").status.success());
    assert!(guard("status").status.success());

    subscriber.sql("CREATE ROLE replicator SUPERUSER LOGIN");
    subscribe(&subscriber, "replicator", &publisher.postgres, "ticks", "");
    wait_until("the log has the hint", DEADLINE, || {
        subscriber
            .log()
            .contains("Rows of a subscription need a token, or an exempt owner: see `fencegate guard status`")
    });
    let status = guard("status");
    let line = "(subscription ticks)             rejected  its owner replicator is not exempt and has no token, so no row is applied\n";
    assert!(stdout(&status).ends_with(line), "{status:?}");
    assert_eq!(status.status.code(), Some(1));
    let advice = "to let a subscription write guarded tables, name its owner under exempt_roles in the policies";
    assert!(stderr(&status).contains(advice) && !stderr(&status).contains("with these policies"), "{status:?}");
    assert_eq!(subscriber.value("SELECT count(*) FROM ticks"), "0");

    let exempt = POLICIES.to_owned() + "exempt_roles: [replicator]\n";
    fs::write(publisher.folder.join("policies.yaml"), exempt).unwrap();
    assert!(guard("install").status.success());
    let has_rows = |rows: &str| wait_until(rows, DEADLINE, || subscriber.value("SELECT count(*) FROM ticks") == rows);
    has_rows("1");
    assert_eq!(code(&mut publisher.session(5), WRITE), "");
    has_rows("2");
    let status = guard("status");
    assert!(
        status.status.success() && stdout(&status).ends_with("(subscription ticks)             ok\n"),
        "{status:?}"
    );
    assert_eq!(code(&mut without_token(&subscriber.socket()), WRITE), "LF002", "others need a token");
    subscriber.sql("DROP SUBSCRIPTION ticks");
}

/// The publisher has no information about the subscriber's admitted processes.
#[test]
fn an_epoch_that_a_subscription_brings_is_not_drained() {
    let [publisher, subscriber] = [Options::default(), options()].map(Postgres::start);
    for postgres in [&publisher, &subscriber] {
        ticks::init(postgres, "postgres");
    }
    // Triggers as created by an earlier init.
    subscriber.sql(
        "DROP TRIGGER receive_epoch ON fencegate_state.epoch; \
         CREATE TRIGGER receive_epoch BEFORE INSERT OR UPDATE ON fencegate_state.epoch \
           FOR EACH ROW EXECUTE FUNCTION fencegate.receive_epoch(); \
         ALTER TABLE fencegate_state.epoch ENABLE REPLICA TRIGGER receive_epoch",
    );
    init(&subscriber, "postgres");
    let proxy = Proxy::start(&subscriber, ticks::POLICIES, &[]);
    let mut old = ticks::session(&proxy.address(), 5);
    ok(&mut old, &format!("BEGIN; {WRITE}"));
    let (published, row) =
        ("CREATE PUBLICATION epochs FOR TABLE fencegate_state.epoch", "SELECT * FROM fencegate_state.epoch");
    publisher.sql(published);
    let columns: Vec<String> = subscriber.sql(row)[0].iter().map(|it| it.clone().unwrap()).collect();
    publisher.sql(&format!("INSERT INTO fencegate_state.epoch VALUES ('{}')", columns.join("', '")));
    subscribe(&subscriber, "postgres", &publisher, "epochs", "WITH (copy_data = false)");

    let epoch = |resource: &str| {
        subscriber.value(&format!(
            "SELECT (generation, token, drained) FROM fencegate_state.epoch WHERE resource = '{resource}'"
        ))
    };
    publisher.sql("UPDATE fencegate_state.epoch SET token = 9");
    wait_until("it is raised", DEADLINE, || epoch("scheduler").starts_with("(1,9,"));
    ok(&mut ticks::session(&proxy.address(), 9), WRITE);
    assert_ne!(code(&mut old, "COMMIT"), "", "it has been drained");
    assert_eq!(epoch("scheduler"), "(1,9,t)");

    publisher.sql(
        "UPDATE fencegate_state.epoch SET token = 8; INSERT INTO fencegate_state.epoch VALUES ('next', 1, 1, true)",
    );
    wait_until("the next is applied", DEADLINE, || epoch("next") == "(1,1,f)");
    assert_eq!(epoch("scheduler"), "(1,9,t)", "it is not lowered");

    let pruned = "DELETE FROM fencegate_state.epoch; INSERT INTO fencegate_state.epoch VALUES ('scheduler', 1, 7, true), ('last', 1, 1, true)";
    publisher.sql(pruned);
    wait_until("the last is applied", DEADLINE, || epoch("last") == "(1,1,f)");
    assert_eq!(epoch("scheduler"), "(1,9,t)", "it is not forgotten");
    assert_eq!(code(&mut ticks::session(&proxy.address(), 7), WRITE), "LF001");
    subscriber.sql("DROP SUBSCRIPTION epochs");
}

/// The initial copy finds epochs that already exist on the subscriber.
#[test]
fn an_epoch_that_exists_is_raised_by_the_initial_copy() {
    let [publisher, subscriber] = [Options::default(), options()].map(Postgres::start);
    for (postgres, low, high) in [(&publisher, 5, 9), (&subscriber, 7, 7)] {
        ticks::init(postgres, "postgres");
        let epochs = format!("INSERT INTO fencegate_state.epoch VALUES ('a', 1, {low}, true), ('b', 1, {high}, true)");
        postgres.sql(&epochs);
    }
    publisher.sql("CREATE PUBLICATION epochs FOR TABLE fencegate_state.epoch");
    subscribe(&subscriber, "postgres", &publisher, "epochs", "");
    let epochs = "SELECT string_agg(format('%s=%s %s', resource, token, drained), ', ' ORDER BY resource) FROM fencegate_state.epoch";
    wait_until("raised, never lowered", DEADLINE, || subscriber.value(epochs) == "a=7 t, b=9 f");
    subscriber.sql("DROP SUBSCRIPTION epochs");
}

/// The subscription's worker holds the resource's lock until its transaction ends, and would apply the transaction
/// again after being terminated.
#[test]
fn a_worker_that_raises_an_epoch_is_not_ended_at_once() {
    let [publisher, subscriber] = [Options::default(), options()].map(Postgres::start);
    for postgres in [&publisher, &subscriber] {
        ticks::init(postgres, "postgres");
        postgres.sql("CREATE TABLE slow (id int PRIMARY KEY); INSERT INTO fencegate_state.epoch VALUES ('scheduler', 1, 5, true)");
    }
    subscriber.sql(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END$$; \
         CREATE TRIGGER wait BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION wait(); \
         ALTER TABLE slow ENABLE REPLICA TRIGGER wait",
    );
    publisher.sql("CREATE PUBLICATION epochs FOR TABLE fencegate_state.epoch, slow");
    subscribe(&subscriber, "postgres", &publisher, "epochs", "WITH (copy_data = false)");
    let mut gate = Wire::login(&subscriber.socket(), "postgres", "postgres");
    ok(&mut gate, "SELECT pg_advisory_lock(1)");
    publisher.sql("BEGIN; UPDATE fencegate_state.epoch SET token = 9; INSERT INTO slow VALUES (1); COMMIT");
    let worker = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE backend_type LIKE 'logical replication%' AND wait_event = 'advisory'";
    wait_until("it waits", DEADLINE, || subscriber.value(worker) != "0");
    let pid = subscriber.value(worker);

    let holders = subscriber.value("SELECT fencegate.take_lock('scheduler', false, '300 ms')");
    assert_eq!(holders, format!("process {pid} of role postgres"));
    let proxy = Proxy::start(&subscriber, ticks::POLICIES, &[]);
    assert_eq!(code(&mut ticks::session(&proxy.address(), 5), WRITE), "LF006");
    assert_eq!(subscriber.value(worker), pid);
    ok(&mut gate, "SELECT pg_advisory_unlock(1)");
    wait_until("it is raised", DEADLINE, || code(&mut ticks::session(&proxy.address(), 9), WRITE).is_empty());
    subscriber.sql("DROP SUBSCRIPTION epochs");
}
