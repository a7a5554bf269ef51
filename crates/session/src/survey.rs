//! The catalog and the pending definitions of other sessions, on which a verdict is based.
//!
//! Owns whether a reading of the catalog is needed, and how long statements wait for one. Must never read the catalog
//! before the pending definitions: a definition that ends in between would be in neither.

use super::host::Host;
use super::judge::{is_named_plainly, needs_every_token};
use super::pending_definitions::{CatalogRequest, CatalogView, PendingDefinitions};
use super::session::Session;
use super::task::Task;
use fencegate_statement::{Operation, Statement};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time that statements are held back for a reading of the catalog.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(5);
/// The limit if all fences only observe, or the statements only call functions of PostgreSQL: they pass without a reading.
const SHORT_CATCH_UP_LIMIT: Duration = Duration::from_millis(500);

/// Maximum number of looks at other sessions' pending definitions. If some end between all looks, they still count
/// after the last.
const MAX_SURVEYS: usize = 4;

impl<H: Host> Session<H> {
    /// Reads the pending definitions of other sessions, then the catalog: in this order, each definition is in at least
    /// one of the two. Returns `None` if the catalog must be read first.
    pub(super) fn survey(
        &mut self,
        statements: &[Arc<Statement>],
    ) -> Option<(Vec<Arc<PendingDefinitions>>, CatalogView)> {
        let mut surveys = 0;
        loop {
            let others = self.host.definitions_of_others();
            let wanted = self.wanted(statements, &others);
            let mut seen = self.host.catalog(wanted.as_ref());
            if let Some(wanted) = wanted
                && statements.iter().any(|statement| self.depends_on_catalog(statement, &others, &seen))
            {
                if let Some(task) = self.first(&wanted, statements) {
                    self.request(task);
                    return None;
                }
                // Another session may have read it meanwhile.
                seen = self.host.catalog(Some(&wanted));
            }
            // A definition whose effect was read meanwhile would count twice: as pending, and as part of the catalog.
            let is_same = |now: Vec<Arc<PendingDefinitions>>| {
                now.len() == others.len() && now.iter().zip(&others).all(|(one, other)| Arc::ptr_eq(one, other))
            };
            surveys += 1;
            if others.is_empty() || surveys == MAX_SURVEYS || is_same(self.host.definitions_of_others()) {
                return Some((others, seen));
            }
        }
    }

    /// The part of the catalog that is needed to judge these statements; `None` if their text suffices. A reading needs
    /// to cover only the changes seen when the message arrived: other sessions may keep changing the catalog, and the
    /// wait would never end.
    pub(super) fn wanted(
        &mut self,
        statements: &[Arc<Statement>],
        others: &[Arc<PendingDefinitions>],
    ) -> Option<CatalogRequest> {
        let policies = self.host.policies();
        let is_concerned = |it: &Arc<Statement>| {
            (self.may_need_token(it) || it.changes_catalog) && !(others.is_empty() && needs_every_token(it, policies))
        };
        if !statements.iter().any(is_concerned) {
            return None;
        }
        let since = *self.message.facts.changes.get_or_insert_with(|| self.host.changes());
        let cascades = statements.iter().flat_map(|it| &it.writes).any(|write| write.operation == Operation::Cascade);
        let is_plain = statements.iter().all(|it| is_named_plainly(it, policies));
        Some(CatalogRequest { since, temporary: self.settings.temporary.clone(), cascades, is_plain })
    }

    /// Returns true if catalog changes may change the verdict.
    fn depends_on_catalog(
        &self,
        statement: &Statement,
        others: &[Arc<PendingDefinitions>],
        seen: &CatalogView,
    ) -> bool {
        let is_suspect = || others.iter().any(|it| it.written_by(statement, &seen.catalog).is_some());
        (self.may_need_token(statement) || statement.changes_catalog)
            && (!needs_every_token(statement, self.host.policies()) || is_suspect())
    }

    /// The task to perform before the statements can be judged. A call of PostgreSQL's functions alone passes without it.
    fn first(&mut self, wanted: &CatalogRequest, statements: &[Arc<Statement>]) -> Option<Task> {
        let passes = |it: &Arc<Statement>| it.only_reads() && it.reads.is_empty() && !it.reads_more && !it.calls_code();
        let now = self.pipeline.now();
        let since = *self.message.facts.judged_since.get_or_insert(now);
        let is_urgent = !self.host.policies().enforces() || statements.iter().all(passes);
        let limit = if is_urgent { SHORT_CATCH_UP_LIMIT } else { CATCH_UP_LIMIT };
        let left = limit.saturating_sub(now.saturating_duration_since(since));
        (!left.is_zero() && self.host.is_unread(wanted)).then(|| Task::CatchUp(wanted.clone(), left))
    }
}
