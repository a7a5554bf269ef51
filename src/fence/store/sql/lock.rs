//! The SQL about locks: on a resource, on its relations, and their holders.
//!
//! Owns the keys of advisory locks; `guard.sql` has the same. Must never overlook a relation that no other session can see yet.

use super::prepared::{Prepared, numbers};
use super::process::{is_control_connection, may_terminate};
use super::{LIVING, THIS_DATABASE};
use crate::policy::Resource;
use crate::sql::{arrays, quote};
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

/// The number of a resource's lock, from its name `$1`; `guard.sql` has the same.
pub(super) const KEY: &str = "hashtextextended('fencegate:' || $1, 0)";

macro_rules! init_key {
    () => {
        "hashtextextended('fencegate {init}', 0)"
    };
}

/// The key of the lock that `init`, `remove` and every change of the guard hold. No resource has this name; any role can take it.
pub(super) const INIT_KEY: &str = init_key!();

/// Takes that lock until the transaction ends: one of these changes waits for another.
pub const INIT_LOCK: &str = concat!("SELECT pg_advisory_xact_lock(", init_key!(), ")");

/// Takes the resource's lock, shared.
pub(super) const SHARE: Prepared =
    Prepared::new("share_lock", "text", || format!("SELECT pg_advisory_xact_lock_shared({KEY})"));

/// Takes it alone.
pub(super) const TAKE: Prepared = Prepared::new("take_lock", "text", || format!("SELECT pg_advisory_xact_lock({KEY})"));

/// Takes those of several resources that nobody holds, and leaves their numbers to the statements of the same transaction.
pub(super) const TRY: Prepared = Prepared::new("try_locks", "text[]", || {
    format!(
        "SELECT set_config('fencegate.locked', coalesce(array_agg(k), '{{}}')::text, true) \
         FROM (SELECT {} AS k FROM unnest($1) n OFFSET 0) keys WHERE pg_try_advisory_xact_lock(k)",
        KEY.replace("$1", "n")
    )
});

/// Those of the processes that hold one of these locks on the resource's relations.
pub fn lockers(resource: &Resource, pids: &[i32]) -> String {
    let [schemas, tables] = arrays(resource.tables.iter().map(|table| &table.name));
    // The tables that a function has written are unknown: any write counts.
    let any_write = (!resource.functions.is_empty()).to_string();
    LOCKERS.execute(&[&schemas, &tables, &numbers("integer", pids), &any_write])
}

/// A transaction that has written holds the lock of its own id.
pub(super) const LOCKERS: Prepared = Prepared::new("lockers", "name[], name[], integer[], boolean", || {
    format!(
        "{} SELECT DISTINCT l.pid FROM pg_locks l WHERE l.pid = ANY ($3) AND ({} \
           OR ($4 AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted))",
        relations(),
        holds_lock_on_relations(WRITE_OR_ROW_LOCKS),
    )
});

/// The epoch in force, if the guard has let a write to the resource pass in the open transaction of this process: it holds
/// the resource's lock; or that of the process, and an admission on the strength of which it may have passed; or it has locked
/// the row of that admission: whoever else has is waited for by the first lock of the row, which that of the guard does not
/// keep off.
pub fn guarded_write(resource: &Resource, pid: i32) -> String {
    GUARDED_WRITE.execute(&[&quote(&resource.name), &pid.to_string(), &quote(resource.lock_name())])
}

pub(super) const GUARDED_WRITE: Prepared = Prepared::new("guarded_write", "text, integer, text", || {
    let admissions = format!("fencegate_state.admission a WHERE a.pid = $2 AND a.resource = $1 AND {LIVING}");
    format!(
        "WITH theirs AS MATERIALIZED (SELECT a.generation, a.token FROM {admissions} FOR NO KEY UPDATE OF a), \
           free AS MATERIALIZED (SELECT a.pid FROM {admissions} \
             AND (a.generation, a.token) IN (SELECT generation, token FROM theirs) FOR UPDATE OF a SKIP LOCKED) \
         SELECT e.generation, e.token FROM fencegate_state.epoch e WHERE e.resource = $1 AND ( \
           (SELECT count(*) FROM theirs) > (SELECT count(*) FROM free) OR EXISTS ( \
             SELECT FROM pg_locks l WHERE l.pid = $2 AND l.locktype = 'advisory' AND l.granted \
             AND l.database = {THIS_DATABASE} AND (({resource_lock}) OR (l.objsubid = 2 \
               AND l.classid::bigint = hashtext($3)::bigint & 4294967295 AND l.objid = $2 \
               AND EXISTS (SELECT FROM {admissions})))))",
        resource_lock = is_lock(KEY),
    )
});

