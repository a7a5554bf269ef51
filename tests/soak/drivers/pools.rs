//! Connection pools: a client that checks out a connection presents the current token, regardless of the connection's
//! last user, and gets another connection if that one was terminated.
//!
//! docs/use/drivers-and-pools.md has the code to copy. That code is part of the programs that run here. The packages of
//! clients/ test the pools for which they have a hook.

use crate::drivers::program::{self, java, sqlx};
use crate::drivers::steps::{Report, World};
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/use/drivers-and-pools.md");

#[test]
#[ignore = "needs a JDK and two packages: make drivers"]
fn with_hikari_pool() {
    visits_a_pool("HikariCP", || java("HikariPoolSteps.java"));
}

#[test]
#[ignore = "builds a crate of its own: make drivers"]
fn with_sqlx_pool() {
    visits_a_pool("sqlx", || sqlx("pool_steps"));
}

#[test]
fn the_documented_code_is_what_runs() {
    let programs = [include_str!("java/HikariPoolSteps.java"), include_str!("sqlx/src/bin/pool_steps.rs")];
    let blocks: Vec<&str> = section().split("```").skip(1).step_by(2).collect();
    assert_eq!(blocks.len(), programs.len(), "a block for each pool, in this order");
    for (block, program) in blocks.iter().zip(programs) {
        let (_, code) = block.split_once('\n').expect("the language");
        for paragraph in code.split("\n\n") {
            assert!(flush_left(program).contains(flush_left(paragraph).trim()), "not in the program: {paragraph}");
        }
    }
}

/// The section about pools.
fn section() -> &'static str {
    let (_, section) = PAGE.split_once("\n## Connection pools\n").expect("the section");
    section.split("\n## ").next().unwrap_or_default()
}

fn flush_left(code: &str) -> String {
    code.lines().map(|line| format!("{}\n", line.trim())).collect()
}

/// The pool has one connection.
fn visits_a_pool(name: &str, command: impl FnOnce() -> Command) {
    let world = World::start();
    let report = Report::of(&program::output(command(), &world.address()));
    // The version of HikariCP depends on the system.
    if let Some(version) = report.result("version") {
        assert!(section().contains(&format!("{name} {version}")), "the page names another version than {version}");
    }
    let found = |visit: &str| report.result(visit).unwrap_or_else(|| panic!("{visit}: {report:#?}")).to_owned();
    let (token, session) =
        found("first").split_once(' ').map(|(token, pid)| (token.to_owned(), pid.to_owned())).unwrap();
    assert_eq!(token, "'1'");
    // The same session with the token of the next user.
    assert_eq!(found("newer"), format!("'2' {session}"));
    assert_eq!(found("none"), format!("'' {session}"));
    assert_eq!(found("refused"), "LF002");
    assert_eq!(found("rolled_back"), format!("'2' {session}"));
    assert_eq!(found("cut_off"), "LF001");
    let after = found("after");
    assert!(after.starts_with("'3' ") && !after.ends_with(&format!(" {session}")), "{report:#?}");
    // Refused and interrupted writes left no rows.
    assert_eq!(world.jobs(), "0");
}
