//! The examples, as programs.

use super::programs::{self, run};
use super::proxy::BINARY;
use std::path::{Path, PathBuf};

/// The program of an example. With the test program beside it, cargo uses the dependencies that `make test` has built.
pub fn example(name: &str) -> PathBuf {
    let packages = ["--package", "fencegate", "--package", "fencegate-examples"];
    let mut cargo = programs::cargo();
    run(cargo.args(["build", "--quiet", "--locked"]).args(packages).args(["--test", "behaviour", "--bin", name]));
    Path::new(BINARY).with_file_name(name)
}
