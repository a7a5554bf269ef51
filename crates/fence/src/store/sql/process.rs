//! SQL for server processes: the control connection's own, and processes to terminate.
//!
//! Must never terminate a process that reuses the pid of another, or a process of another database.

use super::prepared::{Prepared, numbers, texts};
use super::{IS_OF_THIS_DATABASE, THIS_DATABASE, below};
use crate::advance::GRACE;
use crate::session::Epoch;
use crate::store::Key;
use fencegate_postgres::sql::quote;

/// First Query of a new control connection: its settings, then the probe. JIT compilation of a Query takes longer than
/// its execution. A plan made while a table is small also runs when it is large, so no plan may scan a whole table that
/// has an index. A Query that waits for a lock fails after the grace (55P03), so that its caller can find the lock
/// holder; most Queries set their own limit.
pub fn open(synchronous_commit: &str) -> String {
    format!(
        "SET standard_conforming_strings = on; SET application_name = 'fencegate control'; \
         SET search_path = pg_catalog; SET default_transaction_isolation = 'read committed'; \
         SET default_transaction_read_only = off; SET jit = off; SET synchronous_commit = {synchronous_commit}; \
         SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET lock_timeout = {grace}; \
         SELECT set_config(name, '0', false) FROM unnest(ARRAY['statement_timeout', \
           'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout']) name \
           WHERE current_setting(name, true) IS NOT NULL; \
         SELECT {LACKING}, {OWN}, \
           CASE WHEN to_regnamespace('fencegate') IS NOT NULL \
             THEN coalesce(obj_description(to_regnamespace('fencegate'), 'pg_namespace'), 'of unknown version') \
           END AS version",
        LACKING = lacking(),
        grace = GRACE.as_millis(),
    )
}

/// The connection's own server process and its start.
pub const OWN: &str = "pg_backend_pid() AS pid, \
    (SELECT extract(epoch FROM backend_start) FROM pg_stat_get_activity(pg_backend_pid())) AS backend_start";

/// A row for each of these server processes of this database that has not ended.
pub fn alive(processes: &[(String, String)]) -> String {
    format!(
        "SELECT a.pid FROM pg_stat_get_activity(NULL) a WHERE a.datid = {THIS_DATABASE} AND {}",
        is_one_of(processes)
    )
}

/// True if process `a` is one of these.
pub(super) fn is_one_of(processes: &[(String, String)]) -> String {
    let list: String = processes.iter().map(|(pid, start)| format!(", ({pid}, {}::numeric)", quote(start))).collect();
    format!("(a.pid, extract(epoch FROM a.backend_start)) IN (VALUES (0, 0::numeric){list})")
}

/// The roles that the control role must be a member of.
const ROLES: [&str; 2] = ["pg_read_all_stats", "pg_signal_backend"];

/// The functions of the server that the fence calls. PUBLIC may execute them by default.
const FUNCTIONS: [&str; 13] = [
    "pg_advisory_xact_lock(bigint)",
    "pg_advisory_xact_lock_shared(bigint)",
    "pg_try_advisory_xact_lock(bigint)",
    "pg_try_advisory_xact_lock(integer,integer)",
    "pg_blocking_pids(integer)",
    "pg_control_system()",
    "pg_is_in_recovery()",
    "pg_notification_queue_usage()",
    "pg_notify(text,text)",
    "pg_postmaster_start_time()",
    "pg_prepared_xact()",
    "pg_stat_get_activity(integer)",
    "pg_terminate_backend(integer,bigint)",
];

