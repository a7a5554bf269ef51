//! `fencegate demo`: shows the fence at work on throwaway servers.

use super::runtime;
use crate::demo;
use std::io;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

pub(super) fn run() -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    match runtime.block_on(until_interrupted()) {
        Ok(Some(Ok(failures))) if failures.is_empty() => ExitCode::SUCCESS,
        Ok(Some(Ok(failures))) => {
            failures.iter().for_each(|failure| eprintln!("fencegate: did not hold: {failure}"));
            ExitCode::FAILURE
        }
        Ok(Some(Err(error))) => {
            eprintln!("fencegate: {error}");
            ExitCode::FAILURE
        }
        Ok(None) => {
            eprintln!("fencegate: interrupted; nothing is left behind");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("fencegate: cannot set up signal handling: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The demo's result; None when a signal came first.
async fn until_interrupted() -> io::Result<Option<Result<Vec<String>, demo::DemoError>>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        result = demo::run() => Some(result),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        _ = hangup.recv() => None,
    })
}
