//! What to do with statements before they are forwarded: a pure function of what is known now.
//!
//! Where something is not known it says what to find out, and is asked again. Must never let pass
//! what it cannot decide.

use super::names::{Meaning, Names};
use super::parameter::{Parameter, Value};
use super::rejection::Rejection;
use crate::fence::session::{SessionFence, Token};
use crate::fence::value::FenceValue;
use crate::fence::{Catalogue, Database, Refusal};
use crate::policy::{Mode, OnMissing, Opaque, PolicySet, Resource};
use crate::statement::{Operation, ParameterEffect, PreparedEffect, Statement, TransactionEffect};
use std::collections::HashMap;
use std::sync::Arc;

/// What a statement needs a token for.
#[derive(Clone, Debug)]
pub struct Need {
    pub resource: Arc<Resource>,
    pub token: Token,
    /// Whether the token may raise the fence, or has to be in force already.
    pub may_raise: bool,
}

/// What to do.
#[derive(Debug)]
pub enum Decision {
    /// Forward, if the session is admitted to all of these whose fences act.
    Forward(Vec<Need>),
    /// Reject the statement at this index.
    Reject(usize, Rejection),
    /// Wait until the server owes nothing.
    Settle,
    /// Read the parameter from the server.
    ReadValue,
}

/// All that a decision depends on.
pub struct Judge<'a> {
    pub policies: &'a PolicySet,
    pub database: &'a Database,
    pub fence: &'a SessionFence,
    pub catalogue: &'a Catalogue,
    /// Nothing has changed since it was read, as far as the proxy saw.
    pub catalogue_is_current: bool,
    /// This transaction changes it.
    pub changes_catalogue: bool,
    /// The login role bypasses the fences.
    pub exempt: bool,
    pub parameter: &'a Parameter,
    /// The server owes replies.
    pub owed: bool,
    /// Some of which may change the parameter.
    pub parameter_in_doubt: bool,
    /// The tokens under which this transaction has written.
    pub written: &'a HashMap<String, Token>,
    /// Why an Admit for the statements at hand failed.
    pub refused: Option<&'a Refusal>,
}

/// Looks up what EXECUTE runs, also for names that the same statements PREPARE first, and what FETCH runs.
///
/// None when that depends on replies that are still to come.
pub fn resolve(
    statements: &[Arc<Statement>],
    names: &Names,
    portals: &Names,
    batch: u64,
) -> Option<Vec<Arc<Statement>>> {
    let mut prepared: HashMap<&str, Arc<Statement>> = HashMap::new();
    let mut resolved = Vec::with_capacity(statements.len());
    for statement in statements {
        let runs = match &statement.prepared {
            PreparedEffect::Prepare { name, statement: inner } => {
                prepared.insert(name, inner.clone());
                statement.clone()
            }
            PreparedEffect::Execute { name, .. } => match prepared.get(name.as_str()) {
                Some(inner) => Arc::new(statement.executing(Some(inner))),
                None => match names.meaning(name.as_bytes(), batch) {
                    Meaning::Certain(inner) => Arc::new(statement.executing(Some(&inner))),
                    Meaning::Unsettled => return None,
                    Meaning::Unknown => Arc::new(statement.executing(None)),
                },
            },
            PreparedEffect::Fetch { name } => match portals.meaning(name.as_bytes(), batch) {
                Meaning::Certain(inner) => Arc::new(statement.executing(Some(&inner))),
                Meaning::Unsettled => return None,
                // What DECLARE made was judged then, and can only read or call functions.
                Meaning::Unknown if portals.is_complete() => statement.clone(),
                Meaning::Unknown => Arc::new(statement.executing(None)),
            },
            _ => statement.clone(),
        };
        resolved.push(runs);
    }
    Some(resolved)
}

/// A statement of which nothing is known but why.
pub fn opaque(kind: &'static str, why: &'static str) -> Arc<Statement> {
    Arc::new(Statement { kind, opaque: Some(why), parameter: ParameterEffect::Unknown, ..Statement::default() })
}

