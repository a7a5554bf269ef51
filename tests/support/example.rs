//! The examples, as programs.

use super::programs::{self, run};
use super::proxy::BINARY;
use std::path::{Path, PathBuf};

/// The program of an example. `cargo test` has built it, unless one test alone was asked for.
pub fn example(name: &str) -> PathBuf {
    run(programs::cargo().args(["build", "--quiet", "--locked", "--example", name]));
    Path::new(BINARY).with_file_name("examples").join(name)
}
