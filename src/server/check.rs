//! `fencegate proxy --check`: what a proxy with these settings would meet, without running one.
//!
//! Must change nothing, and leave no connection behind.

use crate::etcd::{ElectionName, Etcd, Patience, leader};
use crate::fence::session::Token;
use crate::guard::{self, GuardState};
use crate::metrics::Metrics;
use crate::net::upstream;
use crate::policy::{PolicySet, Resource};
use crate::state::shared::{Shared, StartOptions};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// What is asked about the guard of a database may take longer than a question to a healthy server.
const GUARD_LIMIT: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Debug)]
pub struct Finding {
    /// What was asked: `upstream`, `control app`, …
    pub what: String,
    /// How it is; the error says what to do.
    pub result: Result<String, String>,
}

impl Finding {
    fn new(what: impl Into<String>, result: Result<String, String>) -> Self {
        Self { what: what.into(), result }
    }
}

/// Asks the server, the control connections with guards and leases, and etcd, in this order. Cancel-safe.
pub async fn check(start: StartOptions) -> Vec<Finding> {
    let etcd = start.etcd.clone();
    // Without an authority: it would follow the elections.
    let start = StartOptions { etcd: None, ..start };
    let Ok(metrics) = Metrics::new() else { return Vec::new() };
    let shared = Shared::new(start, "check".to_owned(), Arc::new(metrics));
    let policies = shared.policies.borrow().clone();
    let mut findings = vec![Finding::new("upstream", ask_upstream(&shared).await)];
    for database in databases(&shared, &policies) {
        let control = shared.can_control(&database, !policies.resources.is_empty()).await;
        let is_reached = control.is_ok();
        let said = || "reached, with what the fences need".to_owned();
        findings.push(Finding::new(format!("control {database}"), control.map(|()| said())));
        if is_reached && !policies.resources.is_empty() {
            findings.push(Finding::new(format!("guard {database}"), ask_guard(&shared, &database, &policies).await));
            findings.extend(ask_leases(&shared, &database, &policies).await);
        }
    }
    if let Some(etcd) = etcd {
        findings.extend(ask_etcd(&etcd, &policies).await);
    }
    findings
}

/// Those that the policies name, or that of the control connection.
fn databases(shared: &Shared, policies: &PolicySet) -> Vec<String> {
    policies.databases.clone().unwrap_or_else(|| vec![shared.settings().control_database().to_owned()])
}

async fn ask_upstream(shared: &Shared) -> Result<String, String> {
    let address = shared.settings().upstream.to_string();
    match upstream::reach(shared).await {
        Ok(()) => Ok(format!("{address} accepts connections")),
        Err(error) => match upstream::tls_text(&error) {
            Some(text) => Err(format!("{address}: {}: {}", text.message, text.hint)),
            None => Err(format!("{address}: {error}: is PostgreSQL running there?")),
        },
    }
}

async fn ask_guard(shared: &Shared, database: &str, policies: &PolicySet) -> Result<String, String> {
    let control = shared.encryption.control_for(&shared.settings(), database);
    let Ok(status) = timeout(GUARD_LIMIT, guard::status(&control, policies)).await else {
        return Err(format!("the server did not answer within {} s", GUARD_LIMIT.as_secs()));
    };
    let lines = status.map_err(|error| error.to_string())?.lines;
    let is_there = |state: GuardState| !matches!(state, GuardState::Missing | GuardState::NotMade);
    if !lines.iter().any(|line| is_there(line.state)) {
        return Ok("not installed: functions, triggers and direct connections are not fenced, see `fencegate guard`"
            .to_owned());
    }
    match lines.iter().find(|line| !line.state.is_well()) {
        None => Ok("installed, as the policies say".to_owned()),
        Some(line) => {
            Err(format!("{} is {}: run `fencegate guard install` with these policies", line.table, line.state.name()))
        }
    }
}

/// Each lease that a policy names in full.
async fn ask_leases(shared: &Shared, database: &str, policies: &PolicySet) -> Vec<Finding> {
    let leases = shared.shared_database(database).fence.read_leases(&policies.resources).await;
    let of = |resource: &Arc<Resource>| {
        let name = resource.lease()?;
        let leader = leases.as_ref().map(|leases| leases.get(&resource.name).copied().flatten()).map_err(Clone::clone);
        Some(Finding::new(format!("lease {name} in {database}"), leader.map(led_by)))
    };
    policies.resources.iter().filter_map(of).collect()
}

fn led_by(leader: Option<Token>) -> String {
    leader.map_or_else(|| "nobody leads".to_owned(), |token| format!("its leader has token {token}"))
}

/// Each election that a policy names in full; of those with a key only that etcd answers.
async fn ask_etcd(etcd: &Etcd, policies: &PolicySet) -> Vec<Finding> {
    let elections = policies.elections();
    let asked = elections
        .iter()
        .map(async |election| Finding::new(format!("etcd {election}"), ask_election(etcd, election).await));
    // Where etcd is away, each waits for its limit.
    let mut findings = join_all(asked).await;
    if findings.is_empty()
        && let Ok(any) = "/fencegate".parse()
    {
        findings.push(Finding::new("etcd", ask_election(etcd, &any).await.map(|_| "answers".to_owned())));
    }
    findings
}

async fn ask_election(etcd: &Etcd, election: &ElectionName) -> Result<String, String> {
    match leader(etcd, election, Patience::USUAL).await {
        Ok((leader, _)) => Ok(led_by(leader.map(|it| it.token))),
        Err(error) => Err(error.to_string()),
    }
}
