//! docs/use/python.md, go.md and typescript.md are correct: their programs run unchanged, except for ports, and print the
//! documented output.

use crate::support::guardian::Program;
use crate::support::page::{Reader, blocks, shell};
use crate::support::programs::{self, build_go, postgres_program, run};
use crate::support::proxy::{BINARY, fencegate};
use crate::support::{DEADLINE, Options, Postgres, wait_until};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const LEASED: &str = "    lease: cron/scheduler\n";

/// The database and the proxy of README's quickstart.
struct World<'a> {
    // Before the folder of its policies: fields are dropped in this order.
    _proxy: Program,
    reader: Reader<'a>,
}

impl<'a> World<'a> {
    fn start(postgres: &'a Postgres, issuer: &str) -> Self {
        postgres.sql("CREATE DATABASE app");
        postgres.sql("CREATE ROLE app LOGIN PASSWORD 'change-me'");
        postgres.sql_in("app", "CREATE TABLE ticks (tick text PRIMARY KEY, run_by text)");
        postgres.sql_in("app", "INSERT INTO ticks VALUES ('12:00'); GRANT SELECT, UPDATE ON ticks TO app");
        let control = postgres.control_url() + "app";
        run(fencegate().args(["init", "--control", &control, "--leases-for", "app", "--elections", "cron/*"]));
        let reader = Reader::new(postgres, None);
        let policies = reader.folder.join("policies.d");
        fs::create_dir(&policies).unwrap();
        let policy = format!("version: 1\nresources:\n  - name: scheduler\n{issuer}    tables: [public.ticks]\n");
        fs::write(policies.join("scheduler.yaml"), policy).unwrap();
        let command = "PGPASSWORD=first exec \"$0\" proxy --listen 127.0.0.1:6432 --upstream postgres://127.0.0.1:5432 \
            --control postgres://postgres@127.0.0.1:5432/ --policies policies.d";
        let command = format!("{}; {}", reader.environment(), reader.here(command));
        let proxy = Program::start(&["sh", "-c", &command, BINARY], &reader.folder.join("proxy.log"), "TERM");
        let port = reader.proxy_port().to_string();
        let mut is_ready = Command::new(postgres_program("pg_isready"));
        is_ready.args(["-q", "-h", "127.0.0.1", "-p", &port]);
        wait_until("the proxy listens", DEADLINE, || is_ready.status().unwrap().success());
        Self { _proxy: proxy, reader }
    }
}

/// A file of the packages for other languages.
fn client(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(path)
}

/// Builds the package for TypeScript in the folder, and creates a `node_modules` with the package and these modules.
fn build_client(modules: &Path, folder: &Path) {
    const COMMANDS: &str = "mkdir node_modules && ln -s \"$0\"/* \"$0\"/.bin node_modules && cp -r \"$1\" fencegate && \
        rm -rf fencegate/dist fencegate/node_modules && ln -s ../fencegate node_modules/fencegate && npm run --silent build --prefix fencegate";
    let package = client("typescript");
    run(Command::new("sh").args(["-eu", "-c", COMMANDS]).arg(modules).arg(package).current_dir(folder));
}

fn run_by(postgres: &Postgres) -> String {
    postgres.sql_in("app", "SELECT coalesce(run_by, '') FROM ticks")[0][0].clone().unwrap()
}

#[test]
fn in_python() {
    const PAGE: &str = "docs/use/python.md";
    let postgres = Postgres::start(Options::default());
    let mut world = World::start(&postgres, LEASED);
    world.reader.programs = vec![programs::python().parent().unwrap().to_owned()];
    symlink(client("python/fencegate"), world.reader.folder.join("fencegate")).unwrap();
    world.reader.save_programs(PAGE);
    world.reader.follow(PAGE);
    assert!(!["", "python"].contains(&run_by(&postgres).as_str()), "the leaders have written their names");
}

/// README's first step: leases and the guard, from printed scripts, without a proxy.
#[test]
fn in_python_without_the_proxy() {
    const PAGE: &str = "README.md";
    let postgres = Postgres::start(Options::default());
    let reader = Reader::new(&postgres, None);
    reader.save_programs(PAGE);
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let step = blocks(&page, "sh").into_iter().find(|block| block.contains("--print-sql")).unwrap();
    // The last command shows an error.
    let (step, _) = step.rsplit_once("\npsql ").unwrap();
    run(&mut shell(&format!("{}; {}", reader.environment(), reader.here(step))));
    symlink(client("python/fencegate"), reader.folder.join("fencegate")).unwrap();
    run(Command::new(programs::python()).arg("first.py").current_dir(reader.folder.path()));
    let written = "SELECT run_by LIKE '%:%' FROM ticks";
    assert_eq!(postgres.sql_in("first", written)[0][0].as_deref(), Some("t"));
}

#[test]
fn in_a_transaction_of_django() {
    let postgres = Postgres::start(Options::default());
    let world = World::start(&postgres, "");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/soak/languages/fenced_by_django.py");
    let mut python = Command::new(programs::python());
    python.arg(script).arg(world.reader.proxy_port().to_string()).env("PYTHONPATH", client("python"));
    let output = run(python.env("PYTHONDONTWRITEBYTECODE", "1"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "afterwards ''\nolder LF001\n");
    assert_eq!(run_by(&postgres), "django");
}

#[test]
fn in_go() {
    let postgres = Postgres::start(Options::default());
    let world = World::start(&postgres, LEASED);
    world.reader.save_programs("docs/use/go.md");
    build_go(&world.reader.folder.join("leader.go"), &world.reader.folder.join("leader"));
    world.reader.follow("docs/use/go.md");
    assert_ne!(run_by(&postgres), "");
}

#[test]
fn in_typescript() {
    const PAGE: &str = "docs/use/typescript.md";
    let postgres = Postgres::start(Options::default());
    let mut world = World::start(&postgres, LEASED);
    let modules = programs::node_folder().join("node_modules");
    world.reader.programs = vec![modules.join(".bin")];
    build_client(&modules, world.reader.folder.path());
    world.reader.save_programs(PAGE);
    world.reader.follow(PAGE);
    assert!(!["", "typescript"].contains(&run_by(&postgres).as_str()), "leader.ts has written its name");
}
