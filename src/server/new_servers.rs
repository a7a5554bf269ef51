//! The servers of a reload: looks at them before sessions depend on them.
//!
//! Must never put a server in force: `reload` does.

use super::prober;
use crate::config::Settings;
use crate::net::upstream;
use crate::state::encryption::TlsMaterial;
use crate::state::server_table::{Look, ServerReport};
use crate::state::shared::Shared;
use fencegate_postgres::tls::ControlConfig;
use std::io;

/// Why the servers of a reload cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NewServersError {
    /// Sessions and tokens of one cluster mean nothing in another one.
    #[error(
        "{host} belongs to another cluster ({found}) than the servers in force ({in_force}): to move to another cluster, restart the proxy"
    )]
    OtherCluster {
        /// The server's address.
        host: String,
        /// Its system identifier.
        found: String,
        /// The system identifier of the servers in force.
        in_force: String,
    },
    /// The only server is an old primary.
    #[error("{host} is superseded: it is on timeline {timeline}, and the highest seen in its cluster is {highest}")]
    Superseded {
        /// The server's address.
        host: String,
        /// Its timeline.
        timeline: u32,
        /// The highest timeline.
        highest: u32,
    },
    /// No server of a list answers.
    #[error("no server can be used: {0}")]
    NoAnswer(String),
    /// The only server cannot be reached.
    #[error("{host} cannot be reached: {error}")]
    Unreachable {
        /// The server's address.
        host: String,
        /// The system's error.
        error: io::Error,
    },
}

/// Looks at each server of new settings. Cancel-safe.
///
/// # Errors
/// A server is of another cluster than those in force, or none can be used.
pub async fn look(
    shared: &Shared,
    settings: &Settings,
    encryption: &TlsMaterial,
) -> Result<Vec<Look>, NewServersError> {
    let control = ControlConfig::new(settings.control.clone(), encryption.control.clone());
    let control = control.with_database(settings.control_database());
    let (looks, in_force) = tokio::join!(prober::look_once(&control, settings), cluster_in_force(shared));
    let reports = || looks.iter().filter_map(|look| Some((&look.address, look.result.as_ref().ok()?)));
    let is_other = |report: &ServerReport| in_force.as_ref().is_some_and(|it| *it != report.system_identifier);
    if let Some((host, report)) = reports().find(|(_, report)| is_other(report)) {
        return Err(NewServersError::OtherCluster {
            host: host.to_string(),
            found: report.system_identifier.clone(),
            in_force: in_force.unwrap_or_default(),
        });
    }
    if let (false, Some((host, report))) = (settings.upstream.is_probed(), reports().next()) {
        let highest = shared.servers.table().highest(report);
        if report.timeline < highest {
            return Err(NewServersError::Superseded { host: host.to_string(), timeline: report.timeline, highest });
        }
    }
    if reports().next().is_some() {
        return Ok(looks);
    }
    let host = match settings.upstream.hosts.as_slice() {
        // Sessions use the only server even if the control role may not log in at this address.
        [host] if !settings.upstream.is_probed() => host,
        _ => return Err(NewServersError::NoAnswer(summary(&looks))),
    };
    match upstream::try_to_connect(settings, encryption, host).await {
        Ok(_) => Ok(looks),
        Err(error) => Err(NewServersError::Unreachable { host: host.to_string(), error }),
    }
}

/// Looks at the server of a new control connection, which can be used otherwise. Cancel-safe.
///
/// # Errors
/// It is of another cluster than the servers in force.
pub async fn look_at_control(shared: &Shared, control: &ControlConfig) -> Result<(), NewServersError> {
    match tokio::join!(prober::look_at_control(control), cluster_in_force(shared)) {
        (Ok(report), Some(in_force)) if report.system_identifier != in_force => Err(NewServersError::OtherCluster {
            host: "its server".to_owned(),
            found: report.system_identifier,
            in_force,
        }),
        _ => Ok(()),
    }
}

/// The system identifier of the servers in force; None if it is not known.
async fn cluster_in_force(shared: &Shared) -> Option<String> {
    if shared.servers.is_probed() {
        return shared.servers.table().cluster().map(ToOwned::to_owned);
    }
    let settings = shared.settings();
    let looks = prober::look_once(&shared.control_for(settings.control_database()), &settings).await;
    let reported = looks.into_iter().find_map(|look| Some(look.result.ok()?.system_identifier));
    let of_sessions = || {
        let sessions = shared.sessions.list();
        sessions.iter().rev().find_map(|it| Some(it.fence.identity.as_ref().ok()?.system_identifier.clone()))
    };
    reported.or_else(of_sessions)
}

fn summary(looks: &[Look]) -> String {
    let failure = |it: &Look| Some(format!("{}: {}", it.address, it.result.as_ref().err()?));
    looks.iter().filter_map(failure).collect::<Vec<_>>().join("; ")
}