/// The Query, which fails with 55P03 once it has waited for a lock for so long. Has one answer more, the first.
pub fn with_lock_timeout(limit: Duration, query: &str) -> String {
    format!("SET LOCAL lock_timeout = {}; {query}", limit.as_millis())
}

/// Ends the processes that block the control process: they hold the resource's lock, or wait ahead for it exclusively.
/// But no control connections, also those of other proxies with a role of their own: an Admit and a Publish hold it for a
/// moment. The worker of a subscription, and a process that acquires the lease of the resource, are spared for 10 s, as in
/// `end_holders`. The second statement's rows: prepared transactions, which only an operator can end.
///
/// `control`: the control process, with its start. Once it has ended, another may have its pid.
pub fn end_blockers(resource: &str, (control_pid, control_start): (&str, &str)) -> String {
    format!(
        "SELECT s.pid, coalesce(t.rolname, s.backend_type) AS role, \
           CASE WHEN {} AND NOT coalesce(s.xact_start > clock_timestamp() - interval '10 s' \
             AND (s.backend_type LIKE 'logical replication%' OR EXISTS (SELECT FROM pg_locks m WHERE m.pid = s.pid AND m.locktype = 'relation' AND m.mode = 'RowShareLock' AND m.database = {THIS_DATABASE} \
               AND m.relation = to_regclass('fencegate_state.leased')) \
             AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = s.pid AND l.mode = 'ExclusiveLock' AND {is_it}) \
             AND fencegate.lease_candidate(t.oid, {name})), false) THEN pg_terminate_backend(s.pid) END AS signalled, \
           coalesce(s.wait_event_type || '/' || s.wait_event, 'nothing') AS waits, left(s.query, 60) AS query \
         FROM (SELECT DISTINCT unnest(pg_blocking_pids(c.pid)) AS pid FROM pg_stat_get_activity({control_pid}) c \
           WHERE extract(epoch FROM c.backend_start) = {control_start}::numeric) b \
         JOIN pg_stat_get_activity(NULL) s ON s.pid = b.pid LEFT JOIN pg_roles t ON t.oid = s.usesysid \
         WHERE NOT {} \
         AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = s.pid AND (l.granted OR l.mode = 'ExclusiveLock') AND {is_it}); \
         SELECT DISTINCT p.gid FROM pg_locks l {PREPARED} WHERE l.pid IS NULL AND {is_it}",
        may_terminate("s", "t"),
        is_control_connection("s", "t"),
        control_start = quote(control_start),
        name = quote(resource),
        is_it = format_args!("l.locktype = 'advisory' AND l.database = {THIS_DATABASE} AND {}", is_lock_of(resource)),
    )
}

pub(super) fn advisory_key(resource: &str) -> String {
    format!("hashtextextended({}, 0)", quote(&format!("fencegate:{resource}")))
}

/// The advisory lock `l` is the resource's.
fn is_lock_of(resource: &str) -> String {
    is_lock(&advisory_key(resource))
}

pub(super) fn is_lock(key: &str) -> String {
    format!("l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = {key}")
}

/// The two keys of the lock that a process holds shared from its first write to the resource, or to another key of the same
/// keyed one, that the guard let pass to the end of its transaction: from the columns that have [`Resource::lock_name`] and
/// the pid. `guard.sql` has the same.
pub(super) fn process_lock(family: &str, pid: &str) -> String {
    format!("hashtext({family}), {pid}")
}

/// Common table expressions: the resource's relations, which are named by the first two parameters, with all that inherit from
/// them, and whether some name stands for nothing (yet). The catalog is asked, not to_regclass, which
/// fails where the control role may not use the schema.
pub(super) fn relations() -> String {
    format!(
        "WITH RECURSIVE {NAMED}, relation(oid) AS ( \
           SELECT c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name \
           UNION SELECT h.inhrelid FROM relation JOIN pg_inherits h ON h.inhparent = relation.oid \
         ), unresolved AS (SELECT FROM named WHERE NOT EXISTS (SELECT FROM pg_namespace n \
           JOIN pg_class c ON c.relnamespace = n.oid WHERE n.nspname = named.schema AND c.relname = named.name))"
    )
}

/// A common table expression of the names in the first two parameters, schemas and names.
pub(super) const NAMED: &str = "named(schema, name) AS (SELECT * FROM unnest($1, $2))";

/// Lock `l` is one of the locks on the resource's relations. A relation that was created in a
/// transaction still open has no name that others can see: it may be one that is missing.
pub(super) fn holds_lock_on_relations(locks: &str) -> String {
    format!(
        "l.locktype = 'relation' AND l.granted AND l.database = {THIS_DATABASE} AND l.mode IN ({locks}) \
         AND (l.relation IN (SELECT oid FROM relation) OR (EXISTS (SELECT FROM unresolved) \
              AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = l.relation)))"
    )
}
