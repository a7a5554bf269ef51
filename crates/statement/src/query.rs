//! Queries: SELECT, INSERT, UPDATE, DELETE and MERGE, anywhere in a statement.
//!
//! Must never skip a part of the tree: a node that neither this file nor `expression.rs` knows makes the statement
//! opaque.

use super::conditions::{RowReader, Target};
use super::rows::Rows;
use super::{Operation, RelationName, Statement, Write};
use pg_query::NodeEnum;
use pg_query::protobuf::{
    CmdType, DeleteStmt, InsertStmt, MergeStmt, MergeWhenClause, Node, OnConflictAction, OnConflictClause,
    OverridingKind, RangeVar, ReturningClause, SelectStmt, UpdateStmt, WithClause,
};
use std::collections::{HashMap, HashSet};

/// Walks over a query and adds its effects to a statement.
///
/// Recurses to the depth of the tree; [`super::cost`] provides the stack.
pub(super) struct Walk<'s, 'n> {
    pub(super) statement: &'s mut Statement,
    /// Names of WITH queries in scope, and the number of nested ones.
    common_tables: HashMap<&'n str, usize>,
    /// Finds the rows that are written.
    pub(super) reader: RowReader<'n>,
    /// All relations that it names, including WITH queries that look like a relation.
    pub(super) relations: Vec<&'n RangeVar>,
}

impl<'s, 'n> Walk<'s, 'n> {
    pub(super) fn new(statement: &'s mut Statement) -> Self {
        Self { statement, common_tables: HashMap::new(), reader: RowReader::default(), relations: Vec::new() }
    }

    /// Walks over a whole query.
    pub(super) fn query(mut self, node: &'n NodeEnum) {
        self.visit(node);
        self.reader.settle(self.statement.writes.iter_mut().map(|write| &mut write.rows));
    }

    pub(super) fn visit(&mut self, node: &'n NodeEnum) {
        match node {
            NodeEnum::SelectStmt(select) => self.select(select),
            NodeEnum::InsertStmt(insert) => self.insert(insert),
            NodeEnum::UpdateStmt(update) => self.update(update),
            NodeEnum::DeleteStmt(delete) => self.delete(delete),
            NodeEnum::MergeStmt(merge) => self.merge(merge),
            _ => self.expression(node),
        }
    }

    pub(super) fn node(&mut self, node: &'n Node) {
        if let Some(node) = &node.node {
            self.visit(node);
        }
    }

    pub(super) fn nodes(&mut self, nodes: &'n [Node]) {
        nodes.iter().for_each(|node| self.node(node));
    }

    pub(super) fn maybe(&mut self, node: &'n Option<Box<Node>>) {
        if let Some(node) = node {
            self.node(node);
        }
    }

