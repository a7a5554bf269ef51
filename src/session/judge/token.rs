//! The token that a session presents for a resource, and whether it may.
//!
//! Must never admit by itself: only the database says whether the fence accepts a token.

use super::{Earlier, Judge, Need, Needs, Stop};
use crate::fence::session::Token;
use crate::policy::{Mode, OnMissing, QualifiedName, Resource};
use crate::session::parameter::{Parameter, ParameterValue};
use crate::session::rejection::Rejection;
use crate::statement::Statement;
use std::sync::Arc;

impl Judge<'_> {
    /// Adds that the statement needs the session's token for the resource, if it does.
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
            if resource.mode == Mode::Enforce {
                self.check(&resource, token, earlier)?;
            }
            let (statement, role_changes) = (earlier.statement.clone(), earlier.role_changes);
            needs.push(Need { resource, token, may_raise, statement, role_changes });
        }
        Ok(())
    }

    /// The session presents a token for the resource, or for some key of it; it need not where this is false.
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
            ParameterValue::Unknown => return Err(Stop::ReadValue),
            ParameterValue::Known(value) if value.has_token_for(resource) => return Ok(true),
            ParameterValue::Known(_) if resource.on_missing == OnMissing::Allow => return Ok(false),
            ParameterValue::Known(value) => Rejection::Missing {
                resource: resource.name.clone(),
                named: value.resources(),
                by_bare_name: by_bare_name(resource, &earlier.statement),
            },
            ParameterValue::Invalid => Rejection::InvalidValue { resource: resource.name.clone() },
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
            ParameterValue::Known(value) if presents => Ok(value.token(&resource.name)),
            _ => Ok(None),
        }
    }

    fn check(&self, resource: &Resource, token: Token, earlier: &Earlier) -> Result<(), Stop> {
        let before = earlier.needs.token(&resource.name);
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
        let admitted = self.standing.admitted(&resource.name);
        if admitted.is_some_and(|admitted| admitted != token) && self.owed {
            // What runs under the other token has to end before this one is raised.
            return Err(Stop::Settle);
        }
        if admitted != Some(token)
            && let Some(highest) = self.standing.known_stale(&resource.name, token)
        {
            let (resource, highest) = (resource.name.clone(), highest.token);
            return Err(Rejection::Stale { resource, presented: token, highest }.into());
        }
        Ok(())
    }
}

/// The table of the resource that the statement may mean by a name without a schema.
fn by_bare_name(resource: &Resource, statement: &Statement) -> Option<QualifiedName> {
    let is_bare = |table: &QualifiedName| {
        let mut writes = statement.writes.iter().map(|write| &write.relation);
        writes.any(|relation| relation.schema.is_none() && relation.name == table.name)
    };
    resource.tables.iter().map(|table| &table.name).find(|name| is_bare(name)).cloned()
}
