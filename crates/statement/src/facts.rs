//! How facts are added to a [`Statement`] and read from it as a whole.

use super::functions::is_harmless;
use super::parameter::is_set_config;
use super::rows::{Argument, Budget, COUNTED_TYPES, ColumnValue, KEY_TYPES, Rows, UNNEST};
use super::{
    FunctionName, OpaqueReason, Operation, ParameterEffect, PathEffect, PreparedEffect, RelationName, Statement,
    StatementKind, TransactionEffect, Write, own,
};
use pg_query::NodeEnum;
use pg_query::protobuf::{Node, RangeVar};
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// The schema of the session's temporary relations. The server searches it first, unless the search path names it.
pub const TEMPORARY: &str = "pg_temp";

impl Statement {
    /// The effect of an `EXECUTE` or `FETCH` (this statement), given the statement of that name; `None` if that is
    /// unknown.
    pub fn executing(&self, prepared: Option<&Statement>) -> Statement {
        let mut whole = self.clone();
        // A statement prepared through the protocol can be any statement, even one that prepares or executes another.
        let Some(prepared) = prepared.filter(|prepared| prepared.prepared == PreparedEffect::None) else {
            whole.set_runs_code(OpaqueReason::UnseenPrepared);
            return whole;
        };
        if prepared.transaction != TransactionEffect::None {
            // The server does not expect this effect, and ends the transaction or the session later.
            whole.set_runs_code(OpaqueReason::PreparedTransaction);
            return whole;
        }
        if self.functions.iter().all(is_harmless) {
            whole.parameter = prepared.parameter.clone();
        }
        if self.kind != StatementKind::Execute {
            whole.parameter.blur();
        }
        if prepared.path != PathEffect::None {
            whole.path = PathEffect::Unknown;
        }
        match &self.prepared {
            PreparedEffect::Execute { arguments, .. } => {
                let values = arguments.iter().map(|it| it.as_ref().map_or(Argument::Unknown, Argument::Constant));
                whole.writes.extend(prepared.bound(&values.collect::<Vec<_>>()).writes);
            }
            _ => whole.writes.extend(prepared.writes.iter().cloned()),
        }
        whole.keys_by_path |= prepared.keys_by_path;
        whole.own_by_path |= prepared.own_by_path;
        whole.functions.extend(prepared.functions.iter().cloned());
        whole.reads.extend(prepared.reads.iter().cloned());
        whole.reads_more |= prepared.reads_more;
        whole.opaque = whole.opaque.or(prepared.opaque);
        whole.changes_catalog |= prepared.changes_catalog;
        whole.changes_unnamed |= prepared.changes_unnamed;
        whole.defines.extend(prepared.defines.iter().cloned());
        whole.redirects.extend(prepared.redirects.iter().cloned());
        whole.needs_database_alone = prepared.needs_database_alone.clone();
        whole.settle();
        whole
    }

    /// Only the effects that concern transactions.
    pub fn without_parameter(&self) -> Statement {
        Statement { kind: self.kind, transaction: self.transaction.clone(), ..Statement::default() }
    }

    /// Like [`Statement::executing`], for an executed statement that is too complex to analyze.
    pub fn executing_too_much(&self) -> Statement {
        let mut whole = self.clone();
        whole.set_runs_code(OpaqueReason::PreparesTooMuch);
        whole
    }

    /// True if its text was not read for the rows that it writes.
    pub fn leaves_rows_out(&self) -> bool {
        self.writes.iter().any(|write| write.rows.are_left_out())
    }

    /// True if the written rows depend on bound parameters.
    pub fn has_parameters(&self) -> bool {
        self.writes.iter().any(|write| write.rows.has_parameters())
    }

    /// True if the parameter with that number, from 1, is the value of such a column in a write.
    pub fn uses_parameter(&self, number: usize, is_meant: impl Fn(&str) -> bool) -> bool {
        self.writes.iter().any(|write| write.rows.use_parameter(number, &is_meant))
    }

