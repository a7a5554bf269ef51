//! SQL for locks on fencegate's own tables. PUBLIC cannot name these tables, so a holder acts for a superuser or the owner.
//!
//! Must never terminate a process that was not named before, that belongs to fencegate, or that does not block the control
//! process.

use super::THIS_DATABASE;
use super::lock::{INIT_KEY, PREPARED, is_lock};
use super::process::{is_control_connection, is_one_of, may_terminate};
use crate::store::DESCRIBED;
use fencegate_postgres::sql::quote;

/// Lock modes that conflict with those of control connections, which read, write and lock rows. Readers such as pg_dump hold
/// none of these modes.
const EXCLUSIVE: &str = "'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'";

/// The processes that hold such a lock on a table of fencegate, or wait for one. The second statement's rows are the prepared
/// transactions. At most [`DESCRIBED`] of each. Omits control connections, and autovacuum, which gives way by itself.
pub fn all() -> String {
    query("true", "true", "false")
}

/// The processes that block the control process while it waits for a table of fencegate. Terminates those that were named
/// before. Never terminates `init`, `remove` and changes of the guard: they hold their locks briefly and give up by themselves.
///
/// The control process is identified by its pid and its start, because another process may reuse the pid.
pub fn blocking((control_pid, control_start): (&str, &str), named: &[(String, String)]) -> String {
    let awaited = format!(
        "l.relation IN (SELECT w.relation FROM pg_locks w JOIN pg_stat_get_activity({control_pid}) c ON c.pid = w.pid \
           WHERE extract(epoch FROM c.backend_start) = {}::numeric AND w.locktype = 'relation' AND NOT w.granted \
             AND w.database = {THIS_DATABASE})",
        quote(control_start)
    );
    let blocks = format!("l.pid = ANY (ARRAY(SELECT unnest(pg_blocking_pids({control_pid}))))");
    query(&awaited, &blocks, &is_one_of(named))
}

/// `awaited` and `blocks` are conditions on lock `l`, `is_named` is one on process `a`. LIMIT applies before processes are
/// terminated.
fn query(awaited: &str, blocks: &str, is_named: &str) -> String {
    let is_it = format!(
        "l.locktype = 'relation' AND l.database = {THIS_DATABASE} AND l.mode IN ({EXCLUSIVE}) \
         AND l.relation IN (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('fencegate_state')) AND {awaited}"
    );
    format!(
        "SELECT f.*, CASE WHEN f.may_end AND f.is_named THEN pg_terminate_backend(f.pid) END AS signalled \
         FROM (SELECT a.pid, extract(epoch FROM a.backend_start) AS backend_start, h.mode, h.granted, c.relname AS table, \
             coalesce(t.rolname, a.backend_type) AS role, o.is_own, {is_named} AS is_named, \
             coalesce(a.wait_event_type || '/' || a.wait_event, 'nothing') AS waits, left(a.query, 60) AS query, \
             NOT o.is_own AND coalesce({may_end}, false) AS may_end, count(*) OVER () AS processes \
           FROM (SELECT DISTINCT ON (l.pid) l.pid, l.mode, l.granted, l.relation FROM pg_locks l \
             WHERE {is_it} AND {blocks} ORDER BY l.pid, l.granted DESC, l.relation, l.mode) h \
           JOIN pg_class c ON c.oid = h.relation JOIN pg_stat_get_activity(NULL) a ON a.pid = h.pid \
           LEFT JOIN pg_roles t ON t.oid = a.usesysid \
           CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory' \
             AND l.granted AND l.database = {THIS_DATABASE} AND {init}) AS is_own) o \
           WHERE NOT coalesce({control}, false) AND a.backend_type <> 'autovacuum worker' \
           ORDER BY h.granted DESC, a.pid LIMIT {DESCRIBED}) f; \
         SELECT DISTINCT p.gid FROM pg_locks l {PREPARED} WHERE l.pid IS NULL AND {is_it} LIMIT {DESCRIBED}",
        may_end = may_terminate("a", "t"),
        control = is_control_connection("a", "t"),
        init = is_lock(INIT_KEY),
    )
}
