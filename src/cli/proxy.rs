//! `fencegate proxy`: reads settings and policies, and runs the proxy.

use super::output::{Ended, load_policies, no_runtime, print, runtime, unusable};
use super::policy::summary;
use crate::config::{Settings, SettingsArguments};
use crate::listen::Inherited;
use crate::server::check::{Finding, Outcome, check};
use crate::server::process::Workers;
use crate::server::{self, Fingerprint};
use crate::state::shared::StartOptions;
use crate::tls::TlsMaterial;
use fencegate_leader::etcd::Etcd;
use fencegate_postgres::tls::TlsFileError;
use fencegate_statement::reader_process;
use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, setrlimit};
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    settings: SettingsArguments,
    /// Check the settings, policies, certificates and connections, then exit without starting the proxy
    #[arg(long)]
    check: bool,
    /// With --check, only warn about tables and functions in the policies that do not exist
    #[arg(long, requires = "check")]
    allow_unresolved: bool,
}

pub(super) fn run(arguments: Arguments) -> Ended {
    keep_memory_private();
    // First, because it changes the environment, which other threads may read.
    let inherited = Inherited::from_systemd().map_err(|error| unusable(format!("sockets of systemd: {error}")))?;
    let settings = Settings::load(&arguments.settings).map_err(unusable)?;
    let loaded = Fingerprint::of(&settings, &arguments.settings);
    let policies = load_policies(&settings.policies)?;
    settings.check(&policies).map_err(unusable)?;
    let etcd = settings.etcd.as_ref().map(Etcd::new).transpose().map_err(unusable)?;
    let lines =
        |errors: Vec<TlsFileError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nfencegate: ");
    let encryption = TlsMaterial::new(&settings).map_err(|errors| unusable(lines(errors)))?;
    let workers = settings.workers;
    let runtime = runtime()?;
    if arguments.check {
        let summary = summary(&policies);
        let start = StartOptions { settings, arguments: arguments.settings, encryption, policies, etcd };
        return Ok(print_findings(&summary, &runtime.block_on(check(start, arguments.allow_unresolved))));
    }
    // Starts this binary even if its file has been replaced.
    reader_process::set_program("/proc/self/exe".into());
    let start = StartOptions { settings, arguments: arguments.settings, encryption, policies, etcd };
    let (workers, relays) = Workers::start(workers).map_err(no_runtime)?;
    let result = runtime.block_on(server::run(start, inherited, workers, loaded));
    // Do not wait for pending file reads and name resolutions.
    runtime.shutdown_background();
    // The remaining sessions end with the process. Without the timers of their runtime they would panic.
    std::mem::forget(relays);
    result.map(|()| ExitCode::SUCCESS).map_err(|error| {
        tracing::error!("{error}");
        ExitCode::FAILURE
    })
}

/// Prints a line per finding. Its text includes the remedy.
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

/// Prevents core files and access to this process's memory, which holds the passwords of control connections. The limit
/// alone does not stop the kernel from piping a core to a program. Other processes of the same user cannot read the
/// memory of a process that is not dumpable.
fn keep_memory_private() {
    // Fails only if the system forbids it. Only this protection is lost then.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).ok();
    set_dumpable(false).ok();
}
