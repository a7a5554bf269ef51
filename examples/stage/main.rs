//! Runs a command with temporary servers: PostgreSQL, etcd, and fencegate in front. See examples/README.md.
//! A Python command can import `scene.py` from this folder.
//!
//! Must never leave a server running, however the command or this program ends.

use clap::Parser;
use fencegate::stage::{Stage, forget_settings, program};
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

/// The database's superuser, because examples need no roles.
const LOGIN: &str = "user=postgres dbname=app";

#[derive(Parser)]
struct Arguments {
    /// Policy file
    policies: PathBuf,
    /// SQL that creates the tables
    schema: PathBuf,
    /// Output file for a picture of the writes that the proxy admitted and rejected over time
    #[arg(long)]
    timeline: Option<PathBuf>,
    /// Command with its arguments; its environment contains the servers' addresses
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    let policies = std::fs::read_to_string(&arguments.policies)?;
    let fencegate = program()?;
    let stage = Stage::start(&fencegate, &policies).await?;
    let direct = format!("host={} port=5432 {LOGIN}", stage.folder().display());
    let proxied = format!("host={} port=6432 {LOGIN}", stage.folder().display());
    let psql = stage.programs().join("psql");
    let schema = Command::new(&psql)
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(&arguments.schema)
        .env("PGOPTIONS", "-c client_min_messages=warning")
        .arg(&direct)
        .status()?;
    if !schema.success() {
        return Err("the schema could not be made".into());
    }
    // Kill the command with this program, because no other process would end it.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).args(&arguments.command);
    forget_settings(&mut command);
    let status = command
        .env(
            "PYTHONPATH",
            concat!(env!("CARGO_MANIFEST_DIR"), "/stage:", env!("CARGO_MANIFEST_DIR"), "/../clients/python"),
        )
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("DIRECT", direct)
        .env("PROXIED", proxied)
        .env("ETCD", stage.etcd())
        .env("STAGE", stage.folder())
        .env("FENCEGATE", &fencegate)
        .env("PSQL", psql)
        .status()?;
    if let Some(file) = arguments.timeline {
        let log = stage.folder().join("log");
        let drawn = Command::new(fencegate).arg("timeline").arg(log).stdout(File::create(file)?).status()?;
        if !drawn.success() {
            return Err("the timeline could not be drawn".into());
        }
    }
    Ok(exit_code(status))
}

/// The command's exit code; 1 if a signal ended the command.
fn exit_code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
