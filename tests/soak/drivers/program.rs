//! The programs of this folder, as commands, and their output.

use crate::support::Address;
use crate::support::programs::{self, for_address, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs the command, which must succeed, and returns its output.
pub fn output(mut command: Command, address: &Address) -> String {
    for_address(command.stdin(Stdio::null()), address, "postgres");
    String::from_utf8(run(&mut command).stdout).unwrap()
}

pub fn psql() -> Command {
    let mut command = limited("sh");
    command.arg(folder().join("psql.sh")).env("PSQL", programs::postgres_program("psql"));
    command
}

pub fn python(script: &str) -> Command {
    let mut command = limited(programs::python());
    command.arg(folder().join("python").join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

pub fn node(script: &str) -> Command {
    let mut command = limited("node");
    command.arg(folder().join("node").join(script)).env("NODE_PATH", programs::node_folder().join("node_modules"));
    command
}

/// Runs a source file, which Java compiles first.
pub fn java(source: &str) -> Command {
    let packages = ["postgresql", "HikariCP", "slf4j-api", "slf4j-nop"];
    let path = packages.map(|package| format!("/usr/share/java/{package}.jar")).join(":");
    let mut command = limited("java");
    command.arg("-cp").arg(path).arg(folder().join("java").join(source));
    command
}

/// A program of the crate in `sqlx`. It is a separate crate, so that fencegate does not get its dependencies.
pub fn sqlx(program: &str) -> Command {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("drivers/sqlx");
    let mut cargo = programs::cargo();
    cargo.args(["build", "--quiet", "--locked", "--bin", program, "--manifest-path"]);
    run(cargo.arg(folder().join("sqlx/Cargo.toml")).arg("--target-dir").arg(&target));
    limited(target.join("debug").join(program))
}

/// Limits the run time, in case a step waits forever.
fn limited(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program);
    command
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/soak/drivers")
}
