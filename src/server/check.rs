//! `fencegate proxy --check`: finds the problems that a proxy with these settings would have, without running one.
//!
//! Must change nothing, and leave no connection open.

use super::prober;
use super::tables::{TableState, state_in};
use crate::config::{Encryption, Settings};
use crate::metrics::Metrics;
use crate::net::{refused, upstream};
use crate::state::server_table::{ServerRole, ServerState};
use crate::state::shared::{Shared, StartOptions};
use fencegate_catalog::{DatabaseNames, missing_text, with_tables};
use fencegate_fence::guard::{self, GuardState};
use fencegate_fence::session::Token;
use fencegate_fence::{Need, Remedy};
use fencegate_leader::etcd::{Etcd, EtcdError, leader};
use fencegate_leader::{ElectionName, Patience};
use fencegate_policy::{PolicySet, Resource};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Time limit for checking a database's guard, which may take longer than a query to a healthy server.
const GUARD_LIMIT: Duration = Duration::from_secs(10);

/// A result of the check.
#[derive(Debug)]
pub struct Finding {
    /// The object of the check: `upstream`, `control app`, …
    pub what: String,
    /// Outcome of the check.
    pub outcome: Outcome,
}

/// Outcome of a check.
#[derive(Debug)]
pub enum Outcome {
    /// No problem.
    Good(String),
    /// A possible problem, with its remedy.
    Warning(String),
    /// A problem, with its remedy.
    Failed(String),
}

impl<E: Display> From<Result<String, E>> for Outcome {
    fn from(result: Result<String, E>) -> Self {
        result.map_or_else(|error| Outcome::Failed(error.to_string()), Outcome::Good)
    }
}

impl Finding {
    fn new(what: impl Into<String>, outcome: impl Into<Outcome>) -> Self {
        Self { what: what.into(), outcome: outcome.into() }
    }
}

/// Checks the server, the control connections with guards and leases, and etcd, in this order. With `allow_unresolved`,
/// a name in the policies that no database has is only a warning. Cancel-safe.
pub async fn check(start: StartOptions, allow_unresolved: bool) -> Vec<Finding> {
    let etcd = start.etcd.clone();
    // Omit etcd here: the authority would start to follow the elections.
    let start = StartOptions { etcd: None, ..start };
    let Ok(metrics) = Metrics::new() else { return Vec::new() };
    let shared = Shared::new(start, "check".to_owned(), Arc::new(metrics));
    let policies = shared.policies.borrow().clone();
    let mut findings = Vec::new();
    if shared.servers.is_probed() {
        let settings = shared.settings();
        for look in prober::look_once(&shared.control_for(settings.control_database()), &settings).await {
            shared.servers.report(1, look, |_, _| {});
        }
        findings.extend(shared.servers.table().hosts().iter().map(of_server));
    }
    let upstream = upstream::reach(&shared).await;
    let is_encrypted = matches!(upstream, Ok(true));
    findings.insert(0, Finding::new("upstream", upstream_outcome(&shared, upstream)));
    findings.extend(clear_text(&shared.settings()).filter(|_| is_encrypted));
    findings.extend(query_databases(&shared, &policies, allow_unresolved).await);
    if let Some(etcd) = etcd {
        findings.extend(query_etcd(&etcd, &policies).await);
    }
    findings
}

fn upstream_outcome(shared: &Shared, reached: io::Result<bool>) -> Outcome {
    let address = shared.settings().upstream.to_string();
    match reached {
        Ok(_) => Outcome::Good(format!("{address} accepts connections")),
        Err(error) => Outcome::Failed(match refused::tls_text(&error) {
            Some(text) => format!("{address}: {}: {}", text.message, text.hint),
            None => format!("{address}: {error}: check that PostgreSQL is running there"),
        }),
    }
}

/// A host of the list. A host that is down causes only a warning, because the proxy works without it.
fn of_server(server: &ServerState) -> Finding {
    let host = &server.address;
    let outcome = match (&server.failure, &server.report) {
        (Some(error), _) => Outcome::Warning(format!("{host}: {error}")),
        (None, Some(report)) if server.role == ServerRole::Superseded => {
            Outcome::Warning(format!("{host} accepts writes on timeline {}, but is not the primary", report.timeline))
        }
        (None, Some(report)) => {
            Outcome::Good(format!("{host} is {}, timeline {}", server.role.name(), report.timeline))
        }
        (None, None) => Outcome::Warning(format!("{host}: no answer")),
    };
    Finding::new("server", outcome)
}

