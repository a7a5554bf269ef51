//! Strangers' objects that resemble fencegate's or depend on them do not block the guard's commands or `remove`.

use crate::guard::world::policy_folder;
use crate::support::fenced::{Fenced, init, ok};
use crate::support::proxy::fencegate;
use crate::support::ticks;
use crate::support::wire::error_in;
use crate::support::{Options, Postgres, Wire};
use std::path::PathBuf;
use std::process::Output;

const SCHEMA: &str = "CREATE ROLE stranger LOGIN; CREATE ROLE app; CREATE TABLE ticks (id int); \
    CREATE TABLE other (id int); ALTER TABLE ticks OWNER TO app; ALTER TABLE other OWNER TO app";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.ticks]}\n";
const TRIGGER: &str = "CREATE TRIGGER fencegate_guard_x BEFORE INSERT OR UPDATE ON mine \
    FOR EACH ROW WHEN (new.a > 1) EXECUTE FUNCTION fencegate.guard()";
const LOCK: &str = "BEGIN; LOCK TABLE mine IN ACCESS EXCLUSIVE MODE";

struct World {
    postgres: Postgres,
    folder: PathBuf,
}

impl World {
    fn start(name: &str) -> Self {
        let postgres = Postgres::start(Options::default());
        postgres.sql(SCHEMA);
        init(&postgres, "postgres");
        let world = World { postgres, folder: policy_folder(name, POLICIES) };
        world.succeeds(&["guard", "install"]);
        world
    }

    fn run(&self, command: &[&str]) -> Output {
        let control = self.postgres.control_url() + "postgres";
        let mut run = fencegate();
        run.args(command).args(["--control", &control]);
        if command.contains(&"install") || command.contains(&"status") {
            run.arg("--policies").arg(&self.folder);
        }
        run.output().unwrap()
    }

    #[track_caller]
    fn succeeds(&self, command: &[&str]) -> String {
        let output = self.run(command);
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn stranger(&self) -> Wire {
        Wire::login(&self.postgres.address(), "stranger", "postgres")
    }
}

const UP_TO_DATE: &str = "guard: 4 triggers on 1 table, up to date\n";

#[test]
fn a_trigger_on_a_temporary_table_is_not_the_guards() {
    let world = World::start("a_trigger_on_a_temporary_table_is_not_the_guards");
    for command in [["guard", "remove"].as_slice(), &["remove"]] {
        let mut stranger = world.stranger();
        ok(&mut stranger, &format!("CREATE TEMPORARY TABLE mine (a int); {TRIGGER}"));
        ok(&mut stranger, LOCK);
        world.succeeds(&["guard", "status"]);
        assert_eq!(world.succeeds(&["guard", "install"]), UP_TO_DATE);
        // The command removes the trigger with its functions. If the table is locked, it terminates the session.
        world.succeeds(command);
        assert_eq!(error_in(&stranger.query("SELECT 1")).expect("the session was terminated").code(), "57P01");
        init(&world.postgres, "postgres");
        world.succeeds(&["guard", "install"]);
    }
}

/// The table's owner owns no table that the policies fence.
#[test]
fn a_strangers_table_is_not_guarded() {
    let world = World::start("a_strangers_table_is_not_guarded");
    world.postgres.sql("GRANT CREATE ON SCHEMA public TO stranger");
    let mut stranger = world.stranger();
    ok(&mut stranger, &format!("CREATE TABLE mine (a int); {TRIGGER}"));
    ok(&mut stranger, LOCK);
    let status = world.run(&["guard", "status"]);
    assert!(status.status.success(), "{status:?}");
    assert!(String::from_utf8_lossy(&status.stderr).contains("public.mine"), "{status:?}");
    assert_eq!(world.succeeds(&["guard", "install"]), UP_TO_DATE);
    ok(&mut stranger, "COMMIT");
    // A guard on a table of the owner of a fenced table is removed as before.
    world
        .postgres
        .sql("CREATE TRIGGER fencegate_guard_y BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION fencegate.guard()");
    let released = world.succeeds(&["guard", "install"]);
    assert!(released.contains("removed the guard from public.other") && !released.contains("mine"), "{released}");
    world.succeeds(&["guard", "remove"]);
}

#[test]
fn status_names_the_lock_holder_of_a_fenced_table() {
    let world = World::start("status_names_the_lock_holder_of_a_fenced_table");
    let mut migration = Wire::login(&world.postgres.address(), "postgres", "postgres");
    ok(&mut migration, "BEGIN; LOCK TABLE ticks IN ACCESS EXCLUSIVE MODE");
    let process = ticks::process(&mut migration);
    let status = world.run(&["guard", "status"]);
    let said = String::from_utf8_lossy(&status.stderr);
    assert!(said.contains(&format!("which are locked by process {process}")), "{status:?}");
    assert_eq!(status.status.code(), Some(1));
}

#[test]
fn temporary_objects_and_proxy_like_names_do_not_block_remove() {
    let world = World::start("temporary_objects_and_proxy_like_names_do_not_block_remove");
    let mut stranger = world.stranger();
    ok(&mut stranger, "SET application_name = 'fencegate control'");
    ok(&mut stranger, "CREATE TEMPORARY VIEW v AS SELECT fencegate.own_pid()");
    ok(&mut stranger, "CREATE TEMPORARY VIEW w AS SELECT * FROM v");
    ok(&mut stranger, "CREATE TEMPORARY TABLE t (id int, token bigint DEFAULT fencegate.token('scheduler'))");
    ok(&mut stranger, "CREATE FUNCTION pg_temp.f() RETURNS bigint BEGIN ATOMIC SELECT fencegate.token('s'); END");
    ok(&mut stranger, "INSERT INTO t VALUES (1)");
    let removed = world.succeeds(&["remove"]);
    assert!(removed.contains("removed schema fencegate\n"), "{removed}");
    assert_eq!(ok(&mut stranger, "SELECT id FROM t"), [[Some("1".to_owned())]], "the session and its table stay");
}

/// The control role of the proxy need not own the schema.
#[test]
fn a_proxy_is_known_by_the_role_of_its_control_connections() {
    let world = Fenced::start(SCHEMA, POLICIES);
    let mut holder = world.holder(1);
    ok(&mut holder, "INSERT INTO ticks VALUES (1)");
    world.postgres.sql("ALTER SCHEMA fencegate OWNER TO app");
    let control = world.postgres.control_url() + "postgres";
    let output = fencegate().args(["remove", "--control", &control]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("a control connection of role postgres"), "{output:?}");
}
