//! The lock that serializes `init`, `remove` and changes of the guard, while other sessions hold it.

use crate::guard::world::policy_folder;
use crate::support::fenced::{init, ok};
use crate::support::proxy::fencegate;
use crate::support::ticks;
use crate::support::wire::error_in;
use crate::support::{Options, Postgres, Wire};
use std::path::PathBuf;
use std::process::Output;
use std::thread;

const SCHEMA: &str = "CREATE ROLE stranger LOGIN; CREATE ROLE leader LOGIN; CREATE ROLE app LOGIN; \
    CREATE TABLE ticks (id int); ALTER TABLE ticks OWNER TO app";
const POLICIES: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.ticks]}\n";

/// The lock that all commands take, here for the session.
const HOLD: &str = "SELECT pg_advisory_lock(hashtextextended('fencegate {init}', 0))";
const HOLD_SHARED: &str = "SELECT pg_advisory_lock_shared(hashtextextended('fencegate {init}', 0))";

const COMMANDS: [&[&str]; 5] =
    [&["init"], &["init", "--leases-for", "leader"], &["guard", "install"], &["guard", "remove"], &["remove"]];

struct World {
    postgres: Postgres,
    folder: PathBuf,
}

impl World {
    fn start(name: &str) -> Self {
        let postgres = Postgres::start(Options::default().setting("max_prepared_transactions", "2"));
        postgres.sql(SCHEMA);
        init(&postgres, "postgres");
        let world = World { postgres, folder: policy_folder(name, POLICIES) };
        assert!(world.run("postgres", COMMANDS[2]).status.success());
        world
    }

    fn run(&self, role: &str, command: &[&str]) -> Output {
        let control = self.postgres.control_url().replace("postgres@", &format!("{role}@")) + "postgres";
        let mut run = fencegate();
        run.args(command).args(["--control", &control]);
        if command.contains(&"install") {
            run.arg("--policies").arg(&self.folder);
        }
        run.output().unwrap()
    }

    fn login(&self, role: &str) -> Wire {
        Wire::login(&self.postgres.address(), role, "postgres")
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_stranger_that_holds_the_command_lock_is_terminated() {
    let world = World::start("a_stranger_that_holds_the_command_lock_is_terminated");
    for (command, hold) in COMMANDS.iter().zip([HOLD, HOLD_SHARED, HOLD, HOLD_SHARED, HOLD]) {
        let mut stranger = world.login("stranger");
        ok(&mut stranger, hold);
        let pid = ticks::process(&mut stranger);
        let output = world.run("postgres", command);
        assert!(output.status.success(), "{command:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains("init_lock_holder_ended") && said.contains(&pid), "{command:?}: {said}");
        assert_eq!(error_in(&stranger.query("SELECT 1")).expect("it was terminated").code(), "57P01", "{command:?}");
    }
}

#[test]
fn a_possible_command_is_named_and_not_terminated() {
    let world = World::start("a_possible_command_is_named_and_not_terminated");
    let mut prepared = world.login("stranger");
    ok(&mut prepared, "BEGIN; SELECT pg_advisory_xact_lock_shared(hashtextextended('fencegate {init}', 0))");
    ok(&mut prepared, "PREPARE TRANSACTION 'forgotten'");
    let mut superuser = world.login("postgres");
    ok(&mut superuser, "SET application_name = 'console'");
    ok(&mut superuser, HOLD_SHARED);
    let who = format!("process {} of role postgres (application console)", ticks::process(&mut superuser));
    let world = &world;
    thread::scope(|scope| {
        let runs = COMMANDS.map(|command| scope.spawn(move || (command, world.run("postgres", command))));
        for run in runs {
            let (command, output) = run.join().unwrap();
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
            for part in [who.as_str(), "prepared transaction forgotten", "pg_terminate_backend", "ROLLBACK PREPARED"] {
                assert!(said.contains(part), "{command:?}: {part} in {said}");
            }
        }
    });
    ok(&mut superuser, "SELECT 1");
}

/// The owner of a table may not terminate processes of other roles.
#[test]
fn a_stranger_that_cannot_be_ended_is_named() {
    let world = World::start("a_stranger_that_cannot_be_ended_is_named");
    let mut stranger = world.login("stranger");
    ok(&mut stranger, HOLD);
    let output = world.run("app", COMMANDS[2]);
    let who = format!("process {} of role stranger", ticks::process(&mut stranger));
    assert!(output.status.code() == Some(1) && stderr(&output).contains(&who), "{output:?}");
    ok(&mut stranger, "SELECT 1");
}
