//! The statements of the fence, as text.
//!
//! Owns quoting and everything that is said to the database. Each function's text is one simple
//! Query: its statements are one transaction, READ COMMITTED, and each has a snapshot of its own.
//! The rows that a backend sees of pg_stat_get_activity are fixed at the first look in a
//! transaction; that is why looks are Queries of their own.

use super::session::{Epoch, Identity, Token};
use crate::policy::{QualifiedName, Resource, Template};
use std::sync::Arc;
use std::time::Duration;

/// Locks that only a write needs.
pub(super) const WRITE_LOCKS: &str = "'RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', \
     'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'";
/// Those, and the lock of `SELECT … FOR UPDATE`: who holds it may block the next leader.
pub(super) const WRITE_OR_ROW_LOCKS: &str = "'RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock', \
     'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'";

/// A row of `admission a` belongs to a living process: the pid is there, and its backend_start is
/// the same or hidden.
const LIVING: &str = "EXISTS (SELECT FROM pg_stat_get_activity(NULL) s WHERE s.pid = a.pid \
     AND (s.backend_start IS NULL OR s.backend_start = a.backend_start))";

const THIS_DATABASE: &str = "(SELECT oid FROM pg_database WHERE datname = current_database())";

/// A string literal. The text must not contain NUL; standard_conforming_strings must be on.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// What a new control connection says first: its settings, then the probe. To compile a Query takes longer than to run it.
pub(super) fn open(synchronous_commit: &str) -> String {
    format!(
        "SET standard_conforming_strings = on; SET application_name = 'fencegate control'; \
         SET search_path = pg_catalog; SET default_transaction_isolation = 'read committed'; \
         SET default_transaction_read_only = off; SET jit = off; SET synchronous_commit = {synchronous_commit}; \
         SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout', \
           'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout'); \
         SELECT current_database() AS database, current_user AS role, pg_backend_pid() AS pid, \
           (SELECT extract(epoch FROM backend_start) FROM pg_stat_get_activity(pg_backend_pid())) AS backend_start, \
           pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees, \
           pg_has_role(current_user, 'pg_signal_backend', 'USAGE') AS signals, \
           CASE WHEN to_regnamespace('fencegate') IS NOT NULL \
             THEN coalesce(obj_description(to_regnamespace('fencegate'), 'pg_namespace'), 'of unknown version') \
           END AS version"
    )
}

/// Ends one server process, if it is still the same.
pub(super) fn end_process(pid: &str, backend_start: &str) -> String {
    format!(
        "SELECT pg_catalog.pg_terminate_backend(s.pid) FROM pg_catalog.pg_stat_get_activity({pid}) s \
         WHERE extract(epoch FROM s.backend_start) = {}::pg_catalog.numeric",
        quote(backend_start)
    )
}

/// Ends those of the processes that are still the same and that this role may signal. One that its
/// own proxy has released since may hold a newer admission by now, and is spared.
pub(super) fn terminate(processes: &str, resource: &str, bound: Epoch) -> String {
    format!(
        "SELECT s.pid, CASE WHEN {} THEN pg_terminate_backend(s.pid) END AS signalled \
         FROM (VALUES {processes}) k(pid, backend_start) JOIN pg_stat_get_activity(NULL) s ON s.pid = k.pid \
         AND extract(epoch FROM s.backend_start) = k.backend_start LEFT JOIN pg_roles t ON t.oid = s.usesysid \
         WHERE EXISTS (SELECT FROM fencegate.admission a WHERE a.pid = s.pid AND a.backend_start = s.backend_start \
                       AND {})",
        may_terminate("s", "t"),
        below("a", resource, bound)
    )
}

/// Rows of a `VALUES` list that name processes: (pid, backend_start).
pub(super) fn processes<'a>(keys: impl IntoIterator<Item = (i32, &'a str)>) -> String {
    let rows: Vec<String> =
        keys.into_iter().map(|(pid, start)| format!("({pid}, {}::numeric)", quote(start))).collect();
    rows.join(", ")
}

/// The same condition under which pg_terminate_backend does not refuse.
fn may_terminate(process: &str, target: &str) -> String {
    format!(
        "((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR (NOT {target}.rolsuper \
         AND (pg_has_role(current_user, 'pg_signal_backend', 'USAGE') \
              OR pg_has_role(current_user, {process}.usesysid, 'USAGE'))))"
    )
}