/// Privileges that the fence needs on its tables.
const NEEDED: [(&str, &[&str]); 5] = [
    ("lease", &["SELECT"]),
    ("epoch", &["SELECT", "INSERT", "UPDATE"]),
    ("admission", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("proxy", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("reset", &["INSERT"]),
];

/// The functions of the schema `fencegate` that the fence calls.
const OWN_FUNCTIONS: [&str; 3] = ["own_system_identifier", "own_database", "lease_candidate"];

/// One row: the grants and privileges that this role lacks. Can be executed without any of them.
pub fn privileges() -> String {
    format!("SET search_path = pg_catalog; SELECT {}", lacking())
}

/// Columns: `missing_grant`, as GRANT names it, and `lacking`, privileges in fencegate's schemas. Null if nothing is missing.
fn lacking() -> String {
    let texts = |texts: &[&str]| texts.iter().map(|it| quote(it)).collect::<Vec<_>>().join(", ");
    let of_table = |(table, privileges): &(&str, &[&str])| {
        privileges.iter().map(|it| format!("({}, {})", quote(table), quote(it))).collect::<Vec<_>>().join(", ")
    };
    format!(
        "current_database() AS database, current_user AS role, \
         (SELECT min(it) FROM (SELECT r::text FROM unnest(ARRAY[{}]::name[]) r WHERE NOT pg_has_role(current_user, r, 'USAGE') \
           UNION ALL SELECT 'EXECUTE ON FUNCTION pg_catalog.' || p.oid::regprocedure FROM pg_proc p \
             WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.oid::regprocedure::text IN ({}) \
             AND NOT has_function_privilege(p.oid, 'EXECUTE')) missing(it)) AS missing_grant, \
         (SELECT string_agg(it, ', ' ORDER BY it) FROM (SELECT 'USAGE on the schema ' || n.nspname FROM pg_namespace n \
             WHERE n.nspname IN ('fencegate', 'fencegate_state') AND NOT has_schema_privilege(n.oid, 'USAGE') \
           UNION ALL SELECT 'EXECUTE on ' || p.proname FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate') \
             AND p.proname IN ({}) AND NOT has_function_privilege(p.oid, 'EXECUTE') \
           UNION ALL SELECT n.privilege || ' on ' || n.name FROM (VALUES {}) n(name, privilege) \
             JOIN pg_class c ON c.relnamespace = to_regnamespace('fencegate_state') AND c.relname = n.name \
             WHERE NOT has_table_privilege(c.oid, n.privilege)) missing(it)) AS lacking",
        texts(&ROLES),
        texts(&FUNCTIONS),
        texts(&OWN_FUNCTIONS),
        NEEDED.iter().map(of_table).collect::<Vec<_>>().join(", ")
    )
}

/// Terminates one server process, if it still has the same start.
pub fn end_process(pid: &str, backend_start: &str) -> String {
    format!(
        "SELECT pg_catalog.pg_terminate_backend(s.pid) FROM pg_catalog.pg_stat_get_activity({pid}) s \
         WHERE extract(epoch FROM s.backend_start) = {}::pg_catalog.numeric",
        quote(backend_start)
    )
}

/// Terminates those of the processes that still have the same start, are in this database, and that this role may signal.
/// Does nothing if the current epoch is below the bound. Spares a process whose own proxy has released it since: the process
/// may hold a newer admission.
///
/// Marks the admission as ending. Such a row is deleted only after its process has ended: the process's own proxy, even if it
/// reads the row at the same moment, skips it and does not release the process. Rows that another transaction is deleting or
/// marking are left to the next look. NO KEY: the guard's lock on the row protects the row but not the process.
pub fn terminate(processes: &[Key], resource: &str, bound: Epoch) -> String {
    TERMINATE.execute(&[
        &numbers("integer", processes.iter().map(|(pid, _)| pid)),
        &texts("numeric", processes.iter().map(|(_, start)| start.as_str())),
        &quote(resource),
        &bound.generation.to_string(),
        &bound.token.to_string(),
    ])
}

pub(super) const TERMINATE: Prepared = Prepared::new("terminate", "integer[], numeric[], text, bigint, bigint", || {
    format!(
        "WITH due AS (UPDATE fencegate_state.admission SET ending = true WHERE ctid = ANY (ARRAY( \
               SELECT a.ctid FROM fencegate_state.admission a JOIN LATERAL pg_stat_get_activity(a.pid) s \
                 ON s.backend_start = a.backend_start AND s.datid = fencegate.own_database() \
                 LEFT JOIN pg_roles t ON t.oid = s.usesysid \
               WHERE {} AND {IS_OF_THIS_DATABASE} AND (a.pid, extract(epoch FROM a.backend_start)) NOT IN (SELECT * FROM unnest($1, $2)) IS FALSE AND {} \
                 AND EXISTS (SELECT FROM fencegate_state.epoch e WHERE e.resource = $3 AND (e.generation, e.token) >= ($4, $5)) \
               FOR NO KEY UPDATE OF a SKIP LOCKED)) RETURNING pid) \
             SELECT pid, pg_terminate_backend(pid) FROM (SELECT DISTINCT pid FROM due) due",
        below("$3", "$4", "$5"),
        may_terminate("s", "t"),
    )
});

/// The open transactions of this database, including prepared ones. Includes transactions without a lock on the relation,
/// because they may still take it, for example in a function that sleeps.
pub fn open_transactions() -> String {
    format!(
        "SELECT a.pid || ' ' || a.xact_start AS transaction FROM pg_stat_activity a \
         WHERE a.datid = {THIS_DATABASE} AND a.backend_type = 'client backend' AND a.xact_start IS NOT NULL \
           AND a.pid <> pg_backend_pid() \
         UNION ALL SELECT p.transaction::text FROM pg_prepared_xacts p WHERE p.database = current_database()"
    )
}

/// True if the process is a control connection of any proxy. Checks the application name, which any client can set, and the
/// role.
pub(super) fn is_control_connection(process: &str, role: &str) -> String {
    format!(
        "({process}.application_name = 'fencegate control' AND ({role}.rolname = current_user \
         OR {role}.oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'fencegate')))"
    )
}

/// The condition under which PostgreSQL permits pg_terminate_backend.
pub fn may_terminate(process: &str, target: &str) -> String {
    format!(
        "((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR (NOT {target}.rolsuper \
         AND (pg_has_role(current_user, 'pg_signal_backend', 'USAGE') \
              OR pg_has_role(current_user, {process}.usesysid, 'USAGE'))))"
    )
}
