//! `fencegate proxy`: reads settings and policies, and runs the proxy.

use super::{EXIT_USAGE, runtime};
use crate::config::{Settings, SettingsArguments};
use crate::etcd::Etcd;
use crate::policy;
use crate::server;
use crate::state::encryption::Encryption;
use crate::state::shared::Start;
use crate::statement::apart;
use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, setrlimit};
use std::fmt::Display;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    settings: SettingsArguments,
}

pub(super) fn run(arguments: Arguments) -> ExitCode {
    keep_memory_private();
    let settings = match Settings::load(&arguments.settings) {
        Ok(settings) => settings,
        Err(error) => return unusable(&error),
    };
    let policies = match policy::load(&settings.policies) {
        Ok(policies) => policies,
        Err(errors) => {
            errors.iter().for_each(|error| eprintln!("{error}"));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if let Err(error) = settings.check(&policies) {
        return unusable(&error);
    }
    let etcd = match settings.etcd.as_ref().map(Etcd::new).transpose() {
        Ok(etcd) => etcd,
        Err(error) => return unusable(&error),
    };
    let encryption = match Encryption::new(&settings) {
        Ok(encryption) => encryption,
        Err(error) => return unusable(&error),
    };
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    // This binary again, also where its file has been replaced since it was started.
    apart::set_program("/proc/self/exe".into());
    let start = Start { settings, arguments: arguments.settings, encryption, policies, etcd };
    let result = runtime.block_on(server::run(start));
    // What still reads a file, or waits for a name, must not keep the process.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// No core file, which would hold the passwords of control connections. The limit alone does not stop a program that the
/// kernel hands the core to; and who is not dumpable is also not looked into by other processes of the same user.
fn keep_memory_private() {
    // It fails only where the system forbids it, and then nothing is lost but this.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).ok();
    set_dumpable(false).ok();
}

fn unusable(error: &dyn Display) -> ExitCode {
    eprintln!("fencegate: {error}");
    ExitCode::from(EXIT_USAGE)
}