/// The items of an identity that must all be true: column, and what it means if it is not.
pub(super) const IDENTITY_ITEMS: [(&str, &str); 7] = [
    ("same_server", "it is on another server than the control connection (a failover or a proxy in between)"),
    ("same_start", "the postmaster has started anew since the session began"),
    ("writable", "the server is in recovery"),
    ("running", "the control connection sees no such server process (a pooler in between, or it has ended)"),
    ("same_process", "the process id belongs to another process by now"),
    ("same_database", "it is connected to another database"),
    ("killable", "the control role may not terminate it: a superuser's session needs a superuser as control role"),
];

/// Admit. The third statement's rows: the admission is new. The fourth's row: everything by which
/// to decide.
pub(super) fn admit(who: &Identity, resource: &Resource, token: Token, proxy: &str) -> String {
    let name = quote(&resource.name);
    let hash = quote(&resource.fingerprint);
    let pid = who.pid;
    // Exactly one row, whatever is missing. Null is never true.
    let identity = format!(
        "(SELECT a.pid, a.backend_start, a.pid IS NOT NULL AS running, \
            extract(epoch FROM a.backend_start) = {}::numeric AS same_process, \
            a.datid = {THIS_DATABASE} AS same_database, \
            c.system_identifier = {}::bigint AS same_server, \
            extract(epoch FROM pg_postmaster_start_time()) = {}::numeric AS same_start, \
            NOT pg_is_in_recovery() AND NOT {} AS writable, {} AS killable \
          FROM pg_control_system() c LEFT JOIN pg_stat_get_activity({pid}) a ON true \
          LEFT JOIN pg_roles t ON t.oid = a.usesysid) i",
        quote(&who.backend_start),
        quote(&who.system_identifier),
        quote(&who.postmaster_start),
        who.in_recovery,
        may_terminate("a", "t"),
    );
    let items = IDENTITY_ITEMS.map(|(column, _)| format!("i.{column}"));
    format!(
        "SELECT pg_advisory_xact_lock_shared({key}); \
         SELECT FROM fencegate.epoch WHERE resource = {name} FOR SHARE; \
         INSERT INTO fencegate.admission (pid, backend_start, resource, generation, token, proxy) \
           SELECT i.pid, i.backend_start, e.resource, e.generation, e.token, {proxy} \
           FROM fencegate.epoch e, {identity} \
           WHERE e.resource = {name} AND e.token = {token} AND e.drained AND e.policy_hash = {hash} AND {all} \
           ON CONFLICT DO NOTHING RETURNING pid; \
         SELECT e.generation, e.token, e.drained, e.policy_hash = {hash} AS same_policy, {list}, \
           EXISTS (SELECT FROM fencegate.admission a WHERE a.pid = i.pid AND a.backend_start = i.backend_start \
                   AND a.resource = e.resource AND a.generation = e.generation AND a.token = {token}) AS admitted \
           FROM {identity} LEFT JOIN fencegate.epoch e ON e.resource = {name}",
        key = advisory_key(&resource.name),
        proxy = quote(proxy),
        all = items.join(" AND "),
        list = items.join(", "),
    )
}

/// Publish. The second statement's count: the token was raised. The third's row: what is there now. Raises
/// nothing in another generation than the target's: a reset has come since the target was found to be due.
pub(super) fn publish(resource: &Resource, target: Epoch) -> String {
    let name = quote(&resource.name);
    let Epoch { generation, token } = target;
    let hash = quote(&resource.fingerprint);
    format!(
        "SELECT pg_advisory_xact_lock({key}); \
         INSERT INTO fencegate.epoch AS e (resource, token, policy_hash) VALUES ({name}, {token}, {hash}) \
           ON CONFLICT (resource) DO UPDATE SET token = {token}, drained = false, updated = clock_timestamp() \
           WHERE e.generation = {generation} AND e.token < {token} AND e.policy_hash = {hash}; \
         SELECT resource, generation, token FROM fencegate.epoch WHERE resource = {name}; \
         SELECT pg_notify('fencegate', {name})",
        key = advisory_key(&resource.name),
    )
}

