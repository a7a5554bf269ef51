//! The graph of the catalog: derives the paths by which writes reach fenced tables from its edges.
//!
//! Owns the meaning of an edge: which operation becomes which. Must never omit a path because it is complicated: an
//! extra operation requires an unnecessary token, but a missing one lets a write pass.

use fencegate_statement::Operation::{self, Ddl, Delete, Insert, Lock, Read, Truncate, TruncateCascade, Update};
use std::collections::{HashMap, HashSet, VecDeque};

/// `pg_class.oid`; or `pg_proc.oid`, as encoded by [`function`].
pub(super) type Oid = u64;

/// A function that a policy names, as a vertex among the relations. A call counts as a read of that vertex.
pub(super) fn function(oid: Oid) -> Oid {
    oid | 1 << 32
}

/// Operations on a relation that may change or lock a fenced table, or call a function. The edges do not include the
/// dependents that DROP … CASCADE removes.
pub(super) const OPERATIONS: [Operation; 8] = [Insert, Update, Delete, Truncate, TruncateCascade, Ddl, Lock, Read];
const ROWS: &[Operation] = &[Insert, Update, Delete];
/// Operations that a rule on some event may perform.
const ANY: &[Operation] = &[Insert, Update, Delete, Read];

/// An edge: a write to the relation `from` is a write to the relation `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: Oid,
    pub(super) to: Oid,
    pub(super) link: Link,
}

/// The reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// The rows of `from` are rows of `to`.
    Child { of_partitioned: bool },
    /// The rows of `to` are rows of `from`.
    Parent { partitioned: bool },
    /// `from` is a view of `to`.
    View(Through),
    /// A rule on `from`, for writes of this kind, names `to`.
    Rule { name: String, event: Operation },
    /// A foreign key of `to` refers to `from`.
    ForeignKey { name: String, on_delete: Action, on_update: Action },
    /// These operations on `from` call the function `to`.
    Call(Vec<Operation>),
}

/// Operations that are possible through a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Through {
    /// These writes, unchanged, and locks.
    Writes { insert: bool, update: bool, delete: bool },
    /// An INSTEAD OF trigger may do anything.
    Trigger,
    /// A materialized view: REFRESH reads its source relations.
    Refresh,
}

/// The action of a foreign key on referencing rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Refuse,
    Cascade,
    SetNull,
    SetDefault,
}

impl Link {
    /// The operations on `to` that an operation on `from` causes.
    fn becomes(&self, operation: Operation) -> &'static [Operation] {
        match (self, operation) {
            // An INSERT into a plain parent affects only the parent; an UPDATE of a partitioned table may move rows
            // between partitions.
            (Link::Parent { partitioned: false }, Insert) => &[],
            (Link::Parent { partitioned: true }, Update) => ROWS,
            // A read of a relation calls functions for the relation's own rows, not for those of its children.
            (Link::Child { .. } | Link::Parent { .. }, Read) => &[],
            (Link::Child { .. } | Link::Parent { .. }, same) => itself(same),
            (Link::View(Through::Refresh), Insert) => &[Read],
            (Link::View(Through::Refresh), _) => &[],
            // Through a view of a view, anything may be locked.
            (Link::View(_), Lock) => &[Lock],
            (Link::View(_), Read) => &[Read],
            (Link::View(Through::Trigger), Insert | Update | Delete) => ANY,
            (Link::View(Through::Writes { insert: true, .. }), Insert) => &[Insert, Read],
            (Link::View(Through::Writes { update: true, .. }), Update) => &[Update, Read],
            (Link::View(Through::Writes { delete: true, .. }), Delete) => &[Delete, Read],
            (Link::Rule { event, .. }, operation) if *event == operation => ANY,
            (Link::Call(operations), operation) if operations.contains(&operation) => &[Read],
            (Link::ForeignKey { .. }, TruncateCascade) => &[Truncate, TruncateCascade],
            (Link::ForeignKey { on_delete, .. }, Delete) => match on_delete {
                Action::Refuse => &[],
                Action::Cascade => &[Delete],
                Action::SetNull | Action::SetDefault => &[Update],
            },
            (Link::ForeignKey { on_update, .. }, Update) if *on_update != Action::Refuse => &[Update],
            (Link::View(_) | Link::Rule { .. } | Link::ForeignKey { .. } | Link::Call(_), _) => &[],
        }
    }

    /// True if the columns of `to` have the same names in `from`, and the same values in the same rows. A parent that
    /// is not partitioned may lack some of them; their names then mean columns of another relation.
    fn keeps_columns(&self) -> bool {
        matches!(self, Link::Child { .. } | Link::Parent { partitioned: true })
    }
}

