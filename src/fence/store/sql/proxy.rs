//! The SQL about proxies: the fences that each of them enforces.
//!
//! Must never forget a lost one at once: its sessions may go on.

use super::LIVING;
use crate::policy::QualifiedName;
use crate::sql::{named, quote};

/// The time for which a proxy counts after its control connection is lost: its sessions may go on.
const LOST_PROXY_COUNTS: &str = "interval '10 minutes'";

/// Says which fences this proxy enforces. The rows of proxies that were lost long ago go.
pub fn announce_enforced(proxy: &str, fingerprints: &[String]) -> String {
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
pub fn leave(proxy: &str) -> String {
    format!("DELETE FROM fencegate.proxy WHERE id = {}", quote(proxy))
}

/// How far the fences with these fingerprints are enforced: how many proxies there are, how many of them are lost, and how
/// many of the others enforce it. The second statement's rows: the tables that do not exist.
pub fn enforcement(fingerprints: &[&str], tables: &[&QualifiedName]) -> String {
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
