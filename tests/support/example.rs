//! The programs of the examples.

use super::programs::{self, run};
use super::proxy::BINARY;
use std::path::{Path, PathBuf};

/// Builds the program of an example. Builds the whole workspace, as the tests do: with other features, cargo would
/// recompile everything and replace the program while tests use it.
pub fn example(name: &str) -> PathBuf {
    let mut cargo = programs::cargo();
    run(cargo.args(["build", "--quiet", "--locked", "--workspace", "--test", "behaviour", "--bin", name]));
    Path::new(BINARY).with_file_name(name)
}
