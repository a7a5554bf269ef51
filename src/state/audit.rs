//! The outcome of each write that meets a fence, in metrics and log.
//!
//! Owns the labels: a resource is counted under its policy's name, for all keys. Must never reveal values of a
//! statement.

use super::context::Context;
use super::history::SessionEvent;
use super::sessions::SessionRecord;
use super::shared::Shared;
use crate::metrics::{Counter, Metrics};
use crate::operate::console;
use fencegate_fence::session::Token;
use fencegate_fence::{Claim, CutOff, FenceError, Obstacle, Raise};
use fencegate_policy::{Mode, PolicySet, Resource, quoted};
use fencegate_session::host::CatalogView;
use fencegate_session::judge::{Need, PassedWrite};
use fencegate_session::rejection::Rejection;
use fencegate_session::{ReachedObject, reached_object};
use fencegate_statement::{FunctionName, RelationName, Statement};
use fencegate_wire::client_error::{ClientError, ErrorKind};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// Maximum number of resources whose counters a session caches.
const MOST_KEPT: usize = 1024;

/// The counters of admitted writes that a session uses, by resource: looking one up by its labels takes a lock.
#[derive(Default)]
pub struct Admitted(HashMap<String, Counter>);

impl Admitted {
    /// Counts an admitted write to the resource.
    pub fn count(&mut self, resource: &str, find: impl FnOnce() -> Counter) {
        if let Some(counter) = self.0.get(resource) {
            return counter.inc();
        }
        if self.0.len() >= MOST_KEPT {
            self.0.clear();
        }
        self.0.entry(resource.to_owned()).or_insert_with(find).inc();
    }

    /// Discards the counters, because the policies have changed.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// Values of the labels: the resource as named in its policy, and its mode. Empty if no policy in force has the
/// resource, or if it is unknown.
pub fn labels<'a>(policies: &'a PolicySet, resource: Option<&str>) -> (&'a str, Mode) {
    let resource = resource.and_then(|name| policies.resource_called(name));
    resource.map_or(("", Mode::Enforce), |resource| (&resource.name, resource.mode))
}

/// The counter of writes to a resource with this verdict.
pub fn counter(metrics: &Metrics, policies: &PolicySet, database: &str, resource: &str, verdict: &str) -> Counter {
    let (resource, mode) = labels(policies, Some(resource));
    metrics.write(database, resource, mode.name(), verdict)
}

/// A write that a fence rejects, or would reject in mode `enforce`.
struct Rejected<'a> {
    session: &'a SessionRecord,
    mode: Mode,
    rejection: &'a Rejection,
    statement: &'a Statement,
    /// The resource, if known.
    resource: Option<&'a str>,
    /// The token, if the rejection does not contain it.
    presented: Option<Token>,
}

