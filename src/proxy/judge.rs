//! What to do with statements before they are forwarded: a pure function of what is known now.
//!
//! Where something is not known it says what to find out, and is asked again. Must never let pass
//! what it cannot decide.

use super::audit::PassedWrite;
use super::keys;
use super::names::{Meaning, Names};
use super::parameter::{Parameter, Value};
use super::rejection::Rejection;
use super::suspects::Suspects;
use super::touched::{Touch, touched};
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
    /// Forward, if the session is admitted to all of the needs whose fences act; the writes pass without.
    Forward(Vec<Need>, Vec<PassedWrite>),
    /// Reject the statement at this index. Those before it run, and may commit: that takes the needs, as in `Forward`.
    Reject(usize, Rejection, Vec<Need>),
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
    /// This transaction has changed it where fenced tables are concerned.
    pub changes_catalogue: bool,
    /// What it may have turned into ways to fenced tables.
    pub suspects: &'a Suspects,
    /// The same of each other session that defines something. They are read before the catalogue.
    pub suspects_of_others: &'a [Arc<Suspects>],
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
            return Decision::Forward(Vec::new(), self.exempt_writes(statements));
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
            earlier.kind = statement.kind;
            match self.statement(statement, &parameter, &mut earlier) {
                Ok(more) => {
                    earlier.needs.extend(more);
                    let (catalogue, is_current) = (self.catalogue, self.catalogue_is_current);
                    earlier.suspects.note(statement, self.policies, catalogue, is_current, self.suspects_of_others);
                }
                Err(Stop::Reject(rejection)) => return Decision::Reject(index, rejection, earlier.needs),
                Err(Stop::Settle) => return Decision::Settle,
                // A failed transaction answers nothing.
                Err(Stop::ReadValue) if *self.parameter.current() == Value::Unknown && !self.parameter.failed() => {
                    return Decision::ReadValue;
                }
                Err(Stop::ReadValue) => {
                    let why =
                        format!("an earlier statement of the same string may change lease.fence ({})", statement.kind);
                    let hint = "Send the statements one by one, so that the proxy can read the token in between.";
                    return Decision::Reject(index, Rejection::Unverifiable { why, hint }, earlier.needs);
                }
            }
            parameter.completed(statement, parameter.failed());
            earlier.ended_transaction |= statement.ends_transaction();
        }
        Decision::Forward(earlier.needs, earlier.passed)
    }

    fn statement(
        &self,
        statement: &Statement,
        parameter: &Parameter,
        earlier: &mut Earlier,
    ) -> Result<Vec<Need>, Stop> {
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
        self.refuse_definitions_that_leave(statement, parameter, earlier)?;
        let hidden = self.hidden(statement, earlier)?;
        let touched = touched(statement, self.policies, self.catalogue);
        self.refuse_what_is_unread(statement, &touched)?;
        let mut needs: Vec<Need> = Vec::new();
        for touch in touched {
            let Touch { resource, writes, keys } = touch;
            let Some(keys) = keys else {
                self.need(resource, writes, true, parameter, earlier, &mut needs)?;
                continue;
            };
            // Who has no token at all need not tell its keys; and where the guard finds them, a token there has to be.
            let are_known = !keys.is_empty() && keys.iter().all(Result::is_ok);
            if !are_known && !self.presents(&resource, writes, parameter, earlier)? {
                continue;
            }
            for key in keys {
                match key {
                    Ok((resource, writes)) => self.need(resource, writes, true, parameter, earlier, &mut needs)?,
                    Err(rejection) => earlier.observed_or(&resource, rejection)?,
                }
            }
        }
        for resource in hidden {
            if resource.keyed.is_none() {
                self.need(resource, true, false, parameter, earlier, &mut needs)?;
            } else if self.presents(&resource, true, parameter, earlier)? {
                return Err(keys::any(&resource, statement.kind).into());
            }
        }
        Ok(needs)
    }

    /// What is prepared defines for nobody, and for everybody as soon as any session commits it.
    fn refuse_definitions_that_leave(
        &self,
        statement: &Statement,
        parameter: &Parameter,
        earlier: &Earlier,
    ) -> Result<(), Stop> {
        let defines = !self.suspects.is_empty() || !earlier.suspects.is_empty();
        let prepares = statement.transaction == TransactionEffect::PrepareTransaction && !parameter.failed();
        if !defines || !prepares || self.policies.opaque == Opaque::Allow || !self.some_fence_acts() {
            return Ok(());
        }
        let why = "a prepared transaction would carry ways to a fenced table out of this session".to_owned();
        Err(Rejection::Unverifiable { why, hint: "COMMIT in the session that defines them." }.into())
    }

    /// Adds that the statement needs the session's token for the resource, if it does.
    fn need(
        &self,
        resource: Arc<Resource>,
        writes: bool,
        may_raise: bool,
        parameter: &Parameter,
        earlier: &mut Earlier,
        needs: &mut Vec<Need>,
    ) -> Result<(), Stop> {
        if needs.iter().any(|need| need.resource.name == resource.name) {
            return Ok(());
        }
        if let Some(token) = self.token_for(&resource, writes, parameter, earlier)? {
            if resource.mode == Mode::Enforce {
                self.check(&resource, token, earlier)?;
            }
            needs.push(Need { resource, token, may_raise });
        }
        Ok(())
    }

    /// The resources that an opaque statement may write, where it needs their tokens.
    fn hidden(&self, statement: &Statement, earlier: &Earlier) -> Result<Vec<Arc<Resource>>, Stop> {
        let in_doubt = !self.catalogue_is_current || self.changes_catalogue;
        let matters = self.some_fence_acts() && (in_doubt || self.catalogue.has_fenced_tables());
        let opaque = statement.opaque.or_else(|| self.unknown_cascade(statement)).map(str::to_owned);
        let hint = "Write to the tables directly, or set `opaque: require_token` or `allow` in the policy.";
        let opaque = opaque.map(|why| (why, hint)).or_else(|| self.suspect(statement, earlier));
        let Some((why, hint)) = opaque.filter(|_| matters) else { return Ok(Vec::new()) };
        match self.policies.opaque {
            Opaque::Allow => Ok(Vec::new()),
            Opaque::Reject => {
                let why = format!("{}: {why}", statement.kind);
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

    /// Why a statement may write by way of what is being defined, and what to do about it.
    fn suspect(&self, statement: &Statement, earlier: &Earlier) -> Option<(String, &'static str)> {
        let within = |suspects: &Suspects| suspects.written_within(statement, self.policies, self.catalogue);
        if let Some(relation) = within(self.suspects).or_else(|| within(&earlier.suspects)) {
            let why = format!("\"{}\" may lead to what the same transaction has defined", relation.name);
            return Some((why, "Commit the definitions before you write to what they made."));
        }
        let of_others = |suspects: &Arc<Suspects>| suspects.written_by(statement, self.catalogue);
        let relation = self.suspects_of_others.iter().find_map(of_others)?;
        let why = format!("\"{}\" may lead to what another session is defining", relation.name);
        Some((why, "Try again when that session has ended its transaction."))
    }

    /// While the catalogue is not known, any relation may be a way to any fenced table. Harmless is only a write that
    /// needs the token of every fence anyway.
    fn refuse_what_is_unread(&self, statement: &Statement, touched: &[Touch]) -> Result<(), Stop> {
        let writes = statement.writes.iter().any(|write| write.operation != Operation::Lock);
        if self.catalogue_is_current || !writes {
            return Ok(());
        }
        let is_needed = |resource: &Arc<Resource>| {
            resource.keyed.is_none() && touched.iter().any(|it| it.writes && Arc::ptr_eq(&it.resource, resource))
        };
        let mut acting = self.policies.resources.iter().filter(|resource| resource.mode == Mode::Enforce);
        match acting.all(is_needed) {
            true => Ok(()),
            false => Err(Rejection::UnreadCatalogue.into()),
        }
    }

    /// Only the catalogue tells what depends on a relation.
    fn unknown_cascade(&self, statement: &Statement) -> Option<&'static str> {
        let cascade = [Operation::Cascade, Operation::TruncateCascade];
        let cascades = statement.writes.iter().any(|write| cascade.contains(&write.operation));
        (cascades && !self.catalogue_is_current).then_some("what depends on the table cannot be looked up now")
    }

    /// Fences that only observe reject nothing, also not what cannot be verified.
    fn some_fence_acts(&self) -> bool {
        self.policies.resources.iter().any(|resource| resource.mode == Mode::Enforce)
    }

    /// The session presents a token for the resource, or for some key of it; it need not where this is false.
    fn presents(
        &self,
        resource: &Arc<Resource>,
        writes: bool,
        parameter: &Parameter,
        earlier: &mut Earlier,
    ) -> Result<bool, Stop> {
        if self.owed && (self.parameter_in_doubt || !self.parameter.is_settled()) {
            return Err(Stop::Settle);
        }
        let rejection = match parameter.current() {
            Value::Unknown => return Err(Stop::ReadValue),
            Value::Known(value) if value.has_token_for(resource) => return Ok(true),
            Value::Known(_) if resource.on_missing == OnMissing::Allow => return Ok(false),
            Value::Known(_) => Rejection::Missing { resource: resource.name.clone() },
            Value::Invalid => Rejection::InvalidValue { resource: resource.name.clone() },
        };
        // Reads are never fenced; those that lock are, for holders of a token only.
        if writes {
            earlier.observed_or(resource, rejection)?;
        }
        Ok(false)
    }

    /// The token to present; None when the statement may pass without one.
    fn token_for(
        &self,
        resource: &Arc<Resource>,
        writes: bool,
        parameter: &Parameter,
        earlier: &mut Earlier,
    ) -> Result<Option<Token>, Stop> {
        let presents = self.presents(resource, writes, parameter, earlier)?;
        match parameter.current() {
            Value::Known(value) if presents => Ok(value.token(&resource.name)),
            _ => Ok(None),
        }
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

    fn exempt_writes(&self, statements: &[Arc<Statement>]) -> Vec<PassedWrite> {
        let of_statement = |statement: &Arc<Statement>| {
            let written = touched(statement, self.policies, self.catalogue).into_iter().filter(|touch| touch.writes);
            let hidden = match self.hidden(statement, &Earlier::default()) {
                Ok(resources) => resources.into_iter().map(Some).collect(),
                // Of anybody else it would be rejected.
                Err(_) => vec![None],
            };
            let kind = statement.kind;
            let passed = move |resource| PassedWrite { resource, statement: kind, observed: None };
            written.map(|touch| Some(touch.resource)).chain(hidden).map(passed)
        };
        statements.iter().flat_map(of_statement).collect()
    }
}

/// What stands before a statement in the same string.
#[derive(Default)]
struct Earlier {
    needs: Vec<Need>,
    /// What fences that only observe would reject.
    passed: Vec<PassedWrite>,
    ended_transaction: bool,
    suspects: Suspects,
    /// The kind of the statement at hand.
    kind: &'static str,
}

impl Earlier {
    /// A fence that only observes rejects nothing.
    fn observed_or(&mut self, resource: &Arc<Resource>, rejection: Rejection) -> Result<(), Stop> {
        if resource.mode == Mode::Enforce {
            return Err(rejection.into());
        }
        let resource = Some(resource.clone());
        self.passed.push(PassedWrite { resource, statement: self.kind, observed: Some(rejection) });
        Ok(())
    }
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
