//! The binary: hands the command line to the library.

use std::process::ExitCode;

/// Gives what is free back to the system, also when nothing happens any more: docs/decisions/039.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    fencegate::cli::run(std::env::args_os())
}
