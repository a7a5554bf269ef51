//! `--print-sql`: the script has the same effect as the command, and printing it has none.

use crate::support::guardian::Folder;
use crate::support::programs::{self, run};
use crate::support::proxy::fencegate;
use crate::support::server::SUPERUSER;
use crate::support::wire::error_in;
use crate::support::{Options, Postgres, Wire};
use std::fs;

const SCHEMA: &str = "
CREATE TABLE ticks (id int, token bigint);
CREATE TABLE parts (id int) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (1000);
CREATE TABLE shards (shard int);
";
const POLICIES: &str = "
version: 1
resources:
  - {name: scheduler, lease: cron/scheduler, tables: [public.ticks, public.parts]}
  - {name: 'shard/{shard}', tables: [{name: public.shards, key: shard}]}
";

struct World {
    postgres: Postgres,
    folder: Folder,
}

impl World {
    fn start() -> Self {
        let postgres = Postgres::start(Options::default());
        postgres.sql("CREATE ROLE gate LOGIN; CREATE ROLE leader LOGIN");
        // A copy has the same OIDs, which occur in triggers on partitioned tables.
        postgres.sql("CREATE DATABASE commanded");
        postgres.sql_in("commanded", SCHEMA);
        postgres.sql("CREATE DATABASE scripted TEMPLATE commanded");
        let folder = Folder::new("print_sql");
        fs::create_dir(folder.join("policies")).unwrap();
        fs::write(folder.join("policies/policies.yaml"), POLICIES).unwrap();
        World { postgres, folder }
    }

    fn command(&self, database: &str, arguments: &[&str]) -> String {
        let control = self.postgres.control_url() + database;
        let policies = self.folder.join("policies").display().to_string();
        let arguments = arguments.iter().map(|it| if *it == "POLICIES" { &policies } else { *it });
        let output = run(fencegate().args(arguments).args(["--control", &control]));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The content of a database, as SQL.
    fn dump(&self, database: &str) -> String {
        let dump = run(&mut programs::pg_dump(&self.postgres.address(), database)).stdout;
        // Newer versions write a random word in these lines.
        let is_random = |line: &&str| line.starts_with("\\restrict") || line.starts_with("\\unrestrict");
        String::from_utf8(dump).unwrap().lines().filter(|line| !is_random(line)).collect::<Vec<_>>().join("\n")
    }

    /// Compares the effects of the command and the script. Returns the script.
    #[track_caller]
    fn compare(&self, arguments: &[&str]) -> String {
        let before = self.dump("scripted");
        let print = [arguments, &["--print-sql"]].concat();
        let script = self.command("scripted", &print);
        assert_eq!(self.command("scripted", &print), script, "{arguments:?}: it is deterministic");
        assert_eq!(self.dump("scripted"), before, "{arguments:?}: printing changes nothing");
        self.command("commanded", arguments);
        assert_ne!(self.dump("commanded"), before, "{arguments:?}");
        let file = self.folder.join("script.sql");
        fs::write(&file, &script).unwrap();
        let mut psql = programs::psql(&self.postgres.address(), "scripted");
        psql.env("PGCLIENTENCODING", "LATIN1");
        run(psql.args(["--no-psqlrc", "--set=ON_ERROR_STOP=1", "--file"]).arg(&file));
        assert_eq!(self.dump("scripted"), self.dump("commanded"), "{arguments:?}");
        script
    }
}

#[test]
fn the_script_has_the_effect_of_the_command() {
    let world = World::start();
    let init = world.compare(&["init", "--role", "gate", "--leases-for", "leader", "--elections", "cron/é*"]);
    // These grants are cluster-wide, so dumps do not show them.
    for role in ["pg_read_all_stats", "pg_signal_backend"] {
        assert!(init.contains(&format!("GRANT {role} TO \"gate\";")), "{init}");
    }
    let again = world.command("scripted", &["init", "--role", "gate", "--print-sql"]);
    assert!(!again.contains("GRANT pg_signal_backend"), "{again}");
    world.compare(&["guard", "install", "--policies", "POLICIES"]);
    world.compare(&["guard", "remove"]);
    for database in ["commanded", "scripted"] {
        world.command(database, &["guard", "install", "--policies", "POLICIES"]);
    }
    world.compare(&["remove", "--keep-token"]);
}

/// Like the command. The script may run long after it was printed.
#[test]
fn the_script_removes_nothing_while_a_proxy_uses_the_database() {
    let world = World::start();
    world.command("scripted", &["init"]);
    let file = world.folder.join("script.sql");
    fs::write(&file, world.command("scripted", &["remove", "--print-sql"])).unwrap();
    let mut control = Wire::connect(&world.postgres.address()).unwrap();
    let named = [("user", SUPERUSER), ("database", "scripted"), ("application_name", "fencegate control")];
    assert_eq!(error_in(&control.start(&named, "")), None);
    let before = world.dump("scripted");
    let mut psql = programs::psql(&world.postgres.address(), "scripted");
    let output = psql.args(["--no-psqlrc", "--file"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the database is in use by process"), "{said}");
    assert_eq!(world.dump("scripted"), before);
}

/// The script includes the steps for other roles, so a superuser can run all of it.
#[test]
fn a_role_that_owns_no_table_prints_the_owners_steps_too() {
    let world = World::start();
    for database in ["commanded", "scripted"] {
        world.command(database, &["init", "--role", "gate"]);
    }
    world.command("commanded", &["guard", "install", "--policies", "POLICIES"]);
    let policies = world.folder.join("policies").display().to_string();
    let control = world.postgres.control_url().replace("postgres@", "gate@") + "scripted";
    let arguments = ["guard", "install", "--policies", &policies, "--print-sql", "--control", &control];
    let script = String::from_utf8(run(fencegate().args(arguments)).stdout).unwrap();
    assert!(script.contains("-- remaining steps, to be run by the owner of public.ticks"), "{script}");
    let file = world.folder.join("script.sql");
    fs::write(&file, &script).unwrap();
    let mut psql = programs::psql(&world.postgres.address(), "scripted");
    run(psql.args(["--no-psqlrc", "--set=ON_ERROR_STOP=1", "--file"]).arg(&file));
    // Only a superuser can create the event triggers.
    world.command("scripted", &["guard", "install", "--policies", "POLICIES"]);
    assert_eq!(world.dump("scripted"), world.dump("commanded"));
}
