//! SQL for locks on resources and on their relations, and for the holders of these locks.
//!
//! Owns the keys of advisory locks; `guard.sql` uses the same keys. Must never overlook a relation that other sessions cannot
//! see yet.

use super::prepared::{Prepared, numbers};
use super::process::{is_control_connection, may_terminate};
use super::{LIVING, THIS_DATABASE};
use fencegate_policy::Resource;
use fencegate_postgres::sql::{arrays, quote};
use std::time::Duration;

/// Lock modes that only writes need.
pub const WRITE_LOCKS: &str = "'RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', \
     'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'";

/// [`WRITE_LOCKS`] and the mode of `SELECT … FOR UPDATE`, whose holder may block the next leader.
const WRITE_OR_ROW_LOCKS: &str = "'RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock', \
     'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'";

/// Joins lock `l` of a prepared transaction with that transaction, `p`.
pub(super) const PREPARED: &str = "JOIN pg_locks x ON x.locktype = 'transactionid' AND x.pid IS NULL \
     AND x.virtualtransaction = l.virtualtransaction JOIN pg_prepared_xacts p ON p.transaction = x.transactionid";

/// The key of the advisory lock of the resource named `$1`. `guard.sql` uses the same key.
pub(super) const KEY: &str = "hashtextextended('fencegate:' || $1, 0)";

macro_rules! init_key {
    () => {
        "hashtextextended('fencegate {init}', 0)"
    };
}

/// The key of the lock that `init`, `remove` and every change of the guard hold. No resource has this name. Any role can take
/// the lock.
pub(super) const INIT_KEY: &str = init_key!();

/// Takes that lock until the transaction ends, so that these changes wait for one another.
pub const INIT_LOCK: &str = concat!("SELECT pg_advisory_xact_lock(", init_key!(), ")");

/// Takes the resource's lock, shared.
pub(super) const SHARE: Prepared =
    Prepared::new("share_lock", "text", || format!("SELECT pg_advisory_xact_lock_shared({KEY})"));

/// Takes the resource's lock exclusively.
pub(super) const TAKE: Prepared = Prepared::new("take_lock", "text", || format!("SELECT pg_advisory_xact_lock({KEY})"));

/// Takes those of several resources' locks that are free. Passes their keys to later statements of the same transaction.
pub(super) const TRY: Prepared = Prepared::new("try_locks", "text[]", || {
    format!(
        "SELECT set_config('fencegate.locked', coalesce(array_agg(k), '{{}}')::text, true) \
         FROM (SELECT {} AS k FROM unnest($1) n OFFSET 0) keys WHERE pg_try_advisory_xact_lock(k)",
        KEY.replace("$1", "n")
    )
});

/// The subset of the processes that hold one of these locks on the resource's relations.
pub fn lockers(resource: &Resource, pids: &[i32]) -> String {
    let [schemas, tables] = arrays(resource.tables.iter().map(|table| &table.name));
    // The tables that a function has written are unknown: any write counts.
    let any_write = (!resource.functions.is_empty()).to_string();
    LOCKERS.execute(&[&schemas, &tables, &numbers("integer", pids), &any_write])
}

/// A transaction that has written holds the lock on its own transaction id.
pub(super) const LOCKERS: Prepared = Prepared::new("lockers", "name[], name[], integer[], boolean", || {
    format!(
        "{} SELECT DISTINCT l.pid FROM pg_locks l WHERE l.pid = ANY ($3) AND ({} \
           OR ($4 AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted))",
        relations(),
        holds_lock_on_relations(WRITE_OR_ROW_LOCKS),
    )
});

/// The current epoch, if the guard has permitted a write to the resource in the open transaction of this process.
///
/// In that case the process holds one of these: the resource's lock; its process lock, with an admission on which the guard
/// may have relied; or a lock on the row of that admission. The first row lock here waits for every other holder of the row,
/// because only the guard's lock does not conflict with it.
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

/// Makes the Query fail with 55P03 once it has waited for a lock for `limit`. Adds one result, before the others.
pub fn with_lock_timeout(limit: Duration, query: &str) -> String {
    format!("SET LOCAL lock_timeout = {}; {query}", limit.as_millis())
}

/// Terminates the processes that block the control process: holders of the resource's lock, and processes ahead of it that
/// wait for the exclusive lock.
///
/// Spares control connections, including those of other proxies with different roles, because an Admit or a Publish holds the
/// lock only briefly. Spares the worker of a subscription, and a process that acquires the lease of the resource, for 10 s, as
/// `end_holders` does. The second statement's rows are prepared transactions, which only an operator can end.
///
/// The control process is identified by its pid and its start, because another process may reuse the pid.
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

/// True if the advisory lock `l` is the resource's.
fn is_lock_of(resource: &str) -> String {
    is_lock(&advisory_key(resource))
}

pub(super) fn is_lock(key: &str) -> String {
    format!("l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = {key}")
}

/// The two keys of the process lock, from the columns with [`Resource::lock_name`] and the pid. `guard.sql` uses the same keys.
///
/// A process holds this lock shared, until its transaction ends, after the guard has permitted its first write to the resource
/// or to another key of the same keyed resource.
pub(super) fn process_lock(family: &str, pid: &str) -> String {
    format!("hashtext({family}), {pid}")
}

/// Common table expressions: the relations named by the first two parameters, with all relations that inherit from them, and
/// whether a name does not exist (yet). Reads the catalog, because to_regclass fails if the control role has no USAGE on the
/// schema.
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

/// True if lock `l` is one of these locks on the resource's relations. The name of a relation that an open transaction has
/// created is invisible to other sessions: the relation may be a missing one.
pub(super) fn holds_lock_on_relations(locks: &str) -> String {
    format!(
        "l.locktype = 'relation' AND l.granted AND l.database = {THIS_DATABASE} AND l.mode IN ({locks}) \
         AND (l.relation IN (SELECT oid FROM relation) OR (EXISTS (SELECT FROM unresolved) \
              AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = l.relation)))"
    )
}
