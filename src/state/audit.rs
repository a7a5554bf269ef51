//! The outcome of each write that meets a fence, in metrics and log.
//!
//! Owns the labels: a resource is counted as its policy names it, whatever the key. Must never say anything of the values
//! in a statement.

use super::context::Context;
use super::recent;
use super::sessions::SessionRecord;
use crate::fence::session::Token;
use crate::fence::{Claim, Refusal};
use crate::metrics::{Counter, Metrics};
use crate::policy::{Mode, PolicySet, Resource, quoted};
use crate::session::judge::PassedWrite;
use crate::session::rejection::Rejection;
use crate::statement::{RelationName, Statement};
use std::collections::HashMap;
use std::sync::Arc;

/// The most resources whose counters a session keeps at hand.
const MOST_KEPT: usize = 1024;

/// The counters of admitted writes that a session uses, by resource: looking one up by its labels takes a lock.
#[derive(Default)]
pub struct Admitted(HashMap<String, Counter>);

impl Admitted {
    /// A write to the resource is admitted.
    pub fn count(&mut self, resource: &str, find: impl FnOnce() -> Counter) {
        if let Some(counter) = self.0.get(resource) {
            return counter.inc();
        }
        if self.0.len() >= MOST_KEPT {
            self.0.clear();
        }
        self.0.entry(resource.to_owned()).or_insert_with(find).inc();
    }

    /// Policies have changed: what was found may be counted otherwise.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// As in labels: the resource as its policy names it, and its mode. Empty where no policy in force has it, or it is
/// unknown.
pub fn labels<'a>(policies: &'a PolicySet, resource: Option<&str>) -> (&'a str, Mode) {
    let resource = resource.and_then(|name| policies.resource_called(name));
    resource.map_or(("", Mode::Enforce), |resource| (&resource.name, resource.mode))
}

/// The counter of writes to a resource with this verdict.
pub fn counter(metrics: &Metrics, policies: &PolicySet, database: &str, resource: &str, verdict: &str) -> Counter {
    let (resource, mode) = labels(policies, Some(resource));
    metrics.write(database, resource, mode.name(), verdict)
}

impl SessionRecord {
    /// Records a rejection, never the values in the statement.
    pub fn log_rejection(&self, context: &Context, rejection: &Rejection, statement: &Statement) {
        let resource = rejection.resource();
        let (label, _) = labels(context.policies(), resource);
        let verdict = rejection.verdict();
        // What the server would refuse by itself is no verdict of a fence.
        if !matches!(rejection, Rejection::Denied { .. }) {
            context.shared.metrics.write(&self.database, label, Mode::Enforce.name(), verdict).inc();
        }
        context.shared.recent.push(recent::record(self, rejection, statement));
        if !context.shared.log_limit.allows(verdict, label) {
            return;
        }
        let SessionRecord { number: session, user, database, address, .. } = self;
        let (presented, highest) = rejection.tokens();
        let (statement, table) = (statement.kind, statement.writes.first().map(|write| table_name(&write.relation)));
        let is_stale = matches!(rejection, Rejection::Stale { .. });
        let event = if is_stale { "stale_write_blocked" } else { "write_rejected" };
        // The event's name says all of this of a stale write. A field that is None is left out.
        let code = (!is_stale).then(|| rejection.text().code);
        let reason = (!is_stale).then(|| rejection.reason());
        let verdict = (!is_stale).then_some(verdict);
        tracing::warn!(
            session, user, database, address, resource, presented, highest, statement, table, code, verdict, reason,
            "{event}"
        );
    }
}

impl Context {
    /// A statement has been forwarded that these may concern.
    pub fn passed(&self, passed: Vec<PassedWrite>) {
        for PassedWrite { resource, statement, observed } in passed {
            let verdict = observed.as_ref().map_or("exempt", Rejection::verdict);
            let resource = resource.as_ref().map(|resource| resource.name.as_str());
            let (label, mode) = labels(self.policies(), resource);
            let database = self.database().name();
            self.shared.metrics.write(database, label, mode.name(), verdict).inc();
            if !self.shared.log_limit.allows(verdict, label) {
                continue;
            }
            match observed {
                None => tracing::info!(database, resource, statement, "exempt_write"),
                Some(_) => tracing::warn!(database, resource, statement, verdict, "write_would_be_rejected"),
            }
        }
    }

    /// A write under this token has passed a fence that only observes: says so if it would be rejected.
    pub fn observe(&self, resource: Arc<Resource>, token: Token, claim: Claim) {
        let database = self.database().clone();
        if database.is_current(&resource, token) {
            return self.count(&resource, "admitted");
        }
        // Not when too many are asking.
        let Some(place) = self.shared_database.observations.clone().try_acquire_owned().ok() else {
            self.count(&resource, "unavailable");
            if self.shared.log_limit.allows("unavailable", labels(self.policies(), Some(&resource.name)).0) {
                let too_many = Rejection::from(Refusal::unavailable(&resource.name, "too many at once"));
                log_observed(database.name(), &resource.name, token, &too_many);
            }
            return;
        };
        let (policies, metrics, limit) =
            (self.policies.clone(), self.shared.metrics.clone(), self.shared.log_limit.clone());
        tokio::spawn(async move {
            let _place = place;
            let seen = match database.known_stale(&resource.name, token) {
                Some(highest) => Err(Refusal::Stale { resource: resource.name.clone(), presented: token, highest }),
                None => match database.permits(&claim, &resource, token).await {
                    Ok(()) => database.observe(&resource, token).await,
                    // The server has refused it.
                    Err(Refusal::Denied { .. }) => return,
                    Err(refusal) => Err(refusal),
                },
            };
            let rejection = seen.err().map(Rejection::from);
            let verdict = rejection.as_ref().map_or("admitted", Rejection::verdict);
            counter(&metrics, &policies, database.name(), &resource.name, verdict).inc();
            let (label, _) = labels(&policies, Some(&resource.name));
            if let Some(rejection) = rejection.filter(|_| limit.allows(verdict, label)) {
                log_observed(database.name(), &resource.name, token, &rejection);
            }
        });
    }

    fn count(&self, resource: &Resource, verdict: &str) {
        counter(&self.shared.metrics, self.policies(), self.database().name(), &resource.name, verdict).inc();
    }
}

/// As the statement names it.
pub fn table_name(relation: &RelationName) -> String {
    let schema = relation.schema.as_ref().map(|schema| quoted(schema) + ".").unwrap_or_default();
    schema + &quoted(&relation.name)
}

/// What a fence that only observes has seen.
fn log_observed(database: &str, resource: &str, presented: Token, rejection: &Rejection) {
    let (verdict, reason) = (rejection.verdict(), rejection.reason());
    match rejection {
        Rejection::Stale { highest, .. } => {
            tracing::warn!(database, resource, presented, highest, "stale_write_observed");
        }
        Rejection::Unavailable { .. } => {
            tracing::warn!(database, resource, presented, reason, "write_not_observed");
        }
        _ => tracing::warn!(database, resource, presented, verdict, reason, "write_would_be_rejected"),
    }
}