impl Rejected<'_> {
    /// Counts the rejection, stores it for the console, and logs it, without values of the statement.
    fn record(&self, shared: &Shared, policies: &PolicySet, seen: &CatalogView) {
        let (label, _) = labels(policies, self.resource);
        let verdict = self.rejection.kind().label();
        // A statement that the server itself would refuse gets no verdict.
        if self.rejection.kind() != ErrorKind::Denied {
            shared.metrics.write(&self.session.database, label, self.mode.name(), verdict).inc();
        }
        shared.recent.push(self.row());
        if shared.log_limit.allows(verdict, label) {
            self.log(policies, seen);
            self.keep(shared, label);
        }
    }

    /// The console's row of the rejection.
    fn row(&self) -> console::Rejected {
        let Rejected { session, rejection, statement, resource, .. } = self;
        let (presented, highest) = rejection.tokens();
        console::Rejected {
            time: SystemTime::now(),
            session: session.number,
            user: session.user.clone(),
            database: session.database.clone(),
            resource: resource.map(str::to_owned),
            verdict: rejection.kind().label(),
            sqlstate: rejection.text().code,
            presented,
            highest,
            statement: statement.kind.text().to_owned(),
            table: statement.writes.first().map(|write| table_name(&write.relation)),
            mode: self.mode.name(),
        }
    }

    /// Stores the rejection for the status page, if the fence caused it.
    fn keep(&self, shared: &Shared, family: &str) {
        if self.mode == Mode::Enforce {
            let (presented, highest) = self.rejection.tokens();
            let token = presented.or(self.presented);
            let resource = self.resource.unwrap_or_default();
            let is_stale = self.rejection.kind() == ErrorKind::Stale;
            let code = (!is_stale).then(|| self.rejection.text().code);
            let event = SessionEvent { session: self.session, resource, family, token, highest };
            shared.history.rejected(&event, self.statement.kind.text(), code);
        }
    }

    fn log(&self, policies: &PolicySet, seen: &CatalogView) {
        let Rejected { rejection, statement, resource, .. } = self;
        let SessionRecord { number: session, user, database, address, .. } = self.session;
        let application_name = self.session.application_name();
        let (presented, highest) = rejection.tokens();
        let presented = presented.or(self.presented);
        let reaches = resource.and_then(|resource| reaches(statement, policies, seen, resource));
        let (statement, table) =
            (statement.kind.text(), statement.writes.first().map(|write| table_name(&write.relation)));
        let is_stale = matches!(rejection, Rejection::Fence(FenceError::Stale { .. }));
        let event = match (self.mode, rejection) {
            (Mode::Enforce, rejection) if rejection.kind() == ErrorKind::Stale => "stale_write_blocked",
            (Mode::Enforce, _) => "write_rejected",
            (Mode::Observe, _) if is_stale => "stale_write_observed",
            (Mode::Observe, Rejection::Fence(refusal)) if refusal.kind() == ErrorKind::Unavailable => {
                "write_not_observed"
            }
            (Mode::Observe, _) => "write_would_be_rejected",
        };
        // For a stale write, the event's name contains all of this. Fields that are None are omitted.
        let says_more = !is_stale;
        let code = says_more.then(|| rejection.text().code);
        let reason = says_more.then(|| rejection.log_reason());
        let verdict = says_more.then(|| rejection.kind().label());
        tracing::warn!(
            session,
            user,
            database,
            address,
            application_name,
            resource,
            presented,
            highest,
            statement,
            table,
            reaches,
            code,
            verdict,
            reason,
            "{event}"
        );
    }
}

impl SessionRecord {
    /// Logs that the session may now write to the resource. Later writes under the same token are not logged.
    pub fn log_admission(&self, shared: &Shared, need: &Need) {
        let Need { resource, token, statement, .. } = need;
        let (family, election) = (resource.lock_name(), resource.issuer.as_ref().map(|it| it.name().to_string()));
        let (resource, statement) = (resource.name.as_str(), statement.kind.text());
        // All keys of a resource count as one.
        let is_logged = shared.log_limit.allows("session_admitted", family);
        let event = SessionEvent { session: self, resource, family, token: Some(*token), highest: None };
        shared.history.admitted(&event, statement, election.clone(), is_logged);
        if is_logged {
            let SessionRecord { number: session, user, database, address, .. } = self;
            let application_name = self.application_name();
            tracing::info!(
                session,
                user,
                database,
                address,
                application_name,
                resource,
                election,
                token,
                statement,
                "session_admitted"
            );
        }
    }

    /// Records a rejection.
    pub fn log_rejection(&self, context: &Context, rejection: &Rejection, statement: &Statement) {
        let (mode, resource) = (Mode::Enforce, rejection.resource());
        let rejected = Rejected { session: self, mode, rejection, statement, resource, presented: None };
        rejected.record(&context.shared, context.policies(), &context.shared_database.catalog(None));
    }
}

impl Context {
    /// Stores the end of a session by a newer token, for the status page.
    pub fn keep_cut_off(&self, session: &SessionRecord, by: &CutOff, outcome: &str) {
        let (family, _) = labels(self.policies(), Some(&by.resource));
        let (resource, token) = (by.resource.as_str(), Some(by.presented.token));
        let event = SessionEvent { session, resource, family, token, highest: Some(by.highest.token) };
        self.shared.history.cut_off(&event, outcome);
    }

