//! `fencegate timeline`: draws the history in the logs of proxies and leaders.

use super::output::{Ended, failed, print};
use crate::timeline::{Events, draw};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Logs of proxies and `fencegate lead`, written with --log-format json; `-` for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    let mut events = Events::default();
    for file in &arguments.files {
        let read = if file == Path::new("-") {
            events.read(io::stdin().lock())
        } else {
            File::open(file).and_then(|log| events.read(BufReader::new(log)))
        };
        read.map_err(|error| failed(format!("{}: {error}", file.display())))?;
    }
    let picture = draw(events).ok_or_else(|| {
        failed("no events to draw: write the logs with --log-format json; they must have events such as lease_acquired or session_admitted")
    })?;
    print(&picture);
    Ok(ExitCode::SUCCESS)
}
