//! Pages of the documentation: the blocks of code in them, which tests run.

use super::programs::{self, forget_settings};
use super::proxy::BINARY;
use std::path::Path;
use std::process::{Command, Stdio};

/// The fenced blocks of that language.
pub fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    let rest = page.split(&start).skip(1);
    rest.map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

/// Runs a block of `sh`.
pub fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-eu", "-c", script]).env("PATH", path()).stdin(Stdio::null());
    forget_settings(&mut command);
    command
}

/// With the program under test and PostgreSQL's in front.
pub fn path() -> String {
    let program = Path::new(BINARY).parent().unwrap().display().to_string();
    let postgres = programs::postgres_program("psql");
    let postgres = postgres.parent().unwrap().display().to_string();
    format!("{program}:{postgres}:{}", std::env::var("PATH").unwrap())
}