impl Judge<'_> {
    /// Judges statements that the server will run one after the other, before any of them is sent.
    pub fn statements(&self, statements: &[Arc<Statement>]) -> Decision {
        if self.exempt {
            self.log_exempt(statements);
            return Decision::Forward(Vec::new());
        }
        let mut parameter = self.parameter.clone();
        let mut earlier = Earlier::default();
        for (index, statement) in statements.iter().enumerate() {
            if parameter.refuses(statement) {
                if self.owed {
                    // What was forwarded may have ended the failed transaction.
                    return Decision::Settle;
                }
                // The server refuses it, and all that follows in the same string.
                break;
            }
            match self.statement(statement, &parameter, &earlier) {
                Ok(more) => earlier.needs.extend(more),
                Err(Stop::Reject(rejection)) => return Decision::Reject(index, rejection),
                Err(Stop::Settle) => return Decision::Settle,
                // A failed transaction answers nothing.
                Err(Stop::ReadValue) if *self.parameter.current() == Value::Unknown && !self.parameter.failed() => {
                    return Decision::ReadValue;
                }
                Err(Stop::ReadValue) => {
                    let why =
                        format!("an earlier statement of the same string may change lease.fence ({})", statement.kind);
                    let hint = "Send the statements one by one, so that the proxy can read the token in between.";
                    return Decision::Reject(index, Rejection::Unverifiable { why, hint });
                }
            }
            parameter.completed(statement, parameter.failed());
            earlier.ended_transaction |= statement.ends_transaction();
        }
        Decision::Forward(earlier.needs)
    }

    fn statement(&self, statement: &Statement, parameter: &Parameter, earlier: &Earlier) -> Result<Vec<Need>, Stop> {
        if let ParameterEffect::Set { value, .. } = &statement.parameter
            && let Err(why) = FenceValue::parse(value)
        {
            return Err(Rejection::InvalidSetting { why }.into());
        }
        if statement.transaction == TransactionEffect::PrepareTransaction
            && !parameter.failed()
            && (self.fence.holds_admissions() || !self.written.is_empty() || !earlier.needs.is_empty())
        {
            let why = "a prepared transaction would carry writes to a fenced table out of this session".to_owned();
            let hint =
                "COMMIT in the session that holds the token; two-phase commit is not possible with fenced tables.";
            return Err(Rejection::Unverifiable { why, hint }.into());
        }
        let hidden = self.hidden(statement)?;
        self.refuse_what_reaches(statement)?;
        let named = self.touched(statement).into_iter().map(|(resource, writes)| (resource, writes, true));
        let mut needs: Vec<Need> = Vec::new();
        for (resource, writes, may_raise) in named.chain(hidden.into_iter().map(|resource| (resource, true, false))) {
            if needs.iter().any(|need| Arc::ptr_eq(&need.resource, &resource)) {
                continue;
            }
            if let Some(token) = self.token_for(&resource, writes, parameter)? {
                if resource.mode == Mode::Enforce {
                    self.check(&resource, token, earlier)?;
                }
                needs.push(Need { resource, token, may_raise });
            }
        }
        Ok(needs)
    }

    /// The resources that an opaque statement may write, where it needs their tokens.
    fn hidden(&self, statement: &Statement) -> Result<Vec<Arc<Resource>>, Stop> {
        let in_doubt = !self.catalogue_is_current || self.changes_catalogue;
        let matters = self.some_fence_acts() && (in_doubt || self.catalogue.has_fenced_tables());
        let opaque = statement.opaque.or_else(|| self.unknown_cascade(statement));
        let Some(why) = opaque.filter(|_| matters) else { return Ok(Vec::new()) };
        match self.policies.opaque {
            Opaque::Allow => Ok(Vec::new()),
            Opaque::Reject => {
                let why = format!("{}: {why}", statement.kind);
                let hint = "Write to the tables directly, or set `opaque: require_token` or `allow` in the policy.";
                Err(Rejection::Unverifiable { why, hint }.into())
            }
            Opaque::RequireToken => {
                let may_be_written = |resource: &&Arc<Resource>| {
                    resource.mode == Mode::Enforce && (in_doubt || self.catalogue.may_have(resource))
                };
                Ok(self.policies.resources.iter().filter(may_be_written).cloned().collect())
            }
        }
    }

    /// A write to a view, a parent, a partition and the like may change a fenced table: which, and
    /// with which rows, the text does not tell.
    fn refuse_what_reaches(&self, statement: &Statement) -> Result<(), Stop> {
        let reaching = statement.writes.iter().find(|write| {
            self.policies.resources_of(&write.relation, write.operation).is_empty()
                && self.catalogue.may_reach(&write.relation, write.operation)
        });
        let Some(write) = reaching.filter(|_| self.some_fence_acts()) else { return Ok(()) };
        let why = format!("writing to \"{}\" may change a fenced table", write.relation.name);
        let hint = "Write to the fenced table by its own name, or name this relation in the policy as well.";
        Err(Rejection::Unverifiable { why, hint }.into())
    }

    /// Only the catalogue tells what depends on a relation.
    fn unknown_cascade(&self, statement: &Statement) -> Option<&'static str> {
        let cascades = statement.writes.iter().any(|write| write.operation == Operation::Cascade);
        (cascades && !self.catalogue_is_current).then_some("what depends on the table cannot be looked up now")
    }

    /// Fences that only observe reject nothing, also not what cannot be verified.
    fn some_fence_acts(&self) -> bool {
        self.policies.resources.iter().any(|resource| resource.mode == Mode::Enforce)
    }

    /// The resources that a statement touches, and whether it writes to them or only locks.
    fn touched(&self, statement: &Statement) -> Vec<(Arc<Resource>, bool)> {
        let mut touched: Vec<(Arc<Resource>, bool)> = Vec::new();
        let mut add = |resource: &Arc<Resource>, writes: bool| match touched
            .iter_mut()
            .find(|(other, _)| Arc::ptr_eq(other, resource))
        {
            Some((_, known)) => *known |= writes,
            None => touched.push((resource.clone(), writes)),
        };
        for write in &statement.writes {
            for resource in self.policies.resources_of(&write.relation, write.operation) {
                add(resource, write.operation != Operation::Lock);
            }
            // What CASCADE takes from a fenced table is as if the statement named that table.
            for fenced in self.catalogue.cascades_to(write) {
                for resource in self.policies.resources_of(fenced, Operation::Ddl) {
                    add(resource, true);
                }
            }
        }
        for function in &statement.functions {
            for resource in self.policies.resources_of_function(function) {
                add(resource, true);
            }
        }
        touched
    }

    /// The token to present; None when the statement may pass without one.
    fn token_for(&self, resource: &Resource, writes: bool, parameter: &Parameter) -> Result<Option<Token>, Stop> {
        if self.owed && (self.parameter_in_doubt || !self.parameter.is_settled()) {
            return Err(Stop::Settle);
        }
        let rejection = match parameter.current() {
            Value::Unknown => return Err(Stop::ReadValue),
            Value::Known(value) => match value.token(&resource.name) {
                Some(token) => return Ok(Some(token)),
                None if resource.on_missing == OnMissing::Allow => return Ok(None),
                None => Rejection::Missing { resource: resource.name.clone() },
            },
            Value::Invalid => Rejection::InvalidValue { resource: resource.name.clone() },
        };
        if !writes {
            // Reads are never fenced; those that lock are, for holders of a token only.
            return Ok(None);
        }
        if resource.mode == Mode::Observe {
            tracing::warn!(resource = resource.name, verdict = rejection.verdict(), "write_would_be_rejected");
            return Ok(None);
        }
        Err(rejection.into())
    }

    fn check(&self, resource: &Resource, token: Token, earlier: &Earlier) -> Result<(), Stop> {
        let before = earlier.needs.iter().find(|need| need.resource.name == resource.name).map(|need| need.token);
        let written = before.or_else(|| self.written.get(&resource.name).copied());
        if let Some(written) = written.filter(|written| *written != token) {
            let (resource, presented) = (resource.name.clone(), token);
            return Err(match earlier.ended_transaction {
                // The token would have to be raised in the middle of what the server gets whole.
                true => Rejection::TwoTokensAtOnce { resource, presented, written },
                false => Rejection::TwoTokens { resource, presented, written },
            }
            .into());
        }
        if let Some(refusal) = self.refused.filter(|refusal| refusal.resource() == resource.name) {
            return Err(Rejection::from(refusal.clone()).into());
        }
        let admitted = self.fence.admission(&resource.name).map(|epoch| epoch.token);
        if admitted.is_some_and(|admitted| admitted != token) && self.owed {
            // What runs under the other token has to end before this one is raised.
            return Err(Stop::Settle);
        }
        if admitted != Some(token)
            && let Some(highest) = self.database.known_stale(&resource.name, token)
        {
            let (resource, highest) = (resource.name.clone(), highest.token);
            return Err(Rejection::Stale { resource, presented: token, highest }.into());
        }
        Ok(())
    }

    fn log_exempt(&self, statements: &[Arc<Statement>]) {
        for statement in statements {
            for (resource, _) in self.touched(statement).iter().filter(|(_, writes)| *writes) {
                tracing::info!(resource = resource.name, statement = statement.kind, "exempt_write");
            }
        }
    }
}

/// What stands before a statement in the same string.
#[derive(Default)]
struct Earlier {
    needs: Vec<Need>,
    ended_transaction: bool,
}

enum Stop {
    Reject(Rejection),
    Settle,
    ReadValue,
}

impl From<Rejection> for Stop {
    fn from(rejection: Rejection) -> Self {
        Stop::Reject(rejection)
    }
}
