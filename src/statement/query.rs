//! Queries: SELECT, INSERT, UPDATE, DELETE and MERGE, wherever they stand in a statement.
//!
//! Must never pass over a part of the tree: what neither this file nor `expression.rs` knows makes the statement opaque.

use super::{Operation, RelationName, Statement};
use pg_query::NodeEnum;
use pg_query::protobuf::{
    CmdType, DeleteStmt, InsertStmt, MergeStmt, Node, OnConflictAction, RangeVar, ReturningClause, SelectStmt,
    UpdateStmt, WithClause,
};
use std::collections::{HashMap, HashSet};

/// A walk over a query, which adds what the query does to a statement.
///
/// It goes as deep as the tree, and the tree is no deeper than the decoder of the parser's answer allows: 100 messages.
pub(super) struct Walk<'s, 'n> {
    pub(super) statement: &'s mut Statement,
    /// The names that stand for a WITH query here, and how many such queries there are, one within the other.
    common_tables: HashMap<&'n str, usize>,
}

impl<'s, 'n> Walk<'s, 'n> {
    pub(super) fn new(statement: &'s mut Statement) -> Self {
        Self { statement, common_tables: HashMap::new() }
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

    fn select(&mut self, select: &'n SelectStmt) {
        self.enter(&select.with_clause);
        if select.into_clause.is_some() {
            self.statement.changes_catalogue = true;
        }
        self.lock(&select.locking_clause, &select.from_clause);
        self.nodes(&select.distinct_clause);
        self.nodes(&select.target_list);
        self.nodes(&select.from_clause);
        self.maybe(&select.where_clause);
        self.nodes(&select.group_clause);
        self.maybe(&select.having_clause);
        self.nodes(&select.window_clause);
        self.nodes(&select.values_lists);
        self.nodes(&select.sort_clause);
        self.maybe(&select.limit_offset);
        self.maybe(&select.limit_count);
        for side in [&select.larg, &select.rarg].into_iter().flatten() {
            self.select(side);
        }
        self.leave(&select.with_clause);
    }

    fn insert(&mut self, insert: &'n InsertStmt) {
        self.enter(&insert.with_clause);
        self.write(&insert.relation, Operation::Insert);
        self.nodes(&insert.cols);
        self.maybe(&insert.select_stmt);
        if let Some(conflict) = &insert.on_conflict_clause {
            if !matches!(conflict.action(), OnConflictAction::OnconflictNone | OnConflictAction::OnconflictNothing) {
                self.write(&insert.relation, Operation::Update);
            }
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
        self.write(&update.relation, Operation::Update);
        self.nodes(&update.target_list);
        self.nodes(&update.from_clause);
        self.maybe(&update.where_clause);
        self.returning(&update.returning_clause);
        self.leave(&update.with_clause);
    }

    fn delete(&mut self, delete: &'n DeleteStmt) {
        self.enter(&delete.with_clause);
        self.write(&delete.relation, Operation::Delete);
        self.nodes(&delete.using_clause);
        self.maybe(&delete.where_clause);
        self.returning(&delete.returning_clause);
        self.leave(&delete.with_clause);
    }

    fn merge(&mut self, merge: &'n MergeStmt) {
        self.enter(&merge.with_clause);
        self.maybe(&merge.source_relation);
        self.maybe(&merge.join_condition);
        for clause in &merge.merge_when_clauses {
            let Some(NodeEnum::MergeWhenClause(clause)) = &clause.node else { continue };
            let operations: &[Operation] = match clause.command_type() {
                CmdType::CmdInsert => &[Operation::Insert],
                CmdType::CmdUpdate => &[Operation::Update],
                CmdType::CmdDelete => &[Operation::Delete],
                CmdType::CmdNothing => &[],
                _ => &[Operation::Insert, Operation::Update, Operation::Delete],
            };
            operations.iter().for_each(|&operation| self.write(&merge.relation, operation));
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

    /// What is written is a relation even if a WITH query has its name.
    fn write(&mut self, relation: &Option<RangeVar>, operation: Operation) {
        if let Some(relation) = relation {
            self.statement.add_write(RelationName::from(relation), operation);
        }
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
                self.maybe(&cycle.cycle_mark_value);
                self.maybe(&cycle.cycle_mark_default);
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

    /// `FOR UPDATE` locks every relation of its FROM, also those in its subqueries; `OF` leaves only what it names.
    fn lock(&mut self, clauses: &'n [Node], from: &'n [Node]) {
        if clauses.is_empty() {
            return;
        }
        let mut relations = Vec::new();
        from.iter().for_each(|item| lockable(item, None, &mut relations));
        let visible: HashSet<&str> = relations.iter().map(|(name, _)| *name).collect();
        let mut named = HashSet::new();
        let mut all = false;
        for clause in clauses {
            let Some(NodeEnum::LockingClause(clause)) = &clause.node else { continue };
            all |= clause.locked_rels.is_empty();
            named.extend(clause.locked_rels.iter().filter_map(range_var).map(|name| name.relname.as_str()));
        }
        all |= !named.is_subset(&visible);
        for (name, relation) in relations {
            let is_common_table = relation.schemaname.is_empty()
                && self.common_tables.get(relation.relname.as_str()).is_some_and(|&count| count > 0);
            if !is_common_table && (all || named.contains(name)) {
                self.statement.add_write(RelationName::from(relation), Operation::Lock);
            }
        }
    }
}

/// Collects the relations of an item in FROM, each with the name by which OF can name it.
fn lockable<'n>(item: &'n Node, within: Option<&'n str>, relations: &mut Vec<(&'n str, &'n RangeVar)>) {
    match &item.node {
        Some(NodeEnum::RangeVar(relation)) => {
            let own = relation.alias.as_ref().map_or(&relation.relname, |alias| &alias.aliasname);
            relations.push((within.unwrap_or(own), relation));
        }
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
