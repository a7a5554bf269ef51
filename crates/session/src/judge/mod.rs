//! The verdict on statements before they are forwarded: a pure function of the known facts.
//!
//! If a fact is missing, reports it and is called again. Must never pass a statement that it cannot decide, nor
//! resolve the name of an EXECUTE or FETCH by its meaning before replies that are still to come.

mod hidden;
pub(crate) mod need;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod token;

pub use hidden::{is_named_plainly, needs_every_token};
pub use need::{Need, ObservedWrites, PassedWrite};

use super::affected::{self, AffectedResource, affected_resources};
use super::parameter::Parameter;
use super::pending_definitions::{CatalogView, PendingDefinitions};
use super::rejection::Rejection;
use crate::names::{Meaning, Names};
use fencegate_fence::FenceError;
use fencegate_fence::session::{Epoch, Token};
use fencegate_fence::value::FenceValue;
use fencegate_policy::{Opaque, PolicySet};
use fencegate_statement::{OpaqueReason, ParameterEffect, PreparedEffect, Statement, StatementKind, TransactionEffect};
use need::Needs;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use token::Earlier;

/// The decision on the statements of a message.
#[derive(Debug)]
pub enum Decision {
    /// Forward, once the session is admitted to all enforced needs.
    Forward(Vec<Need>, Vec<PassedWrite>),
    /// Reject the statement at this index. Earlier statements run, and may commit, so they need the admissions as in
    /// `Forward`.
    Reject(usize, Rejection, Vec<Need>),
    /// Wait until the server owes nothing.
    Settle,
    /// Read the parameter from the server.
    ReadValue,
    /// Read the text again with its rows, which contain the keys.
    ReadRows,
}

/// The session's admissions, and the known epochs.
pub trait Standing {
    /// The token under which the session's process is admitted to the resource.
    fn admitted(&self, resource: &str) -> Option<Token>;

    /// Returns true if the process is admitted to any resource.
    fn holds_admissions(&self) -> bool;

    /// An epoch of the resource above this token, if one is known and counts without a query.
    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch>;
}

/// The facts that a decision depends on.
pub struct Judge<'a> {
    /// The policies in force.
    pub policies: &'a PolicySet,
    /// The admissions and epochs that the fence knows of the session.
    pub standing: &'a dyn Standing,
    /// The known part of the catalog.
    pub seen: &'a CatalogView,
    /// True if this transaction has changed the catalog in a way that concerns fenced tables.
    pub changes_catalog: bool,
    /// True if the transaction may have created operators or types that hide the catalog's own in key comparisons.
    pub shadows_keys: bool,
    /// The search path, if the server was queried for it.
    pub path: Option<&'a str>,
    /// Relations that this transaction may have turned into ways to fenced tables.
    pub pending: &'a PendingDefinitions,
    /// Such relations of each other session. They are read before the catalog.
    pub definitions_of_others: &'a [Arc<PendingDefinitions>],
    /// True if the login role bypasses the fences.
    pub exempt: bool,
    /// The policy on opaque statements of that role.
    pub opaque: Opaque,
    /// The session's `lease.fence`.
    pub parameter: &'a Parameter,
    /// The server owes replies.
    pub owed: bool,
    /// Some of these replies, or a rollback that they cause, may change the parameter.
    pub parameter_in_doubt: bool,
    /// The tokens under which this transaction has written.
    pub written: &'a HashMap<String, Token>,
    /// Writes past fences that only observe.
    pub observed: &'a ObservedWrites,
    /// Why an Admit for the statements at hand failed.
    pub refused: Option<&'a FenceError>,
    /// Databases that the session's role may not drop, rename or move.
    pub foreign_databases: Option<&'a HashSet<String>>,
}

/// Why a statement cannot be forwarded at once.
enum Stop {
    Reject(Rejection),
    Settle,
    /// The parameter or the search path is unknown.
    Read,
    /// The text was read without its rows.
    ReadRows,
}

impl From<Rejection> for Stop {
    fn from(rejection: Rejection) -> Self {
        Stop::Reject(rejection)
    }
}

