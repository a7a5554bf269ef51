//! The limit of open files and sockets.

use crate::config::Settings;
use crate::state::shared::BESIDE_SESSIONS;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors for policies, listeners, etcd, a connection to each server of a list, up to six control connections per database,
/// and cancel requests.
const BESIDE_CLIENTS: u64 = 128 + BESIDE_SESSIONS as u64;

/// Raises the limit as far as permitted. Warns if it is insufficient for the connections in the settings.
pub fn provide(settings: &Settings) {
    // Two per session, and as many clients again may be waiting for one.
    let connections = settings.limits.connections.get() as u64;
    let needed = 3 * connections + BESIDE_CLIENTS;
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => return tracing::warn!(%error, "open_files_limit_unknown"),
    };
    if soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, soft, hard, "open_files_limit_not_raised");
    }
    if hard < needed {
        tracing::warn!(
            limit = hard,
            needed,
            max_connections = connections,
            hint = "raise LimitNOFILE or `ulimit -n`",
            "open_files_limit_too_low"
        );
    }
}
