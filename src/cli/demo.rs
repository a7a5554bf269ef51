//! `fencegate demo`: shows the fence at work on throwaway servers.

use super::output::complain;
use super::{Ended, failed, runtime};
use crate::demo;
use std::io;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

pub(super) fn run() -> Ended {
    let ended = runtime()?.block_on(until_interrupted());
    let result = ended.map_err(|error| failed(format!("cannot set up signal handling: {error}")))?;
    let failures = result.ok_or_else(|| failed("interrupted; nothing is left behind"))?.map_err(failed)?;
    failures.iter().for_each(|failure| complain(&format!("fencegate: did not hold: {failure}")));
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
