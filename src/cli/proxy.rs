//! `fencegate proxy`: reads settings and policies, and runs the proxy.

use super::{EXIT_USAGE, runtime};
use crate::config::{Settings, SettingsArguments};
use crate::{policy, proxy};
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    settings: SettingsArguments,
}

pub(super) fn run(arguments: Arguments) -> ExitCode {
    let settings = match Settings::load(arguments.settings) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("fencegate: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let policies = match policy::load(&settings.policies) {
        Ok(policies) => policies,
        Err(errors) => {
            errors.iter().for_each(|error| eprintln!("{error}"));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    match runtime.block_on(proxy::run(settings, policies)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
