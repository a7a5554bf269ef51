//! The experience of drivers' users: the same steps with each driver, through the proxy. A driver connects with a token
//! in its own way, writes by each of its methods, and reports the SQLSTATE of each rejection in its own error.
//!
//! A driver is a program that takes the steps and prints the result of each. To add one, write such a program, give it
//! a test here, and put the row that this test requires into docs/reference/compatibility.md.

mod pools;
pub mod program;
mod steps;

mod table;
mod tokio_postgres_steps;

use program::{java, node, psql, python, sqlx};
use steps::{Report, World};

#[test]
fn with_psql() {
    in_a_program("psql", psql);
}

#[test]
fn with_psycopg() {
    in_a_program("psycopg", || python("psycopg_steps.py"));
}

#[test]
fn with_asyncpg() {
    in_a_program("asyncpg", || python("asyncpg_steps.py"));
}

#[test]
fn with_sqlalchemy() {
    in_a_program("SQLAlchemy", || python("sqlalchemy_steps.py"));
}

#[test]
fn with_django() {
    in_a_program("Django", || python("django_steps.py"));
}

#[test]
fn with_node_postgres() {
    in_a_program("node-postgres", || node("node_postgres_steps.js"));
}

#[test]
fn with_postgres_js() {
    in_a_program("postgres.js", || node("postgres_js_steps.js"));
}

#[test]
fn with_tokio_postgres() {
    takes_every_step("tokio-postgres", |world| tokio_postgres_steps::run(&world.address()));
}

#[test]
#[ignore = "needs a JDK and two packages: make drivers"]
fn with_jdbc() {
    in_a_program("JDBC", || java("JdbcSteps.java"));
}

#[test]
#[ignore = "builds a crate of its own: make drivers"]
fn with_sqlx() {
    in_a_program("sqlx", || sqlx("steps"));
}

fn in_a_program(driver: &str, command: impl FnOnce() -> std::process::Command) {
    takes_every_step(driver, |world| program::output(command(), &world.address()));
}

fn takes_every_step(driver: &str, take: impl FnOnce(&World) -> String) {
    let world = World::start();
    let report = Report::of(&take(&world));
    report.assert_as_expected();
    // Refused, rolled back and interrupted writes left no rows.
    assert_eq!(world.jobs(), "4");
    table::assert_row(driver, &report);
}