/// Reset. The second statement's row: what was there. The third's rows: the living processes that are admitted under
/// higher tokens. The fourth's row: what is there now, if the policies are the same, and nobody is in the way or is to be
/// minded; it is kept as well who did it.
///
/// Every Admit holds the lock shared until its row is committed. So whoever is admitted before the lock is had is seen, and
/// whoever comes later reads the new epoch. The processes are looked at once, after that: the view of them is fixed then.
pub(super) fn reset(resource: &Resource, token: Token, by: &Operator<'_>, force: bool) -> String {
    let (name, hash) = (quote(&resource.name), quote(&resource.fingerprint));
    let higher = format!("FROM fencegate.admission a WHERE a.resource = {name} AND a.token > {token} AND {LIVING}");
    let permitted = if force { "true".to_owned() } else { format!("NOT EXISTS (SELECT {higher})") };
    format!(
        "SELECT pg_advisory_xact_lock({key}); \
         SELECT generation, token, policy_hash = {hash} AS same_policy FROM fencegate.epoch \
           WHERE resource = {name} FOR UPDATE; \
         SELECT DISTINCT a.pid, a.token, a.proxy {higher} ORDER BY a.token DESC, a.pid; \
         WITH changed AS (UPDATE fencegate.epoch SET generation = generation + 1, token = {token}, drained = false, \
             updated = clock_timestamp() WHERE resource = {name} AND policy_hash = {hash} AND {permitted} \
             RETURNING resource, generation, token), \
           kept AS (INSERT INTO fencegate.reset (resource, generation, token, role, proxy, forced) \
             SELECT resource, generation, token, {role}, {proxy}, {force} FROM changed) \
           SELECT resource, generation, token FROM changed; \
         SELECT pg_notify('fencegate', {name})",
        key = advisory_key(&resource.name),
        role = quote(by.role),
        proxy = quote(by.proxy),
    )
}

/// Who resets a fence, and through which proxy.
pub(super) struct Operator<'a> {
    pub(super) role: &'a str,
    pub(super) proxy: &'a str,
}

/// The admissions, at most so many. The second statement's row: how many there are.
pub(super) fn all_admissions(most: usize) -> String {
    format!(
        "SELECT a.resource, a.generation, a.token, a.pid, extract(epoch FROM a.backend_start) AS backend_start, \
           extract(epoch FROM a.admitted) AS admitted, a.proxy, {LIVING} AS alive FROM fencegate.admission a \
           ORDER BY a.resource, a.generation, a.token, a.pid LIMIT {most}; \
         SELECT count(*) AS admissions FROM fencegate.admission"
    )
}

/// How long a proxy counts of which the control connection is lost: its sessions may go on.
const LOST_PROXY_COUNTS: &str = "interval '10 minutes'";

/// Says which fences this proxy enforces. The rows of proxies that were lost long ago go.
pub(super) fn announce_enforced(proxy: &str, fingerprints: &[String]) -> String {
    let fingerprints: Vec<String> = fingerprints.iter().map(|it| quote(it)).collect();
    format!(
        "DELETE FROM fencegate.proxy WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM fencegate.proxy a \
           WHERE NOT {LIVING} AND a.announced < clock_timestamp() - {LOST_PROXY_COUNTS} \
           FOR UPDATE OF a SKIP LOCKED)); \
         INSERT INTO fencegate.proxy AS p (id, pid, backend_start, enforced) \
           SELECT {proxy}, a.pid, a.backend_start, ARRAY[{enforced}]::text[] \
           FROM pg_stat_get_activity(pg_backend_pid()) a \
           ON CONFLICT (id) DO UPDATE SET pid = excluded.pid, backend_start = excluded.backend_start, \
             enforced = excluded.enforced, announced = clock_timestamp()",
        proxy = quote(proxy),
        enforced = fingerprints.join(", "),
    )
}

/// This proxy has no sessions here any more.
pub(super) fn leave(proxy: &str) -> String {
    format!("DELETE FROM fencegate.proxy WHERE id = {}", quote(proxy))
}

