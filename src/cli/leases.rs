//! `fencegate leases`: lists the leaders, as a database with leases or etcd reports them.
//!
//! Must never change anything there.

use super::exit::{Ended, database, failed, runtime, unusable};
use super::output::{print, table};
use crate::config::{EtcdAccess, EtcdArguments};
use fencegate_leader::etcd::{Etcd, leaders};
use fencegate_leader::{ElectionName, Leader, Leases, Patience, RunningLease};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use x509_cert::der::DateTime;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// URL of a database with leases, postgres://user@host/database; or the etcd members, http://host:2379 or
    /// https://host:2379, separated by commas
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    access: EtcdAccess,
}

pub(super) fn run(Arguments { url, access }: Arguments) -> Ended {
    let is_etcd = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    let lines = if is_etcd { in_etcd(url, access) } else { in_database(&url) }?;
    let header = ["ELECTION", "HOLDER", "TOKEN", "EXPIRES"];
    let cells = lines.iter().map(|line| line.each_ref().map(String::as_str));
    print(&table(&std::iter::once(header).chain(cells).collect::<Vec<_>>()));
    Ok(ExitCode::SUCCESS)
}

fn in_database(url: &str) -> Result<Vec<[String; 4]>, ExitCode> {
    let config = database("URL", url)?;
    let leases = Leases::new(config);
    let running = runtime()?.block_on(leases.running(Patience::USUAL)).map_err(failed)?;
    let line = |it: RunningLease| [shown(it.election), shown(it.holder), it.token.to_string(), utc(it.expires)];
    Ok(running.into_iter().map(line).collect())
}

/// Omits expiry times: etcd reports them only for one lease at a time.
fn in_etcd(url: String, access: EtcdAccess) -> Result<Vec<[String; 4]>, ExitCode> {
    let etcd = url.split(',').map(str::to_owned).collect();
    let settings = EtcdArguments { etcd, access }.settings();
    let settings = settings.map_err(unusable)?.unwrap_or_default();
    let etcd = Etcd::new(&settings).map_err(unusable)?;
    let leaders = runtime()?.block_on(leaders(&etcd, Patience::USUAL)).map_err(failed)?;
    let line = |(election, leader): (ElectionName, Leader)| {
        [shown(election), shown(String::from_utf8_lossy(&leader.value)), leader.token.to_string(), String::new()]
    };
    Ok(leaders.into_iter().map(line).collect())
}

/// UTC, in RFC 3339 format with milliseconds. Empty for a year after 9999.
fn utc(time: SystemTime) -> String {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let Ok(date) = DateTime::from_unix_duration(since_epoch) else { return String::new() };
    format!("{}.{:03}Z", date.to_string().trim_end_matches('Z'), since_epoch.subsec_millis())
}

/// Escapes line breaks.
fn shown(text: impl std::fmt::Display) -> String {
    text.to_string().replace(char::is_control, " ")
}
