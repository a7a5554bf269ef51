//! The binary: hands the command line to the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    fencegate::cli::run(std::env::args_os())
}