    /// Records passed writes of a forwarded statement.
    pub fn passed(&self, session: &SessionRecord, passed: Vec<PassedWrite>) {
        for PassedWrite { resource, statement, observed } in passed {
            let resource = resource.as_ref().map(|resource| resource.name.as_str());
            match &observed {
                Some(rejection) => {
                    let (mode, statement) = (Mode::Observe, &*statement);
                    let rejected = Rejected { session, mode, rejection, statement, resource, presented: None };
                    rejected.record(&self.shared, self.policies(), &self.shared_database.catalog(None));
                }
                None => self.exempt(session, resource, statement.kind.text()),
            }
        }
    }

    fn exempt(&self, session: &SessionRecord, resource: Option<&str>, statement: &str) {
        let (label, mode) = labels(self.policies(), resource);
        let application_name = session.application_name();
        let SessionRecord { number: session, user, database, address, .. } = session;
        self.shared.metrics.write(database, label, mode.name(), "exempt").inc();
        if self.shared.log_limit.allows("exempt", label) {
            tracing::info!(session, user, database, address, application_name, resource, statement, "exempt_write");
        }
    }

    /// A write under this token has passed a fence that only observes: records the write if `enforce` would reject it.
    /// Checks only once whether the session's process could be admitted at all.
    pub fn observe(&self, session: &Arc<SessionRecord>, need: Need, claim: Claim) {
        let database = self.database().clone();
        let is_current = database.is_current(&need.resource, need.token);
        if is_current && self.admissible.load(Ordering::Relaxed) {
            return self.count(&need.resource, "admitted");
        }
        let shared_database = self.shared_database.clone();
        let (shared, policies, session) = (self.shared.clone(), self.policies.clone(), session.clone());
        let fence = session.fence.clone();
        let record = move |need: &Need, refusal: FenceError| {
            let rejection = Rejection::from(refusal);
            let (resource, presented) = (Some(need.resource.name.as_str()), Some(need.token));
            let (mode, statement) = (Mode::Observe, &*need.statement);
            let rejected = Rejected { session: &session, mode, rejection: &rejection, statement, resource, presented };
            rejected.record(&shared, &policies, &shared_database.catalog(None));
        };
        // Skip the check if too many are in progress.
        let Some(place) = self.shared_database.observations.clone().try_acquire_owned().ok() else {
            return match is_current {
                true => self.count(&need.resource, "admitted"),
                false => record(&need, FenceError::unavailable(&need.resource.name, Obstacle::TooManyObserved)),
            };
        };
        let admitted = counter(&self.shared.metrics, self.policies(), database.name(), &need.resource.name, "admitted");
        let admissible = self.admissible.clone();
        self.shared.background.spawn(async move {
            let _place = place;
            let Need { resource, token, may_raise, .. } = &need;
            let seen = match database.known_stale(&resource.name, *token) {
                Some(highest) => Err(FenceError::Stale { resource: resource.name.clone(), presented: *token, highest }),
                None => {
                    let raise = if *may_raise { Raise::IfPermitted(&claim) } else { Raise::Never };
                    database.observe(&fence, resource, *token, raise).await
                }
            };
            match seen {
                Ok(()) => {
                    admissible.store(true, Ordering::Relaxed);
                    admitted.inc();
                }
                // The server has refused the statement.
                Err(FenceError::Denied { .. }) => {}
                Err(refusal) => record(&need, refusal),
            }
        });
    }

    fn count(&self, resource: &Resource, verdict: &str) {
        counter(&self.shared.metrics, self.policies(), self.database().name(), &resource.name, verdict).inc();
    }
}

/// The name in the statement.
fn table_name(relation: &RelationName) -> String {
    let schema = relation.schema.as_ref().map(|schema| quoted(schema) + ".").unwrap_or_default();
    schema + &quoted(&relation.name)
}

/// The fenced table or function that a statement reaches without naming it.
fn reaches(statement: &Statement, policies: &PolicySet, seen: &CatalogView, resource: &str) -> Option<String> {
    Some(match reached_object(statement, policies, seen, resource)? {
        ReachedObject::Table(table) => table_name(&table),
        ReachedObject::Function(FunctionName { schema, name }) => table_name(&RelationName { schema, name }) + "()",
    })
}
