//! The token that a session presents for a resource, whether it may present it, and the combined effect of earlier
//! statements in the same string, which run first.
//!
//! Must never admit by itself: only the database decides whether the fence accepts a token. Must never reject because
//! of a fence that only observes.

use super::need::{Need, Needs, PassedWrite};
use super::{Judge, Stop};
use crate::parameter::{Parameter, ParameterValue};
use crate::pending_definitions::PendingDefinitions;
use crate::rejection::{Rejection, may_be_another};
use fencegate_fence::FenceError;
use fencegate_fence::session::Token;
use fencegate_policy::{Mode, OnMissing, QualifiedName, Resource};
use fencegate_statement::{ParameterEffect, Statement, TransactionEffect};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Judge<'_> {
    /// Adds the session's token for the resource, if the statement needs it.
    pub(super) fn need(
        &self,
        resource: Arc<Resource>,
        writes: bool,
        may_raise: bool,
        parameter: &Parameter,
        earlier: &mut Earlier,
        needs: &mut Needs,
    ) -> Result<(), Stop> {
        if needs.token(&resource.name).is_some() {
            return Ok(());
        }
        if let Some(token) = self.token_for(&resource, writes, parameter, earlier)? {
            match resource.mode {
                Mode::Enforce => self.check(&resource, token, earlier)?,
                Mode::Observe => {
                    if let Some(rejection) = two_tokens(&resource, token, earlier, &self.observed.written) {
                        return earlier.observed_or(&resource, rejection);
                    }
                }
            }
            let (statement, role_changes) = (earlier.statement.clone(), earlier.role_changes);
            let presumed = earlier.presumes && earlier.checked.insert(resource.name.clone());
            needs.push(Need { resource, token, may_raise, statement, role_changes, presumed });
        }
        Ok(())
    }

    /// Returns true if the session presents a token for the resource or for some key of it. If false, it need not.
    pub(super) fn presents(
        &self,
        resource: &Arc<Resource>,
        writes: bool,
        parameter: &Parameter,
        earlier: &mut Earlier,
    ) -> Result<bool, Stop> {
        if self.parameter_in_doubt {
            return Err(Stop::Settle);
        }
        let rejection = match parameter.current() {
            ParameterValue::Unknown if self.is_answered() => return Err(Stop::Read),
            // A check of the token would reject writes that pass here.
            ParameterValue::Known(_) if earlier.presumes && resource.mode == Mode::Observe => {
                return self.in_doubt(resource, earlier);
            }
            ParameterValue::Known(value) if value.has_token_for(resource) => return Ok(true),
            ParameterValue::Known(_) if resource.on_missing == OnMissing::Allow => {
                return if earlier.presumes { self.in_doubt(resource, earlier) } else { Ok(false) };
            }
            ParameterValue::Known(value) => Rejection::Missing {
                resource: resource.name.clone(),
                named: value.resources(),
                by_bare_name: by_bare_name(resource, &earlier.statement),
            },
            ParameterValue::Invalid => Rejection::InvalidValue { resource: resource.name.clone() },
            ParameterValue::Unknown => return self.in_doubt(resource, earlier),
        };
        // Reads are never fenced. Locking reads are fenced only for sessions with a token.
        if writes {
            earlier.observed_or(resource, rejection)?;
        }
        Ok(false)
    }

    /// Rejects a write whose token may differ from the one before its string.
    fn in_doubt(&self, resource: &Arc<Resource>, earlier: &mut Earlier) -> Result<bool, Stop> {
        earlier.observed_or(resource, may_be_another(earlier.statement.kind)).map(|()| false)
    }

    /// Returns true if the server can be queried for the parameter: it was unknown before this string, and no
    /// transaction has failed.
    fn is_answered(&self) -> bool {
        *self.parameter.current() == ParameterValue::Unknown && !self.parameter.failed()
    }

    /// The token to present; `None` if the statement may pass without one.
    fn token_for(
        &self,
        resource: &Arc<Resource>,
        writes: bool,
        parameter: &Parameter,
        earlier: &mut Earlier,
    ) -> Result<Option<Token>, Stop> {
        let presents = self.presents(resource, writes, parameter, earlier)?;
        match parameter.current() {
            ParameterValue::Known(value) if presents => Ok(value.token(&resource.name)),
            _ => Ok(None),
        }
    }

    fn check(&self, resource: &Resource, token: Token, earlier: &Earlier) -> Result<(), Stop> {
        if let Some(rejection) = two_tokens(resource, token, earlier, self.written) {
            // The transaction of an earlier message may have ended.
            let is_of_message = earlier.needs.token(&resource.name).is_some();
            return Err(if self.owed && !is_of_message { Stop::Settle } else { rejection.into() });
        }
        if let Some(refusal) = self.refused.filter(|refusal| refusal.resource() == resource.name) {
            return Err(Rejection::from(refusal.clone()).into());
        }
        let admitted = self.standing.admitted(&resource.name);
        if admitted.is_some_and(|admitted| admitted != token) && self.owed {
            // Statements under the other token have to end before this token is raised.
            return Err(Stop::Settle);
        }
        if admitted != Some(token)
            && let Some(highest) = self.standing.known_stale(&resource.name, token)
        {
            let refusal = FenceError::Stale { resource: resource.name.clone(), presented: token, highest };
            return Err(Rejection::Fence(refusal).into());
        }
        Ok(())
    }
}