/// Warns if clients may send clear text over a network. If the connection between proxy and server uses TLS,
/// pg_hba.conf does not stop them.
fn clear_text(settings: &Settings) -> Option<Finding> {
    let is_required = settings.tls.as_ref().is_some_and(|tls| tls.encryption == Encryption::Require);
    let exposed = settings.listen.iter().find(|address| address.is_on_network()).filter(|_| !is_required)?;
    let text = format!(
        "{exposed} accepts connections without TLS, and `hostnossl … reject` in pg_hba.conf does not stop them, because the \
         server sees only the proxy's TLS: set `tls: require`, with tls_cert and tls_key"
    );
    Some(Finding::new("clients", Outcome::Warning(text)))
}

/// Checks the databases that the policies name; by default, those with the schema or a table of the policies.
async fn query_databases(shared: &Shared, policies: &PolicySet, allow_unresolved: bool) -> Vec<Finding> {
    let settings = shared.settings();
    let usual = settings.control_database();
    let mut findings = Vec::new();
    let can_connect = shared.can_control(usual, Need::Server).await;
    let is_reached = can_connect.is_ok();
    let is_concerned = |(database, names): &(&String, &DatabaseNames)| match names {
        _ if policies.databases.is_some() => policies.applies_to(database),
        DatabaseNames::Found(found) => found.is_prepared || found.has_tables(),
        DatabaseNames::NoDatabase | DatabaseNames::Unread(_) => false,
    };
    // If the databases cannot be listed, the control connection fails too and reports the reason.
    let names = match policies.resources.is_empty() {
        true => BTreeMap::new(),
        false => shared.read_names(&[policies]).await.unwrap_or_default(),
    };
    let concerned: Vec<_> = names.iter().filter(is_concerned).collect();
    if !concerned.iter().any(|(database, _)| *database == usual) {
        findings.push(Finding::new(format!("control {usual}"), can_connect.map(|()| "reached".to_owned())));
    }
    for (database, names) in &concerned {
        findings.extend(query_database(shared, policies, database, names).await);
    }
    if is_reached && concerned.is_empty() && !policies.resources.is_empty() {
        let command = settings.init_command(settings.control.get_dbname().unwrap_or("DATABASE"));
        let advice = format!(
            "no database has the schema fencegate or a table of the policies: for each database that will have one, run {command}"
        );
        findings.push(Finding::new("databases", Outcome::Failed(advice)));
    }
    let missing = tables(policies, &names, allow_unresolved);
    if is_reached && policies.databases.is_none() && (concerned.is_empty() || !missing.is_empty()) {
        findings.extend(closed_databases(shared).await);
    }
    findings.extend(missing);
    let fenced = with_tables(policies, &names);
    if fenced.len() > 1 {
        let text = format!(
            "without `databases`, the policies fence tables in {}: list the intended ones, databases: [{}]",
            fenced.join(", "),
            fenced.first().map(String::as_str).unwrap_or_default()
        );
        findings.push(Finding::new("databases", Outcome::Warning(text)));
    }
    findings
}

/// Warns of databases that the control role may not connect to. A missing table may be in one of them.
async fn closed_databases(shared: &Shared) -> Option<Finding> {
    let settings = shared.settings();
    let control = shared.control_for(settings.control_database());
    let Ok(Ok(closed)) = timeout(GUARD_LIMIT, fencegate_fence::closed_databases(&control)).await else { return None };
    let text = format!(
        "the control role {role} may not connect to {databases}. Where the policies fence tables: GRANT CONNECT ON DATABASE … TO {role}",
        role = control.role(),
        databases = closed.join(", ")
    );
    (!closed.is_empty()).then(|| Finding::new("databases", Outcome::Warning(text)))
}

async fn query_database(shared: &Shared, policies: &PolicySet, database: &str, names: &DatabaseNames) -> Vec<Finding> {
    let settings = shared.settings();
    let control = match names {
        DatabaseNames::NoDatabase => {
            Outcome::Failed(format!("database {database} does not exist: correct `databases` in the policies"))
        }
        _ => match shared.can_control(database, Need::Schema).await {
            Ok(()) => Outcome::Good("reached, ready for fences".to_owned()),
            Err(error) => Outcome::Failed(match error.remedy() {
                Remedy::Init | Remedy::Grant => format!("{error}; run {}", settings.init_command(database)),
                _ => error.to_string(),
            }),
        },
    };
    let is_reached = matches!(control, Outcome::Good(_));
    let mut findings = vec![Finding::new(format!("control {database}"), control)];
    if is_reached {
        findings.push(Finding::new(format!("guard {database}"), query_guard(shared, database, policies).await));
        findings.extend(query_leases(shared, database, policies).await);
    }
    findings
}

