//! The packages of clients/: each is built, installed as a user does, and tested against real servers.

use crate::support::programs;
use crate::support::proxy::BINARY;
use std::process::Command;

fn package(name: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/clients.sh");
    programs::run(Command::new(script).arg(name).env("FENCEGATE_BINARY", BINARY));
}

#[test]
fn of_python() {
    package("python");
}

#[test]
fn of_typescript() {
    package("typescript");
}

#[test]
fn of_go() {
    package("go");
}
