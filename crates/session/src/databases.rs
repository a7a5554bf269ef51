//! Statements that need databases without other connections, such as DROP DATABASE.
//!
//! Owns the check that the databases do not belong to others, and the closing of the proxy's control connections. Must
//! never close control connections for a statement that cannot run.

use super::host::Host;
use super::message::{ServerFact, Verdict};
use super::pipeline::Part;
use super::session::Session;
use super::task::Task;
use fencegate_statement::Statement;
use fencegate_wire::message::Status;
use std::collections::HashSet;
use std::sync::Arc;

impl<H: Host> Session<H> {
    /// Finds out which of the databases belong to others: the server would lock a database before it checks the role,
    /// and while it waits for that lock, all logins to the database block. Then closes the control connections to the
    /// database, if the statement can run. Returns `None` when nothing is left to do.
    pub(super) fn prepare_databases(&mut self, statements: &[Arc<Statement>]) -> Option<Verdict> {
        let last = statements.iter().rposition(|it| it.needs_database_alone.is_some())?;
        let owned: HashSet<&str> = statements.iter().filter_map(|it| it.database_to_own()).collect();
        if owned.is_empty() && statements.len() > 1 {
            return None;
        }
        if !self.pipeline.is_empty() {
            return Some(self.settle());
        }
        let facts = &self.message.facts;
        let is_unchecked = facts.foreign_databases.is_none() && !owned.is_empty();
        let is_foreign = facts.foreign_databases.as_ref().is_some_and(|foreign| !foreign.is_empty());
        let can_run = self.transaction.status() == Status::Idle && self.pipeline.part() != Part::Executed;
        let is_to_vacate = statements.len() == 1 && can_run && !is_foreign && !facts.is_vacated;
        if self.settings.parameter.refuses(&statements[0]) || !is_unchecked && !is_to_vacate {
            return None;
        }
        // Earlier statements of the string may change the role. After an Execute of the proxy, which begins a pipeline,
        // the server refuses some of these statements.
        let role = match &facts.role {
            _ if statements[..last].iter().any(|it| it.may_change_role()) => self.any_role(),
            ServerFact::Known(role) => role.clone(),
            ServerFact::NotQueried | ServerFact::Due if self.is_extended() => self.any_role(),
            ServerFact::NotQueried | ServerFact::Due => return Some(self.query_role()),
        };
        self.request(match &statements[last].needs_database_alone {
            Some(wanted) if !is_unchecked => Task::VacateDatabase(wanted.clone(), role),
            _ => Task::CheckOwner(owned.into_iter().map(str::to_owned).collect(), role),
        });
        Some(Verdict::Hold)
    }
}