fn itself(operation: Operation) -> &'static [Operation] {
    match OPERATIONS.iter().position(|it| *it == operation) {
        Some(index) => &OPERATIONS[index..=index],
        None => &[],
    }
}

/// A relation through which another is reached, and the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hop {
    pub(super) edge: usize,
    pub(super) next: Option<usize>,
}

/// Writes to `from` that are writes to the table.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) from: Oid,
    /// The first hop of the path.
    pub(super) hop: usize,
    pub(super) same_columns: bool,
    /// Each operation on `from`, with the resulting operation on the table.
    pub(super) effects: Vec<(Operation, Operation)>,
}

/// The edges, by their target.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) edges: Vec<Edge>,
    into: HashMap<Oid, Vec<usize>>,
}

/// All paths found along the edges, each hop once.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) hops: Vec<Hop>,
    known: HashMap<Hop, usize>,
}

/// The position of a walk against the edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Vertex {
    relation: Oid,
    operation: Operation,
    /// Only rows of its children are written, not the relation as a whole. Such a write reaches neither its other
    /// children nor the rewritten statements that name the relation.
    by_part: bool,
    same_columns: bool,
    /// The parent that the next step leads to. Edges that reach that parent reach this relation only in passing, and
    /// add nothing.
    toward: Option<Oid>,
}

impl Graph {
    pub(super) fn new(edges: Vec<Edge>) -> Self {
        let mut into: HashMap<Oid, Vec<usize>> = HashMap::new();
        for (index, edge) in edges.iter().enumerate() {
            into.entry(edge.to).or_default().push(index);
        }
        Graph { edges, into }
    }

    /// All paths to a table: for each operation, one of the shortest. Includes paths from the table to itself, such as
    /// a foreign key that refers to its own table.
    pub(super) fn ways_to(&self, table: Oid, paths: &mut Paths) -> Vec<Way> {
        // TRUNCATE … CASCADE counts as TRUNCATE, which is the fenced operation. Reads are never fenced.
        self.ways(table, OPERATIONS.into_iter().filter(|it| ![TruncateCascade, Read].contains(it)), paths)
    }

    /// All paths by which a function is called.
    pub(super) fn calls_of(&self, function: Oid, paths: &mut Paths) -> Vec<Way> {
        self.ways(function, [Read].into_iter(), paths)
    }

    fn ways(&self, to: Oid, effects: impl Iterator<Item = Operation>, paths: &mut Paths) -> Vec<Way> {
        let mut ways: HashMap<(Oid, usize), Way> = HashMap::new();
        for effect in effects {
            for (place, hop) in self.walk(to, effect, paths) {
                let new = || Way { from: place.relation, hop, same_columns: place.same_columns, effects: Vec::new() };
                ways.entry((place.relation, hop)).or_insert_with(new).effects.push((place.operation, effect));
            }
        }
        let mut ways: Vec<Way> = ways.into_values().collect();
        ways.sort_by_key(|way| (way.from, way.hop));
        ways
    }

