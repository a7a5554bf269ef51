//! The SQL about admissions: which server process may write under which token.
//!
//! Must never add one but under the token in force, once all processes with lower ones have ended; and never delete one but
//! by the version of its row that the decision was based on: a Query may be delayed in the network, and arrive when the
//! process has been admitted again.

use super::lease::IN_FORCE;
use super::lock::{advisory_key, process_lock};
use super::process::may_terminate;
use super::{LIVING, THIS_DATABASE, below};
use crate::fence::first::First;
use crate::fence::refusal::Remedy;
use crate::fence::session::{Epoch, Identity, Token};
use crate::fence::store::AdmissionRow;
use crate::policy::Resource;
use crate::sql::quote;

/// What is read of an admission.
const GRANTED: &str = "a.pid, extract(epoch FROM a.backend_start) AS backend_start, a.resource, a.generation, a.token, \
     a.xmin AS version, a.ending";

/// The items of an identity that must all be true: column, what it means if it is not, and what helps.
pub const IDENTITY_ITEMS: [(&str, &str, Remedy); 7] = [
    (
        "same_server",
        "it is on another server than the control connection (a failover or a proxy in between)",
        Remedy::SameServer,
    ),
    ("same_start", "the postmaster has started anew since the session began", Remedy::TryAgain),
    ("writable", "the server is in recovery", Remedy::TryAgain),
    (
        "running",
        "the control connection sees no such server process (a pooler in between, or it has ended)",
        Remedy::SameServer,
    ),
    ("same_process", "the process id belongs to another process by now", Remedy::TryAgain),
    ("same_database", "it is connected to another database", Remedy::TryAgain),
    (
        "killable",
        "the control role may not terminate it: a superuser's session needs a superuser as control role",
        Remedy::Superuser,
    ),
];

/// Admit. The third statement's row: the admission. The fourth's row: everything by which to decide. `loaded`: when the
/// policies were loaded, as in [`super::record_policy`].
///
/// An admission that is there gets another version: a DELETE that was decided on before, and comes late, leaves it alone.
pub fn admit(who: &Identity, resource: &Resource, token: Token, proxy: &str, loaded: i64) -> String {
    let name = quote(&resource.name);
    let hash = quote(&resource.fingerprint);
    let identity = identity(
        &who.pid.to_string(),
        [&who.backend_start, &who.system_identifier, &who.postmaster_start].map(|it| quote(it)),
    );
    let items = IDENTITY_ITEMS.map(|(column, ..)| format!("i.{column}"));
    format!(
        "SELECT pg_advisory_xact_lock_shared({key}); \
         SELECT FROM fencegate.epoch WHERE resource = {name} FOR SHARE; \
         INSERT INTO fencegate.admission AS a (pid, backend_start, resource, generation, token, proxy) \
           SELECT i.pid, i.backend_start, e.resource, e.generation, e.token, {proxy} \
           FROM fencegate.epoch e, {identity} \
           WHERE e.resource = {name} AND e.token = {token} AND e.drained AND e.policy_hash = {hash} AND {all} \
           ON CONFLICT (pid, backend_start, resource, generation, token) DO UPDATE SET admitted = clock_timestamp() \
           RETURNING {GRANTED}, a.xmax = 0 AS is_new; \
         SELECT e.generation, e.token, e.drained, e.policy_hash = {hash} AS same_policy, \
           e.policy_loaded < {loaded} AS older_policy, {list} FROM {identity} LEFT JOIN fencegate.epoch e ON e.resource = {name}",
        key = advisory_key(&resource.name),
        proxy = quote(proxy),
        all = all_items(),
        list = items.join(", "),
    )
}