/// How far the fences with these fingerprints are enforced: how many proxies there are, how many of them are lost, and how
/// many of the others enforce it. The second statement's rows: the tables that do not exist.
pub(super) fn enforcement(fingerprints: &[&str], tables: &[&QualifiedName]) -> String {
    let fingerprints: Vec<String> = fingerprints.iter().map(|it| quote(it)).collect();
    format!(
        "SELECT f.fingerprint, count(a.id) AS proxies, count(a.id) FILTER (WHERE NOT a.lives) AS lost, \
           count(a.id) FILTER (WHERE a.lives AND f.fingerprint = ANY (a.enforced)) AS enforcing \
         FROM unnest(ARRAY[{}]::text[]) f(fingerprint) LEFT JOIN (SELECT *, {LIVING} AS lives FROM fencegate.proxy a) a \
           ON a.lives OR a.announced > clock_timestamp() - {LOST_PROXY_COUNTS} GROUP BY 1; \
         WITH {} SELECT DISTINCT named.schema, named.name FROM named WHERE NOT EXISTS (SELECT FROM pg_namespace n \
           JOIN pg_class c ON c.relnamespace = n.oid WHERE n.nspname = named.schema AND c.relname = named.name)",
        fingerprints.join(", "),
        named(tables.iter().copied()),
    )
}

/// The fences of these resources, with how many server processes are admitted to each, those of keys last: at most so
/// many, the latest updated first. The third statement's row: how many there are of those.
pub(super) fn fences(resources: &[Arc<Resource>], most_keys: usize) -> String {
    let plain: Vec<String> = resources.iter().filter(|it| it.keyed.is_none()).map(|it| quote(&it.name)).collect();
    let names = resources.iter().filter_map(|resource| resource.keyed.as_ref()).map(|keyed| &keyed.names);
    let of_keys: Vec<String> =
        ["false".to_owned()].into_iter().chain(names.map(|names| is_called("e", names))).collect();
    let (plain, of_keys) = (plain.join(", "), of_keys.join(" OR "));
    let columns = "e.resource, e.generation, e.token, e.drained, \
         (SELECT count(*) FROM fencegate.admission a WHERE a.resource = e.resource) AS admissions";
    format!(
        "SELECT {columns} FROM fencegate.epoch e WHERE e.resource = ANY (ARRAY[{plain}]::text[]); \
         SELECT {columns} FROM (SELECT * FROM fencegate.epoch e WHERE {of_keys} \
           ORDER BY e.updated DESC LIMIT {most_keys}) e ORDER BY e.updated DESC; \
         SELECT count(*) AS keys FROM fencegate.epoch e WHERE {of_keys}"
    )
}

/// Mark. The third statement's count: it is drained now. The fourth's rows: the prepared
/// transactions in the way.
///
/// The second statement comes first to look at the processes, and the later ones see what it saw:
/// so the locks are read after the processes. The other way round, one that prepares its
/// transaction and ends in between would be missed by both.
pub(super) fn mark(resource: &Resource, epoch: Epoch) -> String {
    let name = quote(&resource.name);
    let Epoch { generation, token } = epoch;
    let relations = relations(resource);
    let holds = holds_lock_on_relations(WRITE_LOCKS);
    let below = below("a", &resource.name, epoch);
    format!(
        "SELECT FROM fencegate.epoch WHERE resource = {name} FOR UPDATE; \
         SELECT count(*) FROM fencegate.admission a WHERE {below} AND {LIVING}; \
         {relations} UPDATE fencegate.epoch e SET drained = true, updated = clock_timestamp() \
           WHERE e.resource = {name} AND e.generation = {generation} AND e.token = {token} AND NOT e.drained \
           AND NOT EXISTS (SELECT FROM fencegate.admission a WHERE {below} AND {LIVING}) \
           AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid IS NULL AND {holds}); \
         {relations} SELECT DISTINCT p.gid FROM pg_locks l {PREPARED} WHERE l.pid IS NULL AND {holds}",
    )
}

/// Who is admitted to the resource below the epoch.
pub(super) fn holders(resource: &str, bound: Epoch) -> String {
    format!(
        "SELECT a.pid, extract(epoch FROM a.backend_start) AS backend_start, a.generation, a.token, a.proxy, \
           s.wait_event_type || '/' || s.wait_event AS waits, left(s.query, 60) AS query \
         FROM fencegate.admission a LEFT JOIN pg_stat_get_activity(NULL) s ON s.pid = a.pid \
         WHERE {}",
        below("a", resource, bound)
    )
}