    /// The statement with its parameters bound to these values.
    pub fn bound(&self, values: &[Argument]) -> Statement {
        let (mut bound, mut budget) = (self.clone(), Budget::default());
        for write in &mut bound.writes {
            write.rows = write.rows.replaced(|value, bound| value.bind(&self.declared, values, &mut budget, bound));
        }
        bound
    }

    /// The statement under a known search path. If the path leads elsewhere, its rows are unknown.
    pub fn by_known_path(&self, leads_to_catalog: bool) -> Statement {
        let mut known = Statement { keys_by_path: false, ..self.clone() };
        if !leads_to_catalog {
            known.writes.iter_mut().for_each(|write| write.rows = Rows::default());
        }
        known
    }

    /// The statement with some writes to unqualified names replaced by writes to that name in each of the schemas.
    pub fn in_schemas(&self, schemas: &[String], is_meant: impl Fn(&RelationName) -> bool) -> Statement {
        let mut writes = Vec::with_capacity(self.writes.len() + schemas.len());
        for write in &self.writes {
            if write.relation.schema.is_some() || !is_meant(&write.relation) {
                writes.push(write.clone());
                continue;
            }
            writes.extend(schemas.iter().map(|schema| {
                let relation = RelationName { schema: Some(schema.clone()), name: write.relation.name.clone() };
                Write { relation, ..write.clone() }
            }));
        }
        Statement { writes, ..self.clone() }
    }

    /// The statement under a known search path, which determines whether its names mean fencegate's own objects.
    pub fn by_own_path(&self, means_own: bool) -> Statement {
        let mut known = Statement { own_by_path: false, ..self.clone() };
        if means_own {
            known.set_opaque(OpaqueReason::FencegatesOwnByPath);
        }
        known
    }

    /// True if the statement runs no user-defined code and changes no setting. Every other statement may do so,
    /// whatever its text shows: through a view, an operator, a cast, a domain's checks, a trigger, or the settings that
    /// a rollback restores.
    pub fn runs_nothing(&self) -> bool {
        use StatementKind::{
            Begin, Close, Deallocate, Listen, Notify, Release, Savepoint, Show, StartTransaction, Unlisten,
        };
        matches!(
            self.kind,
            Begin | StartTransaction | Savepoint | Release | Show | Listen | Unlisten | Notify | Deallocate | Close
        )
    }

    /// True if the statement names a function that may run any code. Functions of PostgreSQL that run none do not count.
    pub fn calls_code(&self) -> bool {
        !self.functions.iter().all(|function| is_harmless(function) || is_set_config(function))
    }

    /// True if its text shows that it may set the search path, or the role in `"$user"`. Code that it runs may do so as
    /// well.
    pub fn shows_other_path(&self) -> bool {
        self.path != PathEffect::None || self.may_change_role()
    }

    /// True if the statement only reads: it does not write, lock, define or set anything, and calls no function that
    /// might (`add_call`).
    pub fn only_reads(&self) -> bool {
        self.kind == StatementKind::Select
            && self.writes.is_empty()
            && self.defines.is_empty()
            && self.redirects.is_empty()
            && self.opaque.is_none()
            && matches!(self.parameter, ParameterEffect::None)
            && matches!(self.path, PathEffect::None)
            && matches!(self.transaction, TransactionEffect::None)
            && matches!(self.prepared, PreparedEffect::None)
            && self.needs_database_alone.is_none()
            && !self.changes_catalog
    }

    /// True if the proxy cannot read its text. The text may have a syntax error, which the server reports.
    pub fn is_unread(&self) -> bool {
        matches!(self.opaque, Some(OpaqueReason::Syntax | OpaqueReason::Encoding))
    }

