//! The SQL about locks: on a resource, on its relations, and their holders.
//!
//! Owns the keys of advisory locks; `guard.sql` has the same. Must never overlook a relation that no other session can see yet.

use super::process::may_terminate;
use super::{LIVING, THIS_DATABASE};
use crate::policy::Resource;
use crate::sql::{named, quote};
use std::time::Duration;

/// Locks that only a write needs.
pub const WRITE_LOCKS: &str = "'RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', \
     'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'";

/// Those, and the lock of `SELECT … FOR UPDATE`: its holder may block the next leader.
const WRITE_OR_ROW_LOCKS: &str = "'RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock', \
     'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'";

/// From lock `l`, which a prepared transaction holds, to that transaction `p`.
pub(super) const PREPARED: &str = "JOIN pg_locks x ON x.locktype = 'transactionid' AND x.pid IS NULL \
     AND x.virtualtransaction = l.virtualtransaction JOIN pg_prepared_xacts p ON p.transaction = x.transactionid";

/// Those of the processes that hold one of these locks on the resource's relations.
pub fn lockers(resource: &Resource, pids: &[i32]) -> String {
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    // What a function has written is not known: any write at all counts. A transaction that has
    // written holds the lock of its own id.
    let or_any_write = if resource.functions.is_empty() {
        ""
    } else {
        "OR (l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted)"
    };
    format!(
        "{} SELECT DISTINCT l.pid FROM pg_locks l WHERE l.pid IN ({}) AND ({} {or_any_write})",
        relations(resource),
        pids.join(", "),
        holds_lock_on_relations(WRITE_OR_ROW_LOCKS),
    )
}

/// The epoch in force, if the guard has let a write to the resource pass in the open transaction of this process: it holds
/// the resource's lock; or that of the process, and an admission on the strength of which it may have passed; or it has locked
/// the row of that admission: whoever else has is waited for by the first lock of the row, which that of the guard does not
/// keep off.
pub fn guarded_write(resource: &Resource, pid: i32) -> String {
    let name = quote(&resource.name);
    let admissions = format!("fencegate.admission a WHERE a.pid = {pid} AND a.resource = {name} AND {LIVING}");
    format!(
        "WITH theirs AS MATERIALIZED (SELECT a.generation, a.token FROM {admissions} FOR NO KEY UPDATE OF a), \
           free AS MATERIALIZED (SELECT a.pid FROM {admissions} \
             AND (a.generation, a.token) IN (SELECT generation, token FROM theirs) FOR UPDATE OF a SKIP LOCKED) \
         SELECT e.generation, e.token FROM fencegate.epoch e WHERE e.resource = {name} AND ( \
           (SELECT count(*) FROM theirs) > (SELECT count(*) FROM free) OR EXISTS ( \
             SELECT FROM pg_locks l WHERE l.pid = {pid} AND l.locktype = 'advisory' AND l.granted \
             AND l.database = {THIS_DATABASE} AND (({resource_lock}) OR (l.objsubid = 2 \
               AND l.classid::bigint = hashtext({family})::bigint & 4294967295 AND l.objid = {pid} \
               AND EXISTS (SELECT FROM {admissions})))))",
        family = quote(resource.lock_name()),
        resource_lock = is_lock_of(&resource.name),
    )
}

/// The Query, which fails with 55P03 once it has waited for a lock for so long. Has one answer more, the first.
pub fn with_lock_timeout(limit: Duration, query: &str) -> String {
    format!("SET LOCAL lock_timeout = {}; {query}", limit.as_millis())
}

/// Ends the processes that block the control process: they hold the resource's lock, or wait ahead for it exclusively.
/// But no control connections, also those of other proxies with a role of their own: an Admit and a Publish hold it for a
/// moment. The second statement's rows: prepared transactions, which only an operator can end.
///
/// `control`: the control process, with its start. Once it has ended, another may have its pid.
pub fn end_blockers(resource: &str, (control_pid, control_start): (&str, &str)) -> String {
    format!(
        "SELECT s.pid, CASE WHEN {} THEN pg_terminate_backend(s.pid) END, \
           coalesce(s.wait_event_type || '/' || s.wait_event, 'nothing') AS waits, left(s.query, 60) AS query \
         FROM (SELECT DISTINCT unnest(pg_blocking_pids(c.pid)) AS pid FROM pg_stat_get_activity({control_pid}) c \
           WHERE extract(epoch FROM c.backend_start) = {control_start}::numeric) b \
         JOIN pg_stat_get_activity(NULL) s ON s.pid = b.pid LEFT JOIN pg_roles t ON t.oid = s.usesysid \
         WHERE NOT (s.application_name = 'fencegate control' AND (t.rolname = current_user \
           OR t.oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'fencegate'))) \
         AND NOT coalesce(s.xact_start > clock_timestamp() - interval '10 s' AND EXISTS (SELECT FROM pg_locks m \
           WHERE m.pid = s.pid AND m.locktype = 'relation' AND m.mode = 'RowShareLock' AND m.database = {THIS_DATABASE} \
             AND m.relation = to_regclass('fencegate.leased')), false) \
         AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = s.pid AND (l.granted OR l.mode = 'ExclusiveLock') AND {is_it}); \
         SELECT DISTINCT p.gid FROM pg_locks l {PREPARED} WHERE l.pid IS NULL AND {is_it}",
        may_terminate("s", "t"),
        control_start = quote(control_start),
        is_it = format_args!("l.locktype = 'advisory' AND l.database = {THIS_DATABASE} AND {}", is_lock_of(resource)),
    )
}

pub(super) fn advisory_key(resource: &str) -> String {
    format!("hashtextextended({}, 0)", quote(&format!("fencegate:{resource}")))
}

/// The advisory lock `l` is the resource's.
fn is_lock_of(resource: &str) -> String {
    format!("l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = {}", advisory_key(resource))
}

/// The two keys of the lock that a process holds shared from its first write to the resource, or to another key of the same
/// keyed one, that the guard let pass to the end of its transaction: from the columns that have [`Resource::lock_name`] and
/// the pid. `guard.sql` has the same.
pub(super) fn process_lock(family: &str, pid: &str) -> String {
    format!("hashtext({family}), {pid}")
}

/// Common table expressions: the resource's relations with all that inherit from them, and
/// whether some name stands for nothing (yet). The catalogue is asked, not to_regclass, which
/// fails where the control role may not use the schema.
pub(super) fn relations(resource: &Resource) -> String {
    let named = named(resource.tables.iter().map(|table| &table.name));
    format!(
        "WITH RECURSIVE {named}, relation(oid) AS ( \
           SELECT c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name \
           UNION SELECT h.inhrelid FROM relation JOIN pg_inherits h ON h.inhparent = relation.oid \
         ), unresolved AS (SELECT FROM named WHERE NOT EXISTS (SELECT FROM pg_namespace n \
           JOIN pg_class c ON c.relnamespace = n.oid WHERE n.nspname = named.schema AND c.relname = named.name))"
    )
}

/// Lock `l` is one of the locks on the resource's relations. A relation that was created in a
/// transaction still open has no name that others can see: it may be one that is missing.
pub(super) fn holds_lock_on_relations(locks: &str) -> String {
    format!(
        "l.locktype = 'relation' AND l.granted AND l.database = {THIS_DATABASE} AND l.mode IN ({locks}) \
         AND (l.relation IN (SELECT oid FROM relation) OR (EXISTS (SELECT FROM unresolved) \
              AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = l.relation)))"
    )
}
