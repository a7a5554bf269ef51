//! The queries to the catalog.
//!
//! Must start from the fenced tables and walk outwards, never read everything: a database may have 100,000 relations, and
//! any role may create more.

use super::calls;
use super::subject::Subject;
use fencegate_postgres::sql::{named_as, quote};

/// The kinds of relations that can be fenced, as in `pg_class.relkind`: tables, partitioned and foreign ones, and views.
pub const FENCED_KINDS: &str = "('r', 'p', 'v', 'f')";

/// More rows than this are not read: such a number of relations that reach a fenced table may be an attack.
pub(super) const MOST_ROWS: usize = 200_000;

/// Maximum number of rows for the temporary relations of one session, with everything else that reaches a fenced table.
const MOST_ROWS_OF_SESSION: usize = 20_000;

/// The limit on the wait for a view's lock: a transaction that alters the view holds it to its end.
const LOCK_TIMEOUT: &str = "50ms";

/// Time limit of a reading for one session: meanwhile the others wait for theirs.
const TIMEOUT_OF_SESSION: &str = "250ms";

/// How the views are found that nothing can be written through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Views {
    /// The server reports them. It locks the views for that, so the query fails if another process has locked one.
    Asked,
    /// None is: all count as written through.
    AllWritable,
}

/// The most rows that a reading may be answered.
pub fn most_rows(temporary: Option<&str>) -> usize {
    if temporary.is_some() { MOST_ROWS_OF_SESSION } else { MOST_ROWS }
}

/// SQL condition: the relation of `pg_class` counts. Temporary relations count only if they are in this schema.
fn counts(class: &str, temporary: Option<&str>) -> String {
    match temporary {
        Some(schema) => {
            format!("({class}.relpersistence <> 't' OR {class}.relnamespace = to_regnamespace({}))", quote(schema))
        }
        None => format!("{class}.relpersistence <> 't'"),
    }
}

/// Settings for the later statements of the same Query.
pub fn settings(temporary: Option<&str>) -> String {
    let timeout = match temporary {
        Some(_) => format!(", set_config('statement_timeout', '{TIMEOUT_OF_SESSION}', true)"),
        None => String::new(),
    };
    format!(
        "SELECT set_config('lock_timeout', '{LOCK_TIMEOUT}', true), set_config('enable_seqscan', 'off', true), \
           set_config('jit', 'off', true){timeout}"
    )
}