/// The admissions of one process.
pub(super) fn admissions(pid: i32, backend_start: &str) -> String {
    format!(
        "SELECT a.resource, a.generation, a.token FROM fencegate.admission a \
         WHERE a.pid = {pid} AND extract(epoch FROM a.backend_start) = {}::numeric",
        quote(backend_start)
    )
}

/// Those of the processes that hold one of the locks on the resource's relations.
pub(super) fn lockers(resource: &Resource, locks: &str, pids: &[i32]) -> String {
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
        holds_lock_on_relations(locks),
    )
}

/// The transactions that are open in this database, also those that are prepared. Who has not locked a relation yet may be
/// about to: in a function that sleeps, say.
pub(super) fn open_transactions() -> String {
    format!(
        "SELECT a.pid || ' ' || a.xact_start AS transaction FROM pg_stat_activity a \
         WHERE a.datid = {THIS_DATABASE} AND a.backend_type = 'client backend' AND a.xact_start IS NOT NULL \
           AND a.pid <> pg_backend_pid() \
         UNION ALL SELECT p.transaction::text FROM pg_prepared_xacts p WHERE p.database = current_database()"
    )
}

/// The two keys of the lock that a process holds shared from its first write to the resource, or to another key of the same
/// keyed one, that the guard let pass to the end of its transaction. `guard.sql` has the same.
fn process_lock(resource: &Resource, pid: &str) -> String {
    format!("hashtext({}), {pid}", quote(resource.lock_name()))
}

/// Deletes the rows below the epoch of these processes, by their full key. Leaves those of a process in whose open
/// transaction the guard has let a write pass, on the strength of that very row.
pub(super) fn delete(processes: &str, resource: &Resource, bound: Epoch) -> String {
    // Materialized: only the locks of these processes are asked for, in whatever order a plan looks at the rows. Another
    // proxy that found the lock of its own process taken would believe that the guard has seen a write.
    format!(
        "WITH theirs AS MATERIALIZED (SELECT a.* FROM fencegate.admission a JOIN (VALUES {processes}) k(pid, backend_start) \
           ON a.pid = k.pid AND extract(epoch FROM a.backend_start) = k.backend_start WHERE {}) \
         DELETE FROM fencegate.admission a USING theirs t \
         WHERE (a.pid, a.backend_start, a.resource, a.generation, a.token) \
             = (t.pid, t.backend_start, t.resource, t.generation, t.token) \
           AND pg_try_advisory_xact_lock({}) \
         RETURNING a.pid, extract(epoch FROM a.backend_start) AS backend_start, a.token",
        below("a", &resource.name, bound),
        process_lock(resource, "t.pid")
    )
}

/// Deletes one admission that was never used, unless the guard has found it: then the drain ends its process.
pub(super) fn delete_one(who: &Identity, resource: &Resource, epoch: Epoch) -> String {
    format!(
        "DELETE FROM fencegate.admission a WHERE a.pid = {} AND extract(epoch FROM a.backend_start) = {}::numeric \
         AND a.resource = {} AND a.generation = {} AND a.token = {} \
         AND pg_try_advisory_xact_lock({})",
        who.pid,
        quote(&who.backend_start),
        quote(&resource.name),
        epoch.generation,
        epoch.token,
        process_lock(resource, "a.pid")
    )
}

/// The epoch in force, if the guard has let a write to the resource pass in the open transaction of this process: it holds
/// the resource's lock; or that of the process, and an admission on the strength of which it may have passed.
pub(super) fn guarded_write(resource: &Resource, pid: i32) -> String {
    format!(
        "SELECT e.generation, e.token FROM fencegate.epoch e WHERE e.resource = {name} AND EXISTS ( \
           SELECT FROM pg_locks l WHERE l.pid = {pid} AND l.locktype = 'advisory' AND l.granted \
           AND l.database = {THIS_DATABASE} AND (({resource_lock}) OR (l.objsubid = 2 \
             AND l.classid::bigint = hashtext({family})::bigint & 4294967295 AND l.objid = {pid} \
             AND EXISTS (SELECT FROM fencegate.admission a WHERE a.pid = {pid} AND a.resource = {name} AND {LIVING}))))",
        name = quote(&resource.name),
        family = quote(resource.lock_name()),
        resource_lock = is_lock_of(&resource.name),
    )
}

