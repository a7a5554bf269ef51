//! A cron on three nodes: one row per tick, whoever leads. See README.md beside this file.
//!
//! Without arguments it shows itself: servers, nodes, a leader that is cut off from etcd, and what the table says then.

mod actor;
mod check;
mod node;
mod relay;
mod show;

use clap::{Parser, Subcommand};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::error::Error;
use std::process::ExitCode;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// One node of the cron
    Node(Box<node::Node>),
    /// What stands between a node and etcd, to be stopped
    Relay(relay::Relay),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    if std::env::var_os(actor::STAGED).is_some() {
        // Nobody is left on the stage when the show is killed.
        set_pdeathsig(Signal::SIGKILL)?;
    }
    match arguments.part {
        Some(Part::Node(node)) => node.run().await?,
        Some(Part::Relay(relay)) => relay.run().await?,
        None => return show::run().await,
    }
    Ok(ExitCode::SUCCESS)
}
