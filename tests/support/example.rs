//! The examples, as programs.

use super::programs::run;
use super::proxy::BINARY;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of an example. `cargo test` has built it, unless one test alone was asked for.
pub fn example(name: &str) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    // What cargo says to a test about its package would be news to the build scripts, which would all run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|start| text.starts_with(start)) {
            cargo.env_remove(name);
        }
    }
    run(cargo.args(["build", "--quiet", "--locked", "--example", name]));
    Path::new(BINARY).with_file_name("examples").join(name)
}