/// The Query, which fails with 55P03 once it has waited for a lock for so long. Has one answer more, the first.
pub(super) fn with_lock_timeout(limit: Duration, query: &str) -> String {
    format!("SET LOCAL lock_timeout = {}; {query}", limit.as_millis())
}

/// Ends those who keep the control process from the resource's lock: they hold it, or wait ahead to hold it exclusively.
/// But no control connections, also those of other proxies with a role of their own: an Admit and a Publish hold it for a
/// moment. The second statement's rows: prepared transactions, which only whoever knows of them can end.
pub(super) fn end_blockers(resource: &str, control_pid: &str) -> String {
    format!(
        "SELECT s.pid, CASE WHEN {} THEN pg_terminate_backend(s.pid) END, \
           coalesce(s.wait_event_type || '/' || s.wait_event, 'nothing') AS waits, left(s.query, 60) AS query \
         FROM (SELECT DISTINCT unnest(pg_blocking_pids({control_pid})) AS pid) b \
         JOIN pg_stat_get_activity(NULL) s ON s.pid = b.pid LEFT JOIN pg_roles t ON t.oid = s.usesysid \
         WHERE NOT (s.application_name = 'fencegate control' AND (t.rolname = current_user \
           OR t.oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'fencegate'))) \
         AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = s.pid AND (l.granted OR l.mode = 'ExclusiveLock') AND {is_it}); \
         SELECT DISTINCT p.gid FROM pg_locks l {PREPARED} WHERE l.pid IS NULL AND {is_it}",
        may_terminate("s", "t"),
        is_it = format_args!("l.locktype = 'advisory' AND l.database = {THIS_DATABASE} AND {}", is_lock_of(resource)),
    )
}

/// From lock `l`, which a prepared transaction holds, to that transaction `p`.
const PREPARED: &str = "JOIN pg_locks x ON x.locktype = 'transactionid' AND x.pid IS NULL \
     AND x.virtualtransaction = l.virtualtransaction JOIN pg_prepared_xacts p ON p.transaction = x.transactionid";

/// Deletes all admissions of the process but these.
pub(super) fn delete_all_but(who: &Identity, kept: &[(String, Epoch)]) -> String {
    let kept: Vec<String> = kept
        .iter()
        .map(|(resource, epoch)| format!("({}, {}, {})", quote(resource), epoch.generation, epoch.token))
        .collect();
    let others = match kept.is_empty() {
        true => "true".to_owned(),
        false => format!("(a.resource, a.generation, a.token) NOT IN (VALUES {})", kept.join(", ")),
    };
    format!(
        "DELETE FROM fencegate.admission a WHERE a.pid = {} AND extract(epoch FROM a.backend_start) = {}::numeric \
         AND {others}",
        who.pid,
        quote(&who.backend_start),
    )
}

/// Deletes the rows of dead processes: those of a resource below an epoch, or all. Rows that
/// somebody else is deleting are left to them.
pub(super) fn delete_dead(only: Option<(&str, Epoch)>) -> String {
    let only = only.map_or_else(|| "true".to_owned(), |(resource, bound)| below("a", resource, bound));
    format!(
        "DELETE FROM fencegate.admission WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM fencegate.admission a \
         WHERE {only} AND NOT {LIVING} FOR UPDATE OF a SKIP LOCKED)) \
         RETURNING pid, extract(epoch FROM backend_start) AS backend_start, token"
    )
}

/// The epoch rows of these resources.
pub(super) fn epochs<'a>(resources: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = resources.into_iter().map(quote).collect();
    format!(
        "SELECT resource, generation, token, drained FROM fencegate.epoch WHERE resource = ANY (ARRAY[{}]::text[])",
        names.join(", ")
    )
}

/// The epoch rows above admissions that this proxy gave.
pub(super) fn epochs_above_admissions(proxy: &str) -> String {
    format!(
        "SELECT DISTINCT e.resource, e.generation, e.token FROM fencegate.epoch e \
         JOIN fencegate.admission a ON a.resource = e.resource AND (a.generation, a.token) < (e.generation, e.token) \
         WHERE a.proxy = {}",
        quote(proxy)
    )
}