/// A finding for each table and function of the policies that no database has.
fn tables(policies: &PolicySet, names: &BTreeMap<String, DatabaseNames>, allow_unresolved: bool) -> Vec<Finding> {
    let outcome = if allow_unresolved { Outcome::Warning } else { Outcome::Failed };
    let of = || names.iter().filter(|(database, _)| policies.applies_to(database));
    let mut findings = Vec::new();
    for resource in &policies.resources {
        for table in &resource.tables {
            let state = state_in(table, of(), |_, found| found.has_table(&table.name));
            if let TableState::Unresolved(reason) = state {
                findings.push(Finding::new(format!("table {}", table.name), outcome(reason)));
            }
        }
        for function in &resource.functions {
            let has = |names: &DatabaseNames| match names {
                DatabaseNames::Found(found) => found.has_function(function),
                DatabaseNames::NoDatabase => false,
                DatabaseNames::Unread(_) => true,
            };
            if let Some((database, _)) = of().next()
                && !of().any(|(_, names)| has(names))
            {
                let reason = missing_text(&function.to_string(), database, None);
                findings.push(Finding::new(format!("function {function}"), outcome(reason)));
            }
        }
    }
    findings
}

async fn query_guard(shared: &Shared, database: &str, policies: &PolicySet) -> Outcome {
    let control = shared.control_for(database);
    let lines = match timeout(GUARD_LIMIT, guard::status(&control, policies)).await {
        Ok(Ok(status)) => status.lines,
        Ok(Err(error)) => return Outcome::Failed(error.to_string()),
        Err(_) => return Outcome::Failed(format!("the server did not answer within {} s", GUARD_LIMIT.as_secs())),
    };
    let is_there = |state: GuardState| !matches!(state, GuardState::Missing | GuardState::NotMade);
    if !lines.iter().any(|line| is_there(line.state)) {
        let text = "not installed: functions, triggers and direct connections are not fenced; see `fencegate guard`";
        return Outcome::Good(text.to_owned());
    }
    match lines.iter().find(|line| !line.state.is_well()) {
        None => Outcome::Good("installed, matches the policies".to_owned()),
        Some(line) => Outcome::Failed(format!(
            "{} is {}: run `fencegate guard install` with these policies",
            line.table,
            line.state.name()
        )),
    }
}

/// Checks each lease that a policy names in full.
async fn query_leases(shared: &Shared, database: &str, policies: &PolicySet) -> Vec<Finding> {
    let leases = shared.shared_database(database).fence.read_leases(&policies.resources).await;
    let of = |resource: &Arc<Resource>| {
        let name = resource.lease()?;
        let leader = leases.as_ref().map(|leases| leases.get(&resource.name).copied().flatten());
        Some(Finding::new(format!("lease {name} in {database}"), leader.map(led_by)))
    };
    policies.resources.iter().filter_map(of).collect()
}

fn led_by(leader: Option<Token>) -> String {
    leader.map_or_else(|| "no leader".to_owned(), |token| format!("its leader holds token {token}"))
}

/// Checks each election that a policy names in full. For elections with a key, checks only that etcd answers.
async fn query_etcd(etcd: &Etcd, policies: &PolicySet) -> Vec<Finding> {
    let elections = policies.elections();
    let asked = elections
        .iter()
        .map(async |election| Finding::new(format!("etcd {election}"), query_election(etcd, election).await));
    // Without etcd, each request waits for its time limit.
    let mut findings = join_all(asked).await;
    if findings.is_empty()
        && let Ok(any) = "/fencegate".parse()
    {
        findings.push(Finding::new("etcd", query_election(etcd, &any).await.map(|_| "answers".to_owned())));
    }
    findings
}

async fn query_election(etcd: &Etcd, election: &ElectionName) -> Result<String, EtcdError> {
    leader(etcd, election, Patience::USUAL).await.map(|(leader, _)| led_by(leader.map(|it| it.token.get())))
}