    /// True if the statement may create an operator `=`, a function `unnest`, a type or a cast that hides the catalog's own in
    /// key comparisons. Types, and relations (each is a type too), can do so by their names alone.
    pub fn may_shadow_key_types(&self) -> bool {
        use StatementKind::{Alter, AlterOperator, AlterType, Create, CreateCast, CreateExtension};
        let is_named_so =
            matches!(self.kind, Create | Alter | AlterType | CreateCast | AlterOperator | CreateExtension);
        let redirected = self.redirects.iter().map(|redirect| &redirect.relation);
        let mut made = self.defines.iter().chain(redirected).map(|made| made.name.as_str());
        let hides = |name: &str| KEY_TYPES.contains(&name) || COUNTED_TYPES.contains(&name) || name == UNNEST;
        self.changes_catalog && (is_named_so || self.opaque.is_some() || made.any(hides))
    }

    /// Discards the known rows of writes that involve a name or value for which `is_unsure` returns true.
    pub(super) fn forget_rows(&mut self, is_unsure: &impl Fn(&str) -> bool) {
        self.writes.iter_mut().for_each(|write| write.rows.forget(is_unsure));
        match &mut self.prepared {
            PreparedEffect::Prepare { statement, .. } => Arc::make_mut(statement).forget_rows(is_unsure),
            PreparedEffect::Execute { arguments, .. } => {
                let is_sure = |value: &ColumnValue| !value.text().is_some_and(is_unsure);
                arguments.iter_mut().for_each(|argument| *argument = argument.take().filter(is_sure));
            }
            _ => {}
        }
    }

    /// True if the statement ends the transaction, with either outcome.
    pub fn ends_transaction(&self) -> bool {
        use TransactionEffect::{Commit, PrepareTransaction, Rollback};
        matches!(self.transaction, Commit | Rollback | PrepareTransaction)
    }

    /// Returns true if earlier writes or its own may be committed once it has completed, regardless of later messages.
    pub fn may_commit(&self) -> bool {
        use TransactionEffect::{Commit, PrepareTransaction};
        // Some definitions, such as DETACH PARTITION CONCURRENTLY, commit at once. These do, too, where a server permits
        // them.
        let has_its_own_transaction = matches!(
            self.kind,
            StatementKind::Vacuum | StatementKind::Analyze | StatementKind::Cluster | StatementKind::Reindex
        );
        matches!(self.transaction, Commit | PrepareTransaction)
            || self.opaque.is_some()
            || self.changes_catalog
            || has_its_own_transaction
    }

    /// Its effect as the query of a portal. A second Execute does not run the query again.
    pub fn in_portal(self: Arc<Self>) -> Arc<Statement> {
        if self.parameter == ParameterEffect::None
            || !matches!(self.kind, StatementKind::Select | StatementKind::Execute)
        {
            return self;
        }
        let mut statement = Arc::unwrap_or_clone(self);
        statement.parameter.blur();
        Arc::new(statement)
    }

    /// Adds a write to unknown rows.
    pub(super) fn add_write(&mut self, relation: RelationName, operation: Operation) {
        self.writes.push(Write { relation, operation, rows: Rows::default() });
    }

    pub(super) fn add_call(&mut self, function: FunctionName) {
        if !is_harmless(&function) {
            self.parameter = ParameterEffect::Unknown;
        }
        if function.name.starts_with("cursor_to_xml") {
            self.set_opaque(OpaqueReason::CursorByName);
        }
        self.functions.push(function);
    }

    /// Records that the text does not show what the statement may write or change.
    pub(super) fn set_opaque(&mut self, why: OpaqueReason) {
        self.opaque = Some(why);
        self.changes_catalog = true;
        self.changes_unnamed = true;
    }

    /// Like [`Statement::set_opaque`], for a statement that runs SQL which its text does not contain.
    pub fn set_runs_code(&mut self, why: OpaqueReason) {
        self.set_opaque(why);
        self.parameter = ParameterEffect::Unknown;
    }