/// Everything through which a write may reach one of these tables or call one of these functions. Each row has a
/// `part`:
/// - `relation`: a fenced relation (`detail` is t), or the start of an edge
/// - `temporary`: the schema of a session's temporary relations. One of these depends on the relations and does not
///   count
/// - `child`: writes to `from` are writes to its parent; writes to the parent (`detail` p: partitioned) are writes to
///   `from`
/// - `reference`: a foreign key of `to` refers to `from`; `detail` has the actions on delete and on update
/// - `rule`: a rule of `from`, for the event in `detail`, names `to`
/// - `view`: `from` is a view that names `to`; `detail` is `trigger` for INSTEAD OF triggers, `stored` for a
///   materialized view, otherwise the set of events that the server permits
/// - `event trigger`: an event trigger is enabled whose function is not fencegate's own
/// - the parts of [`calls`]
///
/// An edge may begin at a relation outside this set; it then leads nowhere. Hints keep the planner, which cannot know
/// how few relations are reached, from reading whole catalogs.
///
/// `reach` follows the edges backwards. It contains a relation as a whole or by a part of its rows (`by_part`). A write
/// to a child affects only a part, so it does not reach the other children. `reach` stops at a temporary relation that
/// does not count, so each of these adds at most one step.
///
/// `temporary` is the schema of the temporary relations that count. Those of other sessions never do.
pub(super) fn ways(subject: &Subject, temporary: Option<&str>, views: Views) -> String {
    let events = match views {
        Views::Asked => "pg_relation_is_updatable(v.oid, true)",
        Views::AllWritable => "28",
    };
    let functions = subject.functions.as_ref();
    // The query of a materialized view matters only where a refresh calls a function.
    let stored = if functions.is_none() { "'m'" } else { "''" };
    format!(
        "WITH RECURSIVE {named}, {calls}, how(by_part) AS (VALUES (false), (true)), \
         fenced(oid) AS ( \
           SELECT c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name AND c.relkind IN {FENCED_KINDS}), \
         reach(oid, by_part) AS ( \
           SELECT start.oid, how.by_part FROM (SELECT oid FROM fenced UNION SELECT relation FROM calls) start, how \
           UNION SELECT next.oid, next.by_part FROM reach JOIN pg_class me ON me.oid = reach.oid AND {counts_me} \
           CROSS JOIN LATERAL ( \
             SELECT h.inhrelid, how.by_part FROM pg_inherits h, how WHERE h.inhparent = reach.oid AND reach.by_part \
             UNION ALL SELECT h.inhparent, false FROM pg_inherits h WHERE h.inhrelid = reach.oid AND NOT reach.by_part \
             UNION ALL SELECT k.confrelid, how.by_part FROM pg_constraint k, how \
               WHERE k.contype = 'f' AND k.conrelid = reach.oid AND NOT reach.by_part \
             UNION ALL SELECT r.ev_class, false FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid \
               JOIN pg_class v ON v.oid = r.ev_class AND v.relkind <> {stored} \
               WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass \
               AND d.refobjid = reach.oid AND NOT reach.by_part) next(oid, by_part)), \
         reached(oid, counts, namespace) AS ( \
           SELECT c.oid, {counts}, c.relnamespace FROM (SELECT DISTINCT oid FROM reach) r JOIN pg_class c ON c.oid = r.oid) \
         SELECT 'relation' AS part, c.oid AS \"from\", NULL::oid AS \"to\", \
           (EXISTS (SELECT FROM fenced WHERE fenced.oid = c.oid))::text AS detail, n.nspname AS schema, \
           c.relname AS name, CASE WHEN c.relkind = 'v' THEN 'view' WHEN c.relkind = 'm' THEN 'materialized view' \
             WHEN c.relispartition THEN 'partition' WHEN c.relkind = 'p' THEN 'partitioned table' \
             WHEN c.relkind = 'f' THEN 'foreign table' ELSE 'table' END AS kind, pg_get_userbyid(c.relowner) AS owner \
         FROM reached JOIN pg_class c ON c.oid = reached.oid JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE reached.counts \
         UNION ALL SELECT 'temporary', NULL, NULL, NULL, n.nspname, NULL, NULL, NULL \
         FROM (SELECT DISTINCT namespace FROM reached WHERE NOT counts) r JOIN pg_namespace n ON n.oid = r.namespace \
         UNION ALL SELECT 'child', h.inhrelid, h.inhparent, c.relkind::text, NULL, NULL, NULL, NULL \
         FROM reached JOIN pg_inherits h ON h.inhrelid = reached.oid JOIN pg_class c ON c.oid = h.inhparent \
         WHERE reached.counts \
         UNION ALL SELECT 'reference', k.confrelid, k.conrelid, k.confdeltype::text || k.confupdtype::text, NULL, k.conname, \
           NULL, NULL \
         FROM reached JOIN pg_constraint k ON k.contype = 'f' AND k.conrelid = reached.oid WHERE reached.counts \
         UNION ALL SELECT CASE WHEN r.ev_type = '1' THEN 'view' ELSE 'rule' END, r.ev_class, pair.refobjid, \
           CASE WHEN r.ev_type <> '1' THEN r.ev_type::text WHEN v.relkind = 'm' THEN 'stored' \
             WHEN EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = v.oid AND t.tgtype & 64 <> 0) THEN 'trigger' \
             ELSE ({events})::text END, NULL, r.rulename, NULL, NULL \
         FROM (SELECT DISTINCT d.objid, d.refobjid FROM reached JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass \
             AND d.refclassid = 'pg_class'::regclass AND d.refobjid = reached.oid WHERE reached.counts) pair \
           JOIN pg_rewrite r ON r.oid = pair.objid \
           JOIN pg_class v ON v.oid = r.ev_class AND v.relkind <> {stored} AND {counts_v} \
         WHERE NOT (r.ev_type = '1' AND r.ev_class = pair.refobjid) \
         UNION ALL SELECT 'event trigger', NULL, NULL, NULL, NULL, e.evtname, NULL, NULL \
         FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid \
         WHERE e.evtenabled <> 'D' AND p.pronamespace IS DISTINCT FROM to_regnamespace('fencegate')::oid \
         {called} LIMIT {limit}",
        named = named_as("named", &subject.tables),
        calls = calls::tables(functions),
        called = calls::rows(functions),
        counts = counts("c", temporary),
        counts_me = counts("me", temporary),
        counts_v = counts("v", temporary),
        limit = most_rows(temporary) + 1,
    )
}
