//! `fencegate demo`: demonstrates fencing on temporary servers.

use super::output::{Ended, complain, failed, runtime};
use crate::demo::{self, Played};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, io};
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Write the events of the last scene into this file, for `fencegate timeline`
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    let ended = runtime()?.block_on(until_interrupted());
    let result = ended.map_err(|error| failed(format!("cannot set up signal handling: {error}")))?;
    let interrupted = || failed("interrupted; temporary servers and files are removed");
    let Played { failures, events } = result.ok_or_else(interrupted)?.map_err(failed)?;
    if let Some(file) = &arguments.events {
        fs::write(file, events).map_err(|error| failed(format!("{}: {error}", file.display())))?;
    }
    failures.iter().for_each(|failure| complain(&format!("fencegate: failed: {failure}")));
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns None if a signal arrives first.
async fn until_interrupted() -> io::Result<Option<Result<Played, demo::DemoError>>> {
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