    /// Completes the facts and removes duplicates, keeping the order.
    pub(super) fn settle(&mut self) {
        if let Some(why) = self.writes.iter().find_map(own::written) {
            self.set_opaque(why);
        }
        self.own_by_path |= self.writes.iter().any(own::may_be_written);
        keep_first(&mut self.writes);
        keep_first(&mut self.functions);
        keep_first(&mut self.reads);
        keep_first(&mut self.redirects);
        keep_first(&mut self.defines);
    }

    /// All names and values in it that come from the text.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let relations = self.writes.iter().map(|write| (&write.relation.schema, &write.relation.name));
        let functions = self.functions.iter().map(|function| (&function.schema, &function.name));
        let redirected = self.redirects.iter().flat_map(|redirect| [Some(&redirect.relation), redirect.to.as_ref()]);
        let redirected = redirected.flatten().chain(&self.defines).map(|relation| (&relation.schema, &relation.name));
        let qualified =
            relations.chain(functions).chain(redirected).flat_map(|(schema, name)| schema.iter().chain([name]));
        qualified.map(String::as_str).chain(self.single_names().into_iter().flatten())
    }

    fn single_names(&self) -> [Option<&str>; 4] {
        let value = match &self.parameter {
            ParameterEffect::Set { value, .. } => Some(value.as_str()),
            _ => None,
        };
        let savepoint = match &self.transaction {
            TransactionEffect::Savepoint(name)
            | TransactionEffect::Release(name)
            | TransactionEffect::RollbackTo(name) => Some(name.as_str()),
            _ => None,
        };
        let prepared = match &self.prepared {
            PreparedEffect::Prepare { name, .. }
            | PreparedEffect::Execute { name, .. }
            | PreparedEffect::Fetch { name }
            | PreparedEffect::Deallocate { name } => Some(name.as_str()),
            PreparedEffect::None | PreparedEffect::DeallocateAll => None,
        };
        [value, savepoint, prepared, self.needs_database_alone.as_ref().map(|it| it.database.as_str())]
    }
}

impl ParameterEffect {
    /// Marks the effect as uncertain.
    pub(super) fn blur(&mut self) {
        if *self != ParameterEffect::None {
            *self = ParameterEffect::Unknown;
        }
    }
}

fn keep_first<T: Clone + Eq + Hash>(items: &mut Vec<T>) {
    if items.len() > 1 {
        let mut seen = HashSet::with_capacity(items.len());
        items.retain(|item| seen.insert(item.clone()));
    }
    // It may be cached for long, and is counted by its length.
    items.shrink_to_fit();
}

impl From<&RangeVar> for RelationName {
    fn from(relation: &RangeVar) -> Self {
        let schema = Some(relation.schemaname.clone()).filter(|schema| !schema.is_empty());
        Self { schema, name: relation.relname.clone() }
    }
}

impl RelationName {
    /// Its own name, and its schema's name if stated.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.schema.iter().chain([&self.name]).map(String::as_str)
    }

    /// From a list of names, `[[database.]schema.]name`.
    pub(super) fn from_parts(parts: &[&str]) -> Option<Self> {
        let (schema, name) = last_two(parts)?;
        Some(Self { schema, name })
    }
}

impl FunctionName {
    /// From a list of names, `[[database.]schema.]name`.
    pub(super) fn from_parts(parts: &[&str]) -> Option<Self> {
        let (schema, name) = last_two(parts)?;
        Some(Self { schema, name })
    }
}

fn last_two(parts: &[&str]) -> Option<(Option<String>, String)> {
    let (name, before) = parts.split_last()?;
    Some((before.last().map(|schema| schema.to_string()), name.to_string()))
}

/// The strings in a list of names.
pub(super) fn parts(names: &[Node]) -> Vec<&str> {
    names.iter().filter_map(string).collect()
}

pub(super) fn string(node: &Node) -> Option<&str> {
    match node.node.as_ref()? {
        NodeEnum::String(string) => Some(&string.sval),
        _ => None,
    }
}
