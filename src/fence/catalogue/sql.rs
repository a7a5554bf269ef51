//! The question to the catalogue, as text.
//!
//! Owns it alone. Must start from the fenced tables, never read everything: a database may have 100,000 relations.

use crate::fence::sql::named;
use crate::policy::{PolicySet, QualifiedName};

/// More rows than this are not taken. Whatever makes so many relations reach a fenced table may be an attack.
pub(super) const MOST_ROWS: usize = 200_000;

/// What waiting for the lock of a view may take. Whoever alters one holds it to the end of the transaction.
const LOCK_TIMEOUT: &str = "50ms";

/// How the views are found that nothing can be written through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Views {
    /// The server says which; it locks them for that, and the question fails where one is locked by somebody else.
    Asked,
    /// None is: all count as written through.
    AllWritable,
}

/// Everything by which a write may reach one of these tables, as rows of a `part` each:
/// - `relation`: one that is fenced (`detail` is t) or that an edge begins at
/// - `child`: writes to `from` are writes to its parent, and those to the parent (`detail` p: partitioned) to it
/// - `reference`: a foreign key of `to` refers to `from`; `detail` is what happens on delete and on update
/// - `rule`: a rule of `from`, on the event that `detail` is, names `to`
/// - `view`: `from` is a view that names `to`; `detail` is `trigger` where it has one in place of writes, else the set of
///   events that the server lets through
/// - `dependency`: something of the fenced table `by_schema.by_name` depends on the relation: along `pg_depend`, from the
///   table's parts (constraints, defaults, policies, partitions)
/// - `event trigger`: one is enabled whose function is not fencegate's own
///
/// An edge may begin at a relation that is not among these: it leads nowhere then. The planner, which cannot know how few
/// relations are reached, is kept from reading catalogues whole.
///
/// `reach` follows the edges backwards. A relation is in it as a whole, or by a part of its rows (`by_part`), which
/// is all that a write to one of its children can do: that does not reach the other children.
pub(super) fn question<'a>(tables: impl IntoIterator<Item = &'a QualifiedName>, views: Views) -> String {
    let events = match views {
        Views::Asked => "pg_relation_is_updatable(v.oid, true)",
        Views::AllWritable => "28",
    };
    format!(
        "SELECT set_config('lock_timeout', '{LOCK_TIMEOUT}', true), set_config('enable_seqscan', 'off', true), \
           set_config('jit', 'off', true); \
         WITH RECURSIVE {named}, how(by_part) AS (VALUES (false), (true)), \
         fenced(oid) AS ( \
           SELECT c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name AND c.relkind IN ('r', 'p', 'v', 'f')), \
         reach(oid, by_part) AS ( \
           SELECT fenced.oid, how.by_part FROM fenced, how \
           UNION SELECT next.oid, next.by_part FROM reach CROSS JOIN LATERAL ( \
             SELECT h.inhrelid, how.by_part FROM pg_inherits h, how WHERE h.inhparent = reach.oid AND reach.by_part \
             UNION ALL SELECT h.inhparent, false FROM pg_inherits h WHERE h.inhrelid = reach.oid AND NOT reach.by_part \
             UNION ALL SELECT k.confrelid, how.by_part FROM pg_constraint k, how \
               WHERE k.contype = 'f' AND k.conrelid = reach.oid AND NOT reach.by_part \
             UNION ALL SELECT r.ev_class, false FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid \
               JOIN pg_class v ON v.oid = r.ev_class AND v.relkind <> 'm' \
               WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass \
               AND d.refobjid = reach.oid AND NOT reach.by_part) next(oid, by_part)), \
         reached(oid) AS (SELECT DISTINCT oid FROM reach), \
         part(by_schema, by_name, classid, objid) AS ( \
           SELECT named.schema, named.name, 'pg_class'::regclass::oid, c.oid FROM named \
             JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name \
           UNION SELECT part.by_schema, part.by_name, d.classid, d.objid FROM part JOIN pg_depend d \
             ON d.refclassid = part.classid AND d.refobjid = part.objid AND d.deptype IN ('a', 'i', 'P', 'S')), \
         needed AS ( \
           SELECT * FROM part \
           UNION SELECT needed.by_schema, needed.by_name, d.refclassid, d.refobjid FROM needed JOIN pg_depend d \
             ON d.classid = needed.classid AND d.objid = needed.objid) \
         SELECT 'relation' AS part, c.oid AS \"from\", NULL::oid AS \"to\", \
           ((n.nspname, c.relname) IN (SELECT schema, name FROM named))::text AS detail, n.nspname AS schema, \
           c.relname AS name, CASE WHEN c.relkind = 'v' THEN 'view' WHEN c.relispartition THEN 'partition' \
             WHEN c.relkind = 'p' THEN 'partitioned table' WHEN c.relkind = 'f' THEN 'foreign table' \
             ELSE 'table' END AS kind, NULL::name AS by_schema, NULL::name AS by_name \
         FROM reached JOIN pg_class c ON c.oid = reached.oid JOIN pg_namespace n ON n.oid = c.relnamespace \
         UNION ALL SELECT 'child', h.inhrelid, h.inhparent, c.relkind::text, NULL, NULL, NULL, NULL, NULL \
         FROM reached JOIN pg_inherits h ON h.inhrelid = reached.oid JOIN pg_class c ON c.oid = h.inhparent \
         UNION ALL SELECT 'reference', k.confrelid, k.conrelid, k.confdeltype::text || k.confupdtype::text, NULL, k.conname, \
           NULL, NULL, NULL \
         FROM reached JOIN pg_constraint k ON k.contype = 'f' AND k.conrelid = reached.oid \
         UNION ALL SELECT DISTINCT CASE WHEN r.ev_type = '1' THEN 'view' ELSE 'rule' END, r.ev_class, d.refobjid, \
           CASE WHEN r.ev_type <> '1' THEN r.ev_type::text WHEN EXISTS (SELECT FROM pg_trigger t \
             WHERE t.tgrelid = v.oid AND t.tgtype & 64 <> 0) THEN 'trigger' ELSE ({events})::text END, NULL, r.rulename, NULL, NULL::name, NULL::name \
         FROM reached JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass \
           AND d.refobjid = reached.oid JOIN pg_rewrite r ON r.oid = d.objid \
           JOIN pg_class v ON v.oid = r.ev_class AND v.relkind <> 'm' \
         WHERE NOT (r.ev_type = '1' AND r.ev_class = d.refobjid) \
         UNION ALL SELECT 'dependency', NULL, NULL, NULL, n.nspname, c.relname, NULL, needed.by_schema, needed.by_name \
         FROM needed JOIN pg_class c ON c.oid = needed.objid AND needed.classid = 'pg_class'::regclass \
           JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p', 'f') AND (n.nspname, c.relname) <> (needed.by_schema, needed.by_name) \
         UNION ALL SELECT 'event trigger', NULL, NULL, NULL, NULL, e.evtname, NULL, NULL, NULL \
         FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid \
         WHERE e.evtenabled <> 'D' AND p.pronamespace IS DISTINCT FROM to_regnamespace('fencegate')::oid \
         LIMIT {limit}",
        named = named(tables),
        limit = MOST_ROWS + 1,
    )
}

/// The database's name, then the functions of the policies that exist.
pub(super) fn database_and_functions(policies: &PolicySet) -> String {
    let functions = policies.resources.iter().flat_map(|resource| &resource.functions);
    format!(
        "SELECT current_database() AS database; \
         WITH {} SELECT DISTINCT named.schema, named.name FROM named JOIN pg_namespace n ON n.nspname = named.schema \
         JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = named.name",
        named(functions)
    )
}