    pub(super) fn each<const N: usize>(&mut self, nodes: [&'n Option<Box<Node>>; N]) {
        nodes.into_iter().for_each(|node| self.maybe(node));
    }

    fn select(&mut self, select: &'n SelectStmt) {
        self.enter(&select.with_clause);
        if let Some(into) = &select.into_clause {
            self.statement.changes_catalog = true;
            self.statement.defines.extend(into.rel.as_ref().map(RelationName::from));
        }
        self.lock(select);
        self.nodes(&select.distinct_clause);
        self.nodes(&select.target_list);
        self.nodes(&select.from_clause);
        self.maybe(&select.where_clause);
        self.nodes(&select.group_clause);
        self.maybe(&select.having_clause);
        self.nodes(&select.window_clause);
        self.nodes(&select.values_lists);
        self.nodes(&select.sort_clause);
        self.each([&select.limit_offset, &select.limit_count]);
        for side in [&select.larg, &select.rarg].into_iter().flatten() {
            self.select(side);
        }
        self.leave(&select.with_clause);
    }

    fn insert(&mut self, insert: &'n InsertStmt) {
        self.enter(&insert.with_clause);
        self.relations.extend(&insert.relation);
        let lists = values_lists(insert);
        let conflict = insert.on_conflict_clause.as_deref();
        let source = match queried(insert) {
            Some(select) => InsertedRows::Query(select),
            None => InsertedRows::Lists(&lists),
        };
        self.insert_rows(&insert.relation, &insert.cols, source, conflict);
        self.nodes(&insert.cols);
        self.maybe(&insert.select_stmt);
        if let Some(conflict) = conflict {
            if let Some(infer) = &conflict.infer {
                self.nodes(&infer.index_elems);
                self.maybe(&infer.where_clause);
            }
            self.nodes(&conflict.target_list);
            self.maybe(&conflict.where_clause);
        }
        self.returning(&insert.returning_clause);
        self.leave(&insert.with_clause);
    }

    fn update(&mut self, update: &'n UpdateStmt) {
        self.enter(&update.with_clause);
        self.relations.extend(&update.relation);
        if let Some(relation) = &update.relation {
            let target = Target::new(relation, true);
            let rows = self.reader.updated(&update.where_clause, &update.target_list, &target);
            self.write(relation, Operation::Update, rows);
        }
        self.nodes(&update.target_list);
        self.nodes(&update.from_clause);
        self.maybe(&update.where_clause);
        self.returning(&update.returning_clause);
        self.leave(&update.with_clause);
    }

    fn delete(&mut self, delete: &'n DeleteStmt) {
        self.enter(&delete.with_clause);
        self.relations.extend(&delete.relation);
        if let Some(relation) = &delete.relation {
            let rows = self.reader.rows_where(&delete.where_clause, &Target::new(relation, true));
            self.write(relation, Operation::Delete, rows);
        }
        self.nodes(&delete.using_clause);
        self.maybe(&delete.where_clause);
        self.returning(&delete.returning_clause);
        self.leave(&delete.with_clause);
    }

    fn merge(&mut self, merge: &'n MergeStmt) {
        self.enter(&merge.with_clause);
        self.relations.extend(&merge.relation);
        self.each([&merge.source_relation, &merge.join_condition]);
        for clause in &merge.merge_when_clauses {
            let Some(NodeEnum::MergeWhenClause(clause)) = &clause.node else { continue };
            self.merge_rows(merge, clause);
            self.maybe(&clause.condition);
            self.nodes(&clause.target_list);
            self.nodes(&clause.values);
        }
        self.returning(&merge.returning_clause);
        self.leave(&merge.with_clause);
    }

    fn returning(&mut self, returning: &'n Option<ReturningClause>) {
        if let Some(returning) = returning {
            self.nodes(&returning.exprs);
        }
    }

    fn insert_rows(
        &mut self,
        relation: &'n Option<RangeVar>,
        columns: &'n [Node],
        source: InsertedRows<'_, 'n>,
        conflict: Option<&'n OnConflictClause>,
    ) {
        let Some(relation) = relation else { return };
        let inserted = match source {
            InsertedRows::Lists(lists) => self.reader.inserted(relation, columns, lists),
            InsertedRows::Query(select) => self.reader.inserted_from(columns, select),
        };
        let updates = |conflict: &&OnConflictClause| {
            !matches!(conflict.action(), OnConflictAction::OnconflictNone | OnConflictAction::OnconflictNothing)
        };
        let updated = conflict.filter(updates).map(|conflict| self.reader.in_conflict(conflict, relation, &inserted));
        self.write(relation, Operation::Insert, Rows::new(inserted));
        if let Some(rows) = updated {
            self.write(relation, Operation::Update, rows);
        }
    }

    fn merge_rows(&mut self, merge: &'n MergeStmt, clause: &'n MergeWhenClause) {
        let Some(relation) = &merge.relation else { return };
        let target = Target::new(relation, true);
        match clause.command_type() {
            CmdType::CmdInsert if keeps_values(clause.r#override()) => {
                let lists = [clause.values.as_slice()];
                self.insert_rows(&merge.relation, &clause.target_list, InsertedRows::Lists(&lists), None);
            }
            CmdType::CmdInsert => self.write(relation, Operation::Insert, Rows::default()),
            command @ (CmdType::CmdUpdate | CmdType::CmdDelete) => {
                let rows = self.reader.merged(clause, &merge.join_condition, &target);
                let is_update = command == CmdType::CmdUpdate;
                self.write(relation, if is_update { Operation::Update } else { Operation::Delete }, rows);
            }
            CmdType::CmdNothing => {}
            _ => [Operation::Insert, Operation::Update, Operation::Delete]
                .into_iter()
                .for_each(|operation| self.write(relation, operation, Rows::default())),
        }
    }

    pub(super) fn read(&mut self, relation: &'n RangeVar) {
        self.relations.push(relation);
        if !self.is_common_table(relation) {
            self.statement.reads.push(relation.into());
        }
    }

    /// True if the name refers to a WITH query.
    fn is_common_table(&self, relation: &RangeVar) -> bool {
        relation.schemaname.is_empty()
            && self.common_tables.get(relation.relname.as_str()).is_some_and(|&count| count > 0)
    }

    /// The target of a write is a relation even if a WITH query has its name.
    fn write(&mut self, relation: &RangeVar, operation: Operation, rows: Rows) {
        self.statement.writes.push(Write { relation: RelationName::from(relation), operation, rows });
    }

    /// Walks the queries of a WITH clause. Without RECURSIVE each sees those before it, with RECURSIVE each sees all.
    fn enter(&mut self, with: &'n Option<WithClause>) {
        let Some(with) = with else { return };
        let tables = || with.ctes.iter().filter_map(common_table);
        if with.recursive {
            tables().for_each(|table| self.name(&table.ctename));
        }
        for table in tables() {
            self.maybe(&table.ctequery);
            if let Some(cycle) = &table.cycle_clause {
                self.each([&cycle.cycle_mark_value, &cycle.cycle_mark_default]);
            }
            if !with.recursive {
                self.name(&table.ctename);
            }
        }
    }

    fn name(&mut self, common_table: &'n str) {
        *self.common_tables.entry(common_table).or_default() += 1;
    }

    fn leave(&mut self, with: &'n Option<WithClause>) {
        for table in with.iter().flat_map(|with| &with.ctes).filter_map(common_table) {
            if let Some(count) = self.common_tables.get_mut(table.ctename.as_str()) {
                *count = count.saturating_sub(1);
            }
        }
    }

    /// `FOR UPDATE` locks every relation of its FROM, including those in subqueries; `OF` restricts it to the named
    /// ones.
    fn lock(&mut self, select: &'n SelectStmt) {
        if select.locking_clause.is_empty() {
            return;
        }
        let mut relations = Vec::new();
        select.from_clause.iter().for_each(|item| lockable(item, None, &mut relations));
        let is_only = matches!(select.from_clause.as_slice(), [item] if range_var(item).is_some());
        let visible: HashSet<&str> =
            relations.iter().map(|(within, relation)| name_in_from(*within, relation)).collect();
        let mut named = HashSet::new();
        let mut all = false;
        for clause in &select.locking_clause {
            let Some(NodeEnum::LockingClause(clause)) = &clause.node else { continue };
            all |= clause.locked_rels.is_empty();
            named.extend(clause.locked_rels.iter().filter_map(range_var).map(|name| name.relname.as_str()));
        }
        all |= !named.is_subset(&visible);
        for (within, relation) in relations {
            if !self.is_common_table(relation) && (all || named.contains(name_in_from(within, relation))) {
                // This WHERE does not apply to a subquery's relations, nor where columns have other names.
                let is_renamed = relation.alias.as_ref().is_some_and(|alias| !alias.colnames.is_empty());
                let rows = match within.is_none() && !is_renamed {
                    true => self.reader.rows_where(&select.where_clause, &Target::new(relation, is_only)),
                    false => Rows::default(),
                };
                self.write(relation, Operation::Lock, rows);
            }
        }
    }
}

/// The name by which OF refers to a relation of FROM, or to the subquery that contains it.
fn name_in_from<'n>(within: Option<&'n str>, relation: &'n RangeVar) -> &'n str {
    within.unwrap_or(relation.alias.as_ref().map_or(&relation.relname, |alias| &alias.aliasname))
}

/// Collects the relations of an item in FROM, each with the name of the outermost subquery that it is in.
fn lockable<'n>(item: &'n Node, within: Option<&'n str>, relations: &mut Vec<(Option<&'n str>, &'n RangeVar)>) {
    match &item.node {
        Some(NodeEnum::RangeVar(relation)) => relations.push((within, relation)),
        Some(NodeEnum::JoinExpr(join)) => {
            [&join.larg, &join.rarg].into_iter().flatten().for_each(|side| lockable(side, within, relations));
        }
        Some(NodeEnum::RangeTableSample(sample)) => {
            sample.relation.iter().for_each(|relation| lockable(relation, within, relations));
        }
        Some(NodeEnum::RangeSubselect(subquery)) => {
            let own = subquery.alias.as_ref().map(|alias| alias.aliasname.as_str());
            if let Some(NodeEnum::SelectStmt(select)) = subquery.subquery.as_ref().and_then(|node| node.node.as_ref()) {
                select.from_clause.iter().for_each(|item| lockable(item, within.or(own), relations));
            }
        }
        _ => {}
    }
}