impl Judge<'_> {
    /// Judges statements that the server will run one after the other, before any of them is sent.
    pub fn statements(&self, statements: &[Arc<Statement>]) -> Decision {
        if self.exempt {
            let refused = statements.iter().enumerate().find_map(|(index, it)| Some((index, self.not_owner(it)?)));
            return match refused {
                Some((index, rejection)) => Decision::Reject(index, rejection, Vec::new()),
                None => Decision::Forward(Vec::new(), self.exempt_writes(statements)),
            };
        }
        // A statement that may have changed the token could also have written, if the policies allow it. Therefore
        // later statements pass under the earlier token, and the server checks that token. A rejected string is sent
        // without checks, so a token that may have changed must not cause the rejection.
        match self.judged(statements, self.opaque == Opaque::Allow) {
            Decision::Reject(..) => self.judged(statements, false),
            decision => decision,
        }
    }

    fn judged(&self, statements: &[Arc<Statement>], presume: bool) -> Decision {
        let mut parameter = self.parameter.clone();
        let mut earlier = Earlier::default();
        for (index, statement) in statements.iter().enumerate() {
            if parameter.refuses(statement) {
                if self.owed {
                    // A forwarded message may have ended the failed transaction.
                    return Decision::Settle;
                }
                // The server refuses the statement and everything after it in the same string.
                break;
            }
            earlier.statement = statement.clone();
            match self.statement(statement, &parameter, &mut earlier) {
                Ok(more) => {
                    earlier.needs.extend(more);
                    earlier.pending.note(statement, self.policies, self.seen, self.definitions_of_others);
                }
                Err(Stop::Reject(rejection)) => return Decision::Reject(index, rejection, earlier.needs.into_list()),
                Err(Stop::Settle) => return Decision::Settle,
                Err(Stop::Read) => return Decision::ReadValue,
                Err(Stop::ReadRows) => return Decision::ReadRows,
            }
            let is_presumed = presume && statement.parameter == ParameterEffect::Unknown;
            match is_presumed {
                true => parameter.completed(&statement.without_parameter(), parameter.failed()),
                false => parameter.completed(statement, parameter.failed()),
            }
            earlier.note_token(statement, is_presumed);
            earlier.role_changes |= statement.may_change_role();
            earlier.ended_transaction |= statement.ends_transaction();
            earlier.may_set_path |= !statement.runs_nothing();
            earlier.shadow_keys |= statement.may_shadow_key_types();
        }
        Decision::Forward(earlier.needs.into_list(), earlier.passed)
    }

    fn statement(
        &self,
        statement: &Arc<Statement>,
        parameter: &Parameter,
        earlier: &mut Earlier,
    ) -> Result<Needs, Stop> {
        if let Some(rejection) = self.not_owner(statement) {
            return Err(rejection.into());
        }
        if let ParameterEffect::Set { value, .. } = &statement.parameter
            && let Err(why) = FenceValue::parse(value)
        {
            return Err(Rejection::InvalidSetting { why, value: value.clone() }.into());
        }
        if statement.transaction == TransactionEffect::PrepareTransaction && !parameter.failed() {
            self.refuse_to_prepare(earlier)?;
        }
        let hidden = self.hidden(statement, earlier)?;
        let affected = affected_resources(statement, self.policies, self.seen);
        if statement.leaves_rows_out() && affected.iter().any(|it| it.keys.is_some()) {
            return Err(Stop::ReadRows);
        }
        self.refuse_unread(statement, &affected, earlier)?;
        let mut needs = Needs::default();
        for it in affected {
            let AffectedResource { resource, writes, keys } = it;
            let Some(keys) = keys else {
                self.need(resource, writes, true, parameter, earlier, &mut needs)?;
                continue;
            };
            // The keys matter only with a token. Keys that only the guard can determine require one.
            let are_known = keys.iter().all(Result::is_ok);
            let by_path = are_known && statement.keys_by_path && self.names_may_differ(earlier);
            if (keys.is_empty() || !are_known || by_path) && !self.presents(&resource, writes, parameter, earlier)? {
                continue;
            }
            if by_path && !self.path_leads_to_catalog(earlier)? {
                earlier.observed_or(&resource, affected::by_path(&resource))?;
                continue;
            }
            for key in keys {
                match key {
                    Ok((resource, writes)) => self.need(resource, writes, true, parameter, earlier, &mut needs)?,
                    Err(rejection) if self.seen.is_current || self.seen.lacks_listener => {
                        earlier.observed_or(&resource, rejection)?;
                    }
                    Err(_) => earlier.observed_or(&resource, self.unread())?,
                }
            }
        }
        for resource in hidden {
            if resource.keyed.is_none() {
                self.need(resource, true, false, parameter, earlier, &mut needs)?;
            } else if self.presents(&resource, true, parameter, earlier)? {
                earlier.observed_or(&resource, affected::any(&resource, statement.kind))?;
            }
        }
        Ok(needs)
    }

    /// The server's refusal of a statement that would drop, rename or move a database of another role.
    fn not_owner(&self, statement: &Statement) -> Option<Rejection> {
        let database = statement.database_to_own()?;
        let is_foreign = self.foreign_databases.is_some_and(|foreign| foreign.contains(database));
        is_foreign.then(|| Rejection::NotOwner { database: database.to_owned() })
    }

    /// Returns true if an unqualified operator or type may not be the catalog's own.
    fn names_may_differ(&self, earlier: &Earlier) -> bool {
        self.seen.catalog.has_shadows() || self.shadows_keys || earlier.shadow_keys
    }

    /// Whether unqualified operators and types are the catalog's own under the current path, which earlier statements
    /// may change.
    fn path_leads_to_catalog(&self, earlier: &Earlier) -> Result<bool, Stop> {
        if self.shadows_keys || earlier.shadow_keys || earlier.may_set_path {
            return Ok(false);
        }
        self.path.map(|path| self.seen.catalog.path_leads_to_catalog(path)).ok_or(Stop::Read)
    }

    fn exempt_writes(&self, statements: &[Arc<Statement>]) -> Vec<PassedWrite> {
        let of_statement = |statement: &Arc<Statement>| {
            let written = affected_resources(statement, self.policies, self.seen).into_iter().filter(|it| it.writes);
            let mut observed = Earlier::default();
            let hidden = match self.hidden(statement, &mut observed) {
                Ok(resources) if observed.passed.is_empty() => resources.into_iter().map(Some).collect(),
                // Any other role would be rejected, or observed.
                _ => vec![None],
            };
            let passed = |resource| PassedWrite { resource, statement: statement.clone(), observed: None };
            written.map(|it| Some(it.resource)).chain(hidden).map(passed).collect::<Vec<_>>()
        };
        statements.iter().flat_map(of_statement).collect()
    }
}

