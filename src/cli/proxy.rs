//! `fencegate proxy`: reads settings and policies, and runs the proxy.

use super::output::{load_policies, print};
use super::policy::summary;
use super::{Ended, no_runtime, runtime, unusable};
use crate::config::{Settings, SettingsArguments};
use crate::etcd::Etcd;
use crate::reader_process;
use crate::server::{
    self,
    check::{Finding, Outcome, check},
    workers::Workers,
};
use crate::state::encryption::TlsMaterial;
use crate::state::shared::StartOptions;
use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, setrlimit};
use std::process::ExitCode;
use tokio::runtime::Runtime;

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    settings: SettingsArguments,
    /// Only check the settings, policies and certificates, and ask the server, the control connections and etcd
    #[arg(long)]
    check: bool,
    /// With --check: a table or function of the policies that does not exist is only a warning
    #[arg(long, requires = "check")]
    allow_unresolved: bool,
}

pub(super) fn run(arguments: Arguments) -> Ended {
    keep_memory_private();
    let settings = Settings::load(&arguments.settings).map_err(unusable)?;
    let policies = load_policies(&settings.policies)?;
    settings.check(&policies).map_err(unusable)?;
    let etcd = settings.etcd.as_ref().map(Etcd::new).transpose().map_err(unusable)?;
    let encryption = TlsMaterial::new(&settings).map_err(unusable)?;
    let workers = settings.workers;
    let runtime = runtime()?;
    if arguments.check {
        let summary = summary(&policies);
        let start = StartOptions { settings, arguments: arguments.settings, encryption, policies, etcd };
        return Ok(print_findings(&summary, &runtime.block_on(check(start, arguments.allow_unresolved))));
    }
    // This binary again, also where its file has been replaced since it was started.
    reader_process::set_program("/proc/self/exe".into());
    let start = StartOptions { settings, arguments: arguments.settings, encryption, policies, etcd };
    let (workers, runtimes) = Workers::start(workers).map_err(no_runtime)?;
    let result = runtime.block_on(server::run(start, workers));
    // What still reads a file, or waits for a name, must not keep the process.
    runtimes.into_iter().chain([runtime]).for_each(Runtime::shutdown_background);
    result.map(|()| ExitCode::SUCCESS).map_err(|error| {
        tracing::error!("{error}");
        ExitCode::FAILURE
    })
}

/// A line for each; what follows the name says what to do.
fn print_findings(policies: &str, findings: &[Finding]) -> ExitCode {
    let line = |finding: &Finding| match &finding.outcome {
        Outcome::Good(said) => format!("ok      {}: {said}\n", finding.what),
        Outcome::Warning(advice) => format!("warning {}: {advice}\n", finding.what),
        Outcome::Failed(error) => format!("failed  {}: {error}\n", finding.what),
    };
    let lines: String = findings.iter().map(line).collect();
    print(&format!("ok      settings and certificates\nok      {policies}{lines}"));
    let has_failed = findings.iter().any(|finding| matches!(finding.outcome, Outcome::Failed(_)));
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// No core file, which would hold the passwords of control connections. The limit alone does not stop a program that the
/// kernel hands the core to; and other processes of the same user cannot read the memory of one that is not dumpable.
fn keep_memory_private() {
    // It fails only where the system forbids it, and then nothing is lost but this.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).ok();
    set_dumpable(false).ok();
}