    /// The whole relations through which the table is reached with this effect, with the first hop of each.
    fn walk(&self, table: Oid, effect: Operation, paths: &mut Paths) -> Vec<(Vertex, usize)> {
        let start = |by_part| Vertex { relation: table, operation: effect, by_part, same_columns: true, toward: None };
        let mut seen = HashSet::from([start(false), start(true)]);
        let mut queue = VecDeque::from([(start(false), None), (start(true), None)]);
        let mut found = Vec::new();
        while let Some((place, next)) = queue.pop_front() {
            for &index in self.into.get(&place.relation).into_iter().flatten() {
                for before in self.edges[index].before(place).filter(|before| seen.insert(*before)) {
                    let hop = paths.hop(Hop { edge: index, next });
                    if !before.by_part {
                        found.push((before, hop));
                    }
                    queue.push_back((before, Some(hop)));
                }
            }
        }
        found
    }
}

impl Paths {
    fn hop(&mut self, hop: Hop) -> usize {
        *self.known.entry(hop).or_insert_with(|| {
            self.hops.push(hop);
            self.hops.len() - 1
        })
    }
}

impl Edge {
    /// The vertices from which this edge leads to that place.
    fn before(&self, place: Vertex) -> impl Iterator<Item = Vertex> {
        let up = matches!(self.link, Link::Child { .. });
        let from_part = up || matches!(self.link, Link::ForeignKey { .. });
        let is_back = matches!(self.link, Link::Parent { .. }) && place.toward == Some(self.from);
        let parts: &[bool] = match (up == place.by_part && !is_back, from_part) {
            (false, _) => &[],
            (true, true) => &[false, true],
            (true, false) => &[false],
        };
        let operations = OPERATIONS.into_iter().filter(move |it| self.link.becomes(*it).contains(&place.operation));
        operations.flat_map(move |operation| {
            parts.iter().map(move |&by_part| Vertex {
                relation: self.from,
                operation,
                by_part,
                same_columns: place.same_columns && self.link.keeps_columns(),
                toward: up.then_some(self.to),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Effects = Vec<(Operation, Operation)>;

    const ALL: Through = Through::Writes { insert: true, update: true, delete: true };
    const NOTHING: Through = Through::Writes { insert: false, update: false, delete: false };

    /// The relations that lead to table 1, each with its effects, and whether it has the same columns.
    fn reach(edges: &[(Oid, Oid, Link)]) -> Vec<(Oid, Effects, bool)> {
        let edge = |(from, to, link): &(Oid, Oid, Link)| Edge { from: *from, to: *to, link: link.clone() };
        let graph = Graph::new(edges.iter().map(edge).collect());
        let ways = graph.ways_to(1, &mut Paths::default());
        ways.into_iter().map(|way| (way.from, way.effects, way.same_columns)).collect()
    }

    fn family(child: Oid, parent: Oid, partitioned: bool) -> [(Oid, Oid, Link); 2] {
        [(child, parent, Link::Child { of_partitioned: partitioned }), (parent, child, Link::Parent { partitioned })]
    }

    fn foreign_key(from: Oid, to: Oid, on_delete: Action, on_update: Action) -> (Oid, Oid, Link) {
        (from, to, Link::ForeignKey { name: "k".into(), on_delete, on_update })
    }

    fn same(operations: &[Operation]) -> Effects {
        operations.iter().map(|it| (*it, *it)).collect()
    }

    #[test]
    fn descendants_and_ancestors_reach_a_table_and_its_siblings_do_not() {
        // 3 and 4 are children of 2. 1 and 5 are children of 3.
        let edges =
            [family(3, 2, false), family(4, 2, false), family(1, 3, false), family(5, 3, false), family(6, 1, false)];
        let found = reach(&edges.concat());
        let below = same(&[Insert, Update, Delete, Truncate, Ddl, Lock]);
        let above = same(&[Update, Delete, Truncate, Ddl, Lock]);
        assert_eq!(found, [(2, above.clone(), false), (3, above, false), (6, below, true)]);
    }

    #[test]
    fn an_update_of_a_partition_inserts_no_row_into_its_parent() {
        let found = reach(&[family(2, 1, true), family(3, 2, true)].concat());
        let effects = same(&[Insert, Update, Delete, Truncate, Ddl, Lock]);
        assert_eq!(found, [(2, effects.clone(), true), (3, effects, true)]);
    }

    #[test]
    fn parents_of_a_common_child_reach_each_other() {
        let found = reach(&[family(3, 1, false), family(3, 2, false)].concat());
        assert_eq!(found.iter().map(|way| way.0).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn an_update_of_a_partitioned_parent_moves_rows() {
        let found = reach(&family(1, 2, true));
        let moves = [(Insert, Insert), (Update, Insert), (Update, Update), (Update, Delete), (Delete, Delete)];
        let rest = same(&[Truncate, Ddl, Lock]);
        assert_eq!(found, [(2, [moves.as_slice(), &rest].concat(), true)]);
    }

    #[test]
    fn writes_through_a_view_use_its_own_rules() {
        let view = |through| reach(&[(2, 1, Link::View(through))])[0].1.clone();
        assert_eq!(view(NOTHING), [(Lock, Lock)]);
        assert_eq!(view(ALL), same(&[Insert, Update, Delete, Lock]));
        assert_eq!(view(Through::Trigger).len(), 10);
        let nested = reach(&[(2, 1, Link::View(ALL)), (3, 2, Link::View(ALL))]);
        assert_eq!(nested[1], (3, same(&[Insert, Update, Delete, Lock]), false));
    }

    #[test]
    fn a_rule_may_do_anything_on_its_event() {
        let found = reach(&[(2, 1, Link::Rule { name: "r".into(), event: Insert })]);
        assert_eq!(found, [(2, vec![(Insert, Insert), (Insert, Update), (Insert, Delete)], false)]);
    }

    #[test]
    fn a_function_is_called_by_reads_and_writes_of_its_callers() {
        let called = function(9);
        let edges = [
            (1, called, Link::Call(vec![Insert, Update, Ddl])),
            (2, called, Link::Call(vec![Read, Insert, Update, Delete])),
            (3, 1, Link::View(ALL)),
            (4, 2, Link::View(NOTHING)),
            (5, 4, Link::View(Through::Refresh)),
            (6, 2, Link::Rule { name: "r".into(), event: Delete }),
        ];
        let edges = edges.map(|(from, to, link)| Edge { from, to, link });
        let graph = Graph::new(edges.into());
        let found = graph.calls_of(called, &mut Paths::default());
        let found: Vec<(Oid, Vec<Operation>)> = found
            .into_iter()
            .map(|way| (way.from, way.effects.into_iter().map(|(operation, _)| operation).collect()))
            .collect();
        let expected = [
            (1, vec![Insert, Update, Ddl]),
            (2, vec![Insert, Update, Delete, Read]),
            (3, vec![Insert, Update]),
            (4, vec![Read]),
            (5, vec![Insert]),
            (6, vec![Delete]),
        ];
        assert_eq!(found, expected);
        assert!(graph.ways_to(2, &mut Paths::default()).iter().all(|way| way.from != 5));
    }

    #[test]
    fn foreign_keys_change_referencing_rows() {
        let nothing = reach(&[foreign_key(2, 1, Action::Refuse, Action::Refuse)]);
        assert_eq!(nothing, [(2, vec![(TruncateCascade, Truncate)], false)]);
        let found = reach(&[
            foreign_key(2, 1, Action::SetNull, Action::Cascade),
            foreign_key(3, 2, Action::Cascade, Action::Refuse),
        ]);
        assert_eq!(found[0], (2, vec![(Update, Update), (Delete, Update), (TruncateCascade, Truncate)], false));
        assert_eq!(found[1], (3, vec![(Delete, Update), (TruncateCascade, Truncate)], false));
    }

    #[test]
    fn a_table_reaches_itself_by_a_foreign_key_to_itself() {
        let found = reach(&[foreign_key(1, 1, Action::Cascade, Action::Refuse)]);
        assert_eq!(found, [(1, vec![(Delete, Delete), (TruncateCascade, Truncate)], false)]);
    }

    #[test]
    fn cycles_terminate() {
        let found = reach(&[(2, 1, Link::View(ALL)), (1, 2, Link::View(ALL))]);
        assert_eq!(found.len(), 2);
    }
}