/// First tokens. The second statement's rows: the admissions. It sees what was committed before the locks were had: whoever was
/// admitted to one of these resources, or made its epoch. It makes none where there is one, and admits to none that it did not
/// make, so that nobody else can have changed it meanwhile.
pub fn admit_first(firsts: &[&First], proxy: &str) -> String {
    let row = |first: &&First| {
        let First { who, resource, token, loaded } = first;
        let [start, server, postmaster] =
            [&who.backend_start, &who.system_identifier, &who.postmaster_start].map(|it| quote(it));
        let lease = resource.lease().map_or("NULL".to_owned(), quote);
        format!(
            "({}, {}, {token}, {}, {loaded}, {lease}, {}, {start}, {server}, {postmaster})",
            advisory_key(&resource.name),
            quote(&resource.name),
            quote(&resource.fingerprint),
            who.pid,
        )
    };
    let rows: Vec<String> = firsts.iter().map(row).collect();
    let keys: Vec<String> = firsts.iter().map(|it| advisory_key(&it.resource.name)).collect();
    let identity =
        identity("f.pid", ["f.backend_start", "f.system_identifier", "f.postmaster_start"].map(str::to_owned));
    format!(
        "SELECT set_config('fencegate.locked', array_agg(k)::text, true) FROM unnest(ARRAY[{keys}]) k \
           WHERE pg_try_advisory_xact_lock(k); \
         WITH fenceable AS MATERIALIZED (SELECT f.*, i.backend_start AS started FROM (VALUES {rows}) \
             f(key, resource, token, hash, loaded, lease, pid, backend_start, system_identifier, postmaster_start) \
             CROSS JOIN LATERAL {identity} WHERE f.key = ANY (current_setting('fencegate.locked')::bigint[]) AND {all}), \
           made AS (INSERT INTO fencegate.epoch (resource, token, drained, policy_hash, policy_loaded) \
             SELECT f.resource, f.token, true, f.hash, f.loaded FROM fenceable f \
             WHERE NOT EXISTS (SELECT FROM fencegate.admission a WHERE a.resource = f.resource) \
               AND NOT EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.database = current_database()) \
               AND (f.lease IS NULL OR EXISTS (SELECT FROM fencegate.lease l \
                 WHERE l.election = f.lease AND l.token = f.token AND {IN_FORCE})) \
             ON CONFLICT (resource) DO NOTHING RETURNING resource, generation, token) \
         INSERT INTO fencegate.admission AS a (pid, backend_start, resource, generation, token, proxy) \
           SELECT f.pid, f.started, m.resource, m.generation, m.token, {proxy} FROM made m JOIN fenceable f USING (resource) \
           RETURNING {GRANTED}",
        keys = keys.join(", "),
        rows = rows.join(", "),
        all = all_items(),
        proxy = quote(proxy),
    )
}

/// What is known of a session's process, `i`: exactly one row, whatever is missing; null is never true. The arguments are SQL: the
/// pid, and backend_start, system identifier and start of the postmaster as the session was told.
///
/// Whether the server is in recovery only this connection says: what the session heard at its start is past where a standby was
/// promoted since, which ends no session. It is the same server: the same postmaster, since the same microsecond, with the same
/// process in it, since the same microsecond.
fn identity(pid: &str, [backend_start, system_identifier, postmaster_start]: [String; 3]) -> String {
    format!(
        "(SELECT a.pid, a.backend_start, a.pid IS NOT NULL AS running, \
            extract(epoch FROM a.backend_start) = {backend_start}::numeric AS same_process, \
            a.datid = {THIS_DATABASE} AS same_database, \
            c.system_identifier = {system_identifier}::bigint AS same_server, \
            extract(epoch FROM pg_postmaster_start_time()) = {postmaster_start}::numeric AS same_start, \
            NOT pg_is_in_recovery() AS writable, {} AS killable \
          FROM pg_control_system() c LEFT JOIN pg_stat_get_activity({pid}) a ON true \
          LEFT JOIN pg_roles t ON t.oid = a.usesysid) i",
        may_terminate("a", "t"),
    )
}

fn all_items() -> String {
    IDENTITY_ITEMS.map(|(column, ..)| format!("i.{column}")).join(" AND ")
}

/// The admissions, at most `most`. The second statement's row: their number.
pub fn all_admissions(most: usize) -> String {
    format!(
        "SELECT a.resource, a.generation, a.token, a.pid, extract(epoch FROM a.backend_start) AS backend_start, \
           extract(epoch FROM a.admitted) AS admitted, a.proxy, {LIVING} AS alive FROM fencegate.admission a \
           ORDER BY a.resource, a.generation, a.token, a.pid LIMIT {most}; \
         SELECT count(*) AS admissions FROM fencegate.admission"
    )
}

