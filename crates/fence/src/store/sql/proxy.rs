//! SQL for proxies: the fences that each proxy enforces.
//!
//! Must never forget a lost proxy immediately, because its sessions may continue.

use super::epoch::is_called;
use super::prepared::{numbers, texts};
use super::process::is_control_connection;
use super::{IS_OF_THIS_DATABASE, LIVING, THIS_DATABASE};
use crate::store::Key;
use fencegate_catalog::FENCED_KINDS;
use fencegate_policy::{QualifiedName, Resource};
use fencegate_postgres::sql::{named, quote};
use std::sync::Arc;

/// The time for which a proxy counts after its last announcement if its control connection is lost: its sessions may continue.
const LOST_PROXY_COUNTS: &str = "interval '10 minutes'";

/// Publishes the fences that this proxy enforces. Deletes the rows of proxies that were lost long ago, and lost rows of other
/// databases.
pub fn announce_enforced(proxy: &str, fingerprints: &[String]) -> String {
    let fingerprints: Vec<String> = fingerprints.iter().map(|it| quote(it)).collect();
    format!(
        "DELETE FROM fencegate_state.proxy WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM fencegate_state.proxy a \
           WHERE NOT {LIVING} AND (a.announced < clock_timestamp() - {LOST_PROXY_COUNTS} OR NOT {IS_OF_THIS_DATABASE}) \
           FOR UPDATE OF a SKIP LOCKED)); \
         INSERT INTO fencegate_state.proxy AS p (id, pid, backend_start, enforced) \
           SELECT {proxy}, a.pid, a.backend_start, ARRAY[{enforced}]::text[] \
           FROM pg_stat_get_activity(pg_backend_pid()) a \
           ON CONFLICT (id) DO UPDATE SET pid = excluded.pid, backend_start = excluded.backend_start, \
             enforced = excluded.enforced, announced = clock_timestamp(), \
             system_identifier = excluded.system_identifier, database = excluded.database",
        proxy = quote(proxy),
        enforced = fingerprints.join(", "),
    )
}

/// Deletes the row of this proxy, which has no more sessions here.
pub fn leave(proxy: &str) -> String {
    format!("DELETE FROM fencegate_state.proxy WHERE id = {}", quote(proxy))
}

/// One row: whether a client is connected to this database, apart from these sessions and any proxy's control connections.
/// A lost proxy that still has sessions has such a client.
pub fn other_sessions(own: &[Key]) -> String {
    let pids = numbers("integer", own.iter().map(|(pid, _)| pid));
    let starts = texts("numeric", own.iter().map(|(_, start)| start.as_str()));
    format!(
        "SELECT EXISTS (SELECT FROM pg_stat_get_activity(NULL) s LEFT JOIN pg_roles t ON t.oid = s.usesysid \
           WHERE s.datid = {THIS_DATABASE} AND s.backend_type IS NOT DISTINCT FROM 'client backend' AND NOT {} \
             AND (s.pid, extract(epoch FROM s.backend_start)) NOT IN (SELECT * FROM unnest({pids}, {starts})) IS NOT FALSE) \
           AS exist",
        is_control_connection("s", "t")
    )
}

/// Disagreements between these policies and those in force, one per row: resources whose epochs have other policies
/// recorded, and live proxies that enforce a fence outside these policies.
pub fn other_policies(resources: &[Arc<Resource>]) -> String {
    let is_other = |it: &Arc<Resource>| {
        let is_it =
            it.keyed.as_ref().map_or_else(|| format!("e.resource = {}", quote(&it.name)), |it| is_called(&it.names));
        format!("{is_it} AND e.policy_hash <> {}", quote(&it.fingerprint))
    };
    let recorded = |it: &Arc<Resource>| {
        let (name, is_other) = (quote(&it.name), is_other(it));
        format!(
            "SELECT {name} AS resource, NULL AS proxy WHERE EXISTS (SELECT FROM fencegate_state.epoch e WHERE {is_other}) UNION ALL "
        )
    };
    let recorded: String = resources.iter().map(recorded).collect();
    let fingerprints: Vec<String> = resources.iter().map(|it| quote(&it.fingerprint)).collect();
    format!(
        "{recorded}SELECT NULL AS resource, a.id AS proxy FROM fencegate_state.proxy a \
           WHERE {LIVING} AND NOT a.enforced <@ ARRAY[{}]::text[]",
        fingerprints.join(", ")
    )
}

/// One row: whether this role may read the tables that [`other_policies`] reads.
pub fn may_know_policies() -> String {
    // By oid: a name would need USAGE on the schema.
    "SELECT has_schema_privilege(n.oid, 'USAGE') AND (SELECT count(*) = 2 FROM pg_class c WHERE c.relnamespace = n.oid \
         AND c.relname IN ('epoch', 'proxy') AND has_table_privilege(c.oid, 'SELECT')) AS may \
       FROM pg_namespace n WHERE n.nspname = 'fencegate_state'"
        .to_owned()
}

/// For each fence with one of these fingerprints: the numbers of proxies, of lost proxies, and of live proxies that enforce
/// the fence. The second statement's rows are the tables that do not exist.
pub fn enforcement(fingerprints: &[&str], tables: &[&QualifiedName]) -> String {
    let fingerprints: Vec<String> = fingerprints.iter().map(|it| quote(it)).collect();
    format!(
        "SELECT f.fingerprint, count(a.id) AS proxies, count(a.id) FILTER (WHERE NOT a.lives) AS lost, \
           count(a.id) FILTER (WHERE a.lives AND f.fingerprint = ANY (a.enforced)) AS enforcing \
         FROM unnest(ARRAY[{}]::text[]) f(fingerprint) LEFT JOIN (SELECT *, {LIVING} AS lives FROM fencegate_state.proxy a) a \
           ON a.lives OR (a.announced > clock_timestamp() - {LOST_PROXY_COUNTS} AND {IS_OF_THIS_DATABASE}) GROUP BY 1; \
         WITH {} SELECT DISTINCT named.schema, named.name FROM named WHERE NOT EXISTS (SELECT FROM pg_namespace n \
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN {FENCED_KINDS} \
           WHERE n.nspname = named.schema AND c.relname = named.name)",
        fingerprints.join(", "),
        named(tables.iter().copied()),
    )
}