/// Limit on the expansion of one message by EXECUTE and FETCH, in bytes: each execution holds its statement in memory
/// again.
const MAX_WEIGHT: usize = 4 << 20;

/// Resolves EXECUTE, including names that the same statements PREPARE first, and FETCH.
///
/// None if the result depends on pending replies.
pub fn resolve(statements: &[Arc<Statement>], names: &Names, batch: u64) -> Option<Vec<Arc<Statement>>> {
    let mut prepared: HashMap<&str, Arc<Statement>> = HashMap::new();
    let mut resolved = Vec::with_capacity(statements.len());
    let mut room = MAX_WEIGHT;
    for statement in statements {
        let mut run = |inner: &Statement| match room.checked_sub(statement.weight() + inner.weight()) {
            Some(left) => {
                room = left;
                Arc::new(statement.executing(Some(inner)))
            }
            None => Arc::new(statement.executing_too_much()),
        };
        let runs = match &statement.prepared {
            PreparedEffect::Prepare { name, statement: inner } => {
                prepared.insert(name, inner.clone());
                statement.clone()
            }
            PreparedEffect::Execute { name, .. } => match prepared.get(name.as_str()) {
                Some(inner) => run(inner),
                None => match names.statements.meaning(name.as_bytes(), batch) {
                    Meaning::Certain(inner) => run(&inner),
                    Meaning::Unsettled => return None,
                    Meaning::Unknown => Arc::new(statement.executing(None)),
                },
            },
            PreparedEffect::Fetch { name } => match names.portals.meaning(name.as_bytes(), batch) {
                Meaning::Certain(inner) => run(&inner),
                Meaning::Unsettled => return None,
                // A cursor was judged at its DECLARE, and can only read or call functions.
                Meaning::Unknown if names.portals.is_complete() => statement.clone(),
                Meaning::Unknown => Arc::new(statement.executing(None)),
            },
            _ => statement.clone(),
        };
        resolved.push(runs);
    }
    Some(resolved)
}

/// A statement about which only the reason for its opacity is known.
pub fn opaque(kind: StatementKind, why: OpaqueReason) -> Arc<Statement> {
    let mut statement = Statement { kind, ..Statement::default() };
    statement.set_runs_code(why);
    Arc::new(statement)
}