pub(super) fn range_var(node: &Node) -> Option<&RangeVar> {
    match node.node.as_ref()? {
        NodeEnum::RangeVar(relation) => Some(relation),
        _ => None,
    }
}

fn common_table(node: &Node) -> Option<&pg_query::protobuf::CommonTableExpr> {
    match node.node.as_ref()? {
        NodeEnum::CommonTableExpr(table) => Some(table),
        _ => None,
    }
}

/// The source of the rows of an INSERT.
enum InsertedRows<'l, 'n> {
    Lists(&'l [&'n [Node]]),
    Query(&'n SelectStmt),
}

/// The query of an INSERT, unless it is VALUES or replaced by defaults.
fn queried(insert: &InsertStmt) -> Option<&SelectStmt> {
    match insert.select_stmt.as_ref()?.node.as_ref()? {
        NodeEnum::SelectStmt(select) if select.values_lists.is_empty() && keeps_values(insert.r#override()) => {
            Some(select)
        }
        _ => None,
    }
}

/// The rows that are listed in an INSERT itself.
fn values_lists(insert: &InsertStmt) -> Vec<&[Node]> {
    let Some(NodeEnum::SelectStmt(values)) = insert.select_stmt.as_ref().and_then(|node| node.node.as_ref()) else {
        return Vec::new();
    };
    // With any of these it is a query, whose columns get their types independently of the table's.
    let is_query = values.with_clause.is_some()
        || !values.sort_clause.is_empty()
        || values.limit_count.is_some()
        || values.limit_offset.is_some()
        || !values.locking_clause.is_empty();
    if is_query || !keeps_values(insert.r#override()) {
        return Vec::new();
    }
    values.values_lists.iter().map(items).collect()
}

/// `OVERRIDING USER VALUE` replaces the value of an identity column by its default.
fn keeps_values(overriding: OverridingKind) -> bool {
    overriding != OverridingKind::OverridingUserValue
}

fn items(list: &Node) -> &[Node] {
    match &list.node {
        Some(NodeEnum::List(list)) => &list.items,
        _ => &[],
    }
}
