//! The examples, as programs.

use super::programs::{self, run};
use super::proxy::BINARY;
use std::path::{Path, PathBuf};

/// The program of an example. With a test program beside it, it has the dependencies that the tests have built already.
pub fn example(name: &str) -> PathBuf {
    let packages = ["--package", "fencegate", "--package", "fencegate-examples"];
    let mut cargo = programs::cargo();
    run(cargo.args(["build", "--quiet", "--locked"]).args(packages).args(["--test", "soak", "--bin", name]));
    Path::new(BINARY).with_file_name(name)
}