/// The admissions to the resource below the epoch.
pub fn holders(resource: &str, bound: Epoch) -> String {
    format!(
        "SELECT {GRANTED}, a.proxy, s.wait_event_type || '/' || s.wait_event AS waits, left(s.query, 60) AS query \
         FROM fencegate.admission a LEFT JOIN pg_stat_get_activity(NULL) s ON s.pid = a.pid \
         WHERE {}",
        below("a", resource, bound)
    )
}

/// The admissions of one process.
pub fn admissions(who: &Identity) -> String {
    format!(
        "SELECT {GRANTED} FROM fencegate.admission a \
         WHERE a.pid = {} AND extract(epoch FROM a.backend_start) = {}::numeric",
        who.pid,
        quote(&who.backend_start)
    )
}

/// Deletes admissions, each with the name of the lock of its family: those that are still what they were when they were
/// read. Leaves those of a process that is being ended, and of one in whose open transaction the guard has let a write
/// pass, on the strength of that very row: the process holds the lock of the process, or that of the row.
pub fn delete<'a>(rows: impl IntoIterator<Item = (&'a AdmissionRow, &'a str)>) -> String {
    let key = |(row, family): (&AdmissionRow, &str)| {
        let AdmissionRow { pid, backend_start, resource, epoch: Epoch { generation, token }, version, ending: _ } = row;
        let (start, resource, family) = (quote(backend_start), quote(resource), quote(family));
        format!(
            "({pid}, {start}::numeric, {resource}, {generation}::bigint, {token}::bigint, '{version}'::xid, {family})"
        )
    };
    let keys: Vec<String> = rows.into_iter().map(key).collect();
    // First a lock that the guard's does not keep off: after it, only the guard's is in the way of the second.
    // Materialized: only the locks of these processes are asked for, in whatever order a plan looks at the rows. Another
    // proxy that found the lock of its own process taken would believe that the guard has seen a write.
    format!(
        "WITH theirs AS MATERIALIZED (SELECT a.pid, a.backend_start, k.resource, k.generation, k.token, k.version, k.family \
           FROM fencegate.admission a JOIN (VALUES {}) k(pid, backend_start, resource, generation, token, version, family) \
           ON a.pid = k.pid AND extract(epoch FROM a.backend_start) = k.backend_start AND a.resource = k.resource \
             AND a.generation = k.generation AND a.token = k.token AND a.xmin = k.version FOR NO KEY UPDATE OF a), \
           free AS MATERIALIZED (SELECT t.* FROM fencegate.admission a JOIN theirs t \
             ON (a.pid, a.backend_start, a.resource, a.generation, a.token) \
               = (t.pid, t.backend_start, t.resource, t.generation, t.token) FOR UPDATE OF a SKIP LOCKED) \
         DELETE FROM fencegate.admission a USING free t \
         WHERE (a.pid, a.backend_start, a.resource, a.generation, a.token) \
             = (t.pid, t.backend_start, t.resource, t.generation, t.token) AND a.xmin = t.version AND NOT a.ending \
           AND pg_try_advisory_xact_lock({}) \
         RETURNING {GRANTED}",
        keys.join(", "),
        process_lock("t.family", "t.pid"),
    )
}

/// Deletes the rows of dead processes: those of a resource below an epoch, or all. Rows that
/// somebody else is deleting are left to them.
pub fn delete_dead(only: Option<(&str, Epoch)>) -> String {
    let only = only.map_or_else(|| "true".to_owned(), |(resource, bound)| below("a", resource, bound));
    format!(
        "DELETE FROM fencegate.admission WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM fencegate.admission a \
         WHERE {only} AND NOT {LIVING} FOR UPDATE OF a SKIP LOCKED)) \
         RETURNING pid, extract(epoch FROM backend_start) AS backend_start, token"
    )
}