/// Records the policies under which the resource is fenced from now on.
pub(super) fn record_policy(resource: &Resource) -> String {
    let hash = quote(&resource.fingerprint);
    format!(
        "UPDATE fencegate.epoch SET policy_hash = {hash} WHERE resource = {} AND policy_hash IS DISTINCT FROM {hash}",
        quote(&resource.name)
    )
}

/// The same for the keys of a keyed resource, among the next so many epoch rows by name: a Query has no time for more.
/// The row: the last of these. Locked in that order, so that two proxies that load at once cannot deadlock.
pub(super) fn record_policy_of_keys(resource: &Resource, names: &Template, after: &str) -> String {
    format!(
        "WITH page AS (SELECT max(p.resource) AS last FROM (SELECT resource FROM fencegate.epoch \
           WHERE resource > {after} ORDER BY resource LIMIT 10000) p), \
         due AS (SELECT e.ctid FROM fencegate.epoch e WHERE e.resource > {after} \
           AND e.resource <= (SELECT last FROM page) AND {is_called} AND e.policy_hash IS DISTINCT FROM {hash} \
           ORDER BY e.resource FOR UPDATE), \
         recorded AS (UPDATE fencegate.epoch SET policy_hash = {hash} WHERE ctid = ANY (ARRAY(SELECT ctid FROM due))) \
         SELECT last FROM page",
        after = quote(after),
        is_called = is_called("e", names),
        hash = quote(&resource.fingerprint),
    )
}

/// The row's resource is that of a key.
fn is_called(row: &str, names: &Template) -> String {
    let (before, after) = (names.before(), names.after());
    format!(
        "(starts_with({row}.resource, {}) AND right({row}.resource, {}) = {} AND length({row}.resource) >= {})",
        quote(before),
        after.chars().count(),
        quote(after),
        before.chars().count() + after.chars().count(),
    )
}

/// A common table expression of these names.
pub(crate) fn named<'a>(names: impl IntoIterator<Item = &'a QualifiedName>) -> String {
    let names: Vec<String> = names.into_iter().map(pair).collect();
    if names.is_empty() {
        return "named(schema, name) AS (SELECT NULL::name, NULL::name WHERE false)".to_owned();
    }
    format!("named(schema, name) AS (VALUES {})", names.join(", "))
}

fn advisory_key(resource: &str) -> String {
    format!("hashtextextended({}, 0)", quote(&format!("fencegate:{resource}")))
}

/// The advisory lock `l` is the resource's.
fn is_lock_of(resource: &str) -> String {
    format!("l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = {}", advisory_key(resource))
}

fn below(row: &str, resource: &str, bound: Epoch) -> String {
    format!(
        "{row}.resource = {} AND ({row}.generation, {row}.token) < ({}, {})",
        quote(resource),
        bound.generation,
        bound.token
    )
}

/// Common table expressions: the resource's relations with all that inherit from them, and
/// whether some name stands for nothing (yet). The catalogue is asked, not to_regclass, which
/// fails where the control role may not use the schema.
fn relations(resource: &Resource) -> String {
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

fn pair(name: &QualifiedName) -> String {
    format!("({}::name, {}::name)", quote(&name.schema), quote(&name.name))
}

/// Lock `l` is one of the locks on the resource's relations. A relation that was created in a
/// transaction still open has no name that others can see: it may be one that is missing.
fn holds_lock_on_relations(locks: &str) -> String {
    format!(
        "l.locktype = 'relation' AND l.granted AND l.database = {THIS_DATABASE} AND l.mode IN ({locks}) \
         AND (l.relation IN (SELECT oid FROM relation) OR (EXISTS (SELECT FROM unresolved) \
              AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = l.relation)))"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_end_no_literal() {
        assert_eq!(quote("plain"), "'plain'");
        assert_eq!(quote("it's"), "'it''s'");
        assert_eq!(quote("'; DROP TABLE x; --"), "'''; DROP TABLE x; --'");
        assert_eq!(quote("back\\slash' "), "'back\\slash'' '");
        assert_eq!(quote(""), "''");
    }
}
