//! The examples, as programs.

use super::programs::{self, run};
use super::proxy::BINARY;
use std::path::{Path, PathBuf};

/// The program of an example. Of the whole workspace, as the tests are built: other features would have everything compiled
/// again, and the program replaced beneath tests that use it.
pub fn example(name: &str) -> PathBuf {
    let mut cargo = programs::cargo();
    run(cargo.args(["build", "--quiet", "--locked", "--workspace", "--test", "behaviour", "--bin", name]));
    Path::new(BINARY).with_file_name(name)
}