/// The table of the resource that an unqualified name in the statement may refer to.
fn by_bare_name(resource: &Resource, statement: &Statement) -> Option<QualifiedName> {
    let is_bare = |table: &QualifiedName| {
        let mut writes = statement.writes.iter().map(|write| &write.relation);
        writes.any(|relation| relation.schema.is_none() && relation.name == table.name)
    };
    resource.tables.iter().map(|table| &table.name).find(|name| is_bare(name)).cloned()
}

/// LF003 if the open transaction or an earlier statement of the same string writes to the resource under another token.
fn two_tokens(
    resource: &Resource,
    presented: Token,
    earlier: &Earlier,
    written: &HashMap<String, Token>,
) -> Option<Rejection> {
    let before = earlier.needs.token(&resource.name).or_else(|| written.get(&resource.name).copied());
    let written = before.filter(|written| *written != presented)?;
    let resource = resource.name.clone();
    Some(match earlier.ended_transaction {
        // The token would have to be raised in the middle of a string that the server receives as a whole.
        true => Rejection::TwoTokensAtOnce { resource, presented, written },
        false => Rejection::Fence(FenceError::WrittenUnderAnotherToken { resource, presented, current: written }),
    })
}

/// The effects of earlier statements in the same string.
#[derive(Default)]
pub(super) struct Earlier {
    pub(super) needs: Needs,
    /// Writes that fences would reject if they did not only observe.
    pub(super) passed: Vec<PassedWrite>,
    pub(super) ended_transaction: bool,
    pub(super) pending: PendingDefinitions,
    /// They may change the session's role.
    pub(super) role_changes: bool,
    /// Their code may change the search path.
    pub(super) may_set_path: bool,
    /// They may create operators or types that hide the catalog's own.
    pub(super) shadow_keys: bool,
    /// Some may have changed the token unseen. The proxy presumes that they have not.
    pub(super) presumes: bool,
    /// The resources whose token the server has checked since.
    pub(super) checked: HashSet<String>,
    /// The current statement.
    pub(super) statement: Arc<Statement>,
}

impl Earlier {
    /// An earlier check no longer holds if the statement may set the token or restore an older one.
    pub(super) fn note_token(&mut self, statement: &Statement, is_presumed: bool) {
        self.presumes |= is_presumed;
        if statement.parameter != ParameterEffect::None || statement.transaction != TransactionEffect::None {
            self.checked.clear();
        }
    }

    /// Returns the rejection, or records it if the fence only observes.
    pub(super) fn observed_or(&mut self, resource: &Arc<Resource>, rejection: Rejection) -> Result<(), Stop> {
        if resource.mode == Mode::Enforce {
            return Err(rejection.into());
        }
        self.observed(Some(resource.clone()), rejection);
        Ok(())
    }

    /// Records a write that enforcing fences would reject. Its resource may be unknown.
    pub(super) fn observed(&mut self, resource: Option<Arc<Resource>>, rejection: Rejection) {
        self.passed.push(PassedWrite { resource, statement: self.statement.clone(), observed: Some(rejection) });
    }
}
