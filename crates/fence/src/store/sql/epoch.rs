//! SQL for epochs: the highest token of each resource, and the policy that fences it.
//!
//! Must never lower a token, except for a reset. Must never write more than the row permits on which the decision was based:
//! a Query may be delayed in the network and arrive after the epoch has changed.

use super::lease::IN_FORCE;
use super::lock::{self, PREPARED, WRITE_LOCKS, advisory_key, holds_lock_on_relations, relations};
use super::prepared::{Prepared, or_null, texts};
use super::{IS_OF_THIS_DATABASE, LIVING, below};
use crate::session::{Epoch, Token};
use fencegate_policy::{Resource, Template};
use fencegate_postgres::sql::{arrays, quote};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Publish. The second statement's count is 1 if the token was raised. The third's row is the current epoch.
///
/// Raises nothing in a generation other than the target's, because a reset has happened since the target was chosen. Raises
/// nothing below `known`, and creates nothing if `known` is set, because the epoch was pruned since. `loaded`: as in
/// [`record_policy`].
pub fn publish(resource: &Resource, target: Epoch, known: Option<Epoch>, loaded: i64) -> String {
    let (name, hash) = (quote(&resource.name), quote(&resource.fingerprint));
    let (generation, token, loaded) = (target.generation.to_string(), target.token.to_string(), loaded.to_string());
    let lowest = or_null(known.map(|known| known.token.to_string()));
    let lease = or_null(resource.lease().map(quote));
    [
        lock::TAKE.execute(&[&name]),
        RAISE.execute(&[&name, &token, &hash, &loaded, &generation, &lowest, &lease]),
        epochs([resource.name.as_str()]),
    ]
    .join("; ")
}

/// A new epoch is above all admissions. If there are any, an operator has deleted their epoch row. The resource's lock is taken
/// first, so each Admit has either committed or will read this epoch. Reads the lease without a lock, because the transaction
/// that waits for this Publish may have renewed it.
pub(super) const RAISE: Prepared = Prepared::new("raise", "text, bigint, text, bigint, bigint, bigint, text", || {
    format!(
        "INSERT INTO fencegate_state.epoch AS e (resource, generation, token, policy_hash, policy_loaded) \
           SELECT $1, 1 + coalesce((SELECT max(a.generation) FROM fencegate_state.admission a WHERE a.resource = $1), 0), $2, $3, $4 \
           WHERE ($6 IS NULL OR EXISTS (SELECT FROM fencegate_state.epoch WHERE resource = $1)) \
             AND ($7 IS NULL OR EXISTS (SELECT FROM fencegate_state.lease l WHERE l.election = $7 AND l.token = $2 AND {IN_FORCE})) \
           ON CONFLICT (resource) DO UPDATE SET token = $2, drained = false, updated = clock_timestamp() \
           WHERE e.generation = $5 AND e.token < $2 AND e.token >= coalesce($6, 0) AND e.policy_hash = $3"
    )
});

/// Reset. The second statement's row is the previous epoch. The third's rows are the live processes that are admitted under
/// higher tokens. The fourth's row is the new epoch, if the previous one was `known`, the policies are the same, and the
/// third statement has no rows or `force` is set. Records the operator's role with it.
///
/// Every Admit holds the lock shared until its row is committed. Reset therefore sees all admissions from before it got the
/// lock, and later Admits read the new epoch. It reads the processes only after it has the lock: the first read in a
/// transaction fixes the view of them.
pub fn reset(resource: &Resource, known: Epoch, token: Token, by: &Operator<'_>, force: bool) -> String {
    let (name, hash) = (quote(&resource.name), quote(&resource.fingerprint));
    let higher =
        format!("FROM fencegate_state.admission a WHERE a.resource = {name} AND a.token > {token} AND {LIVING}");
    let permitted = if force { "true".to_owned() } else { format!("NOT EXISTS (SELECT {higher})") };
    format!(
        "SELECT pg_advisory_xact_lock({key}); \
         SELECT generation, token, policy_hash = {hash} AS same_policy FROM fencegate_state.epoch \
           WHERE resource = {name} FOR UPDATE; \
         SELECT DISTINCT a.pid, a.token, a.proxy {higher} ORDER BY a.token DESC, a.pid; \
         WITH changed AS (UPDATE fencegate_state.epoch SET generation = generation + 1, token = {token}, drained = false, \
             updated = clock_timestamp() WHERE resource = {name} AND policy_hash = {hash} \
             AND (generation, token) = ({generation}, {known_token}) AND {permitted} \
             RETURNING resource, generation, token), \
           kept AS (INSERT INTO fencegate_state.reset (resource, generation, token, role, proxy, forced) \
             SELECT resource, generation, token, {role}, {proxy}, {force} FROM changed) \
           SELECT resource, generation, token FROM changed",
        key = advisory_key(&resource.name),
        generation = known.generation,
        known_token = known.token,
        role = quote(by.role),
        proxy = quote(by.proxy),
    )
}

/// Notifies listeners of changes if the server's notification queue is less than half full, as `fencegate.announce` in
/// `schema.sql` does. COMMIT would fail if the queue were full.
pub fn announce(payloads: &BTreeSet<String>) -> String {
    let payloads = texts("text", payloads.iter().map(String::as_str));
    format!("SELECT pg_notify('fencegate', p) FROM unnest({payloads}) p WHERE {QUEUE_USAGE} < 0.5")
}

/// How full the server's notification queue is, from 0 to 1.
pub fn queue_usage() -> String {
    format!("SELECT {QUEUE_USAGE} AS usage")
}

const QUEUE_USAGE: &str = "pg_notification_queue_usage()";

/// The operator's role that resets a fence, and the proxy that executes the reset.
pub struct Operator<'a> {
    pub role: &'a str,
    pub proxy: &'a str,
}

/// The fences of these resources, with the number of server processes admitted to each. The second statement returns those
/// of keys, at most `most_keys`, the most recently updated first. The third statement's row is the total number of keys.
pub fn fences(resources: &[Arc<Resource>], most_keys: usize) -> String {
    let plain: Vec<String> = resources.iter().filter(|it| it.keyed.is_none()).map(|it| quote(&it.name)).collect();
    let names = resources.iter().filter_map(|resource| resource.keyed.as_ref()).map(|keyed| &keyed.names);
    let of_keys: Vec<String> = ["false".to_owned()].into_iter().chain(names.map(is_called)).collect();
    let (plain, of_keys) = (plain.join(", "), of_keys.join(" OR "));
    let columns = "e.resource, e.generation, e.token, e.drained, \
         (SELECT count(*) FROM fencegate_state.admission a WHERE a.resource = e.resource) AS admissions";
    format!(
        "SELECT {columns} FROM fencegate_state.epoch e WHERE e.resource = ANY (ARRAY[{plain}]::text[]); \
         SELECT {columns} FROM (SELECT * FROM fencegate_state.epoch e WHERE {of_keys} \
           ORDER BY e.updated DESC LIMIT {most_keys}) e ORDER BY e.updated DESC; \
         SELECT count(*) AS keys FROM fencegate_state.epoch e WHERE {of_keys}"
    )
}

/// Mark. The third statement's count is 1 if the epoch is now drained. The fourth's rows are the prepared transactions that
/// block it. Marks nothing under different policies, which may cover other relations.
///
/// The second statement is the first to read the processes, and later statements see the same view. So the locks are read
/// after the processes. In the opposite order, both reads would miss a process that prepares its transaction and ends in
/// between.
pub fn mark(resource: &Resource, epoch: Epoch) -> String {
    let (name, hash) = (quote(&resource.name), quote(&resource.fingerprint));
    let (generation, token) = (epoch.generation.to_string(), epoch.token.to_string());
    let [schemas, tables] = arrays(resource.tables.iter().map(|table| &table.name));
    [
        LOCK.execute(&[&name]),
        COUNT_BELOW.execute(&[&name, &generation, &token]),
        MARK.execute(&[&schemas, &tables, &name, &generation, &token, &hash]),
        PREPARED_WRITERS.execute(&[&schemas, &tables]),
    ]
    .join("; ")
}

pub(super) const LOCK_SHARED: Prepared = Prepared::new("lock_epoch_shared", "text", || {
    "SELECT FROM fencegate_state.epoch WHERE resource = $1 FOR SHARE".to_owned()
});

pub(super) const LOCK: Prepared = Prepared::new("lock_epoch", "text", || {
    "SELECT FROM fencegate_state.epoch WHERE resource = $1 FOR UPDATE".to_owned()
});

pub(super) const COUNT_BELOW: Prepared = Prepared::new("count_below", "text, bigint, bigint", || {
    format!("SELECT count(*) FROM fencegate_state.admission a WHERE {} AND {LIVING}", below("$1", "$2", "$3"))
});

pub(super) const MARK: Prepared = Prepared::new("mark", "name[], name[], text, bigint, bigint, text", || {
    format!(
        "{} UPDATE fencegate_state.epoch e SET drained = true, updated = clock_timestamp() \
           WHERE e.resource = $3 AND e.generation = $4 AND e.token = $5 AND NOT e.drained AND e.policy_hash = $6 \
           AND NOT EXISTS (SELECT FROM fencegate_state.admission a WHERE {} AND {LIVING}) \
           AND NOT ({HAS_PREPARED} AND EXISTS (SELECT FROM pg_locks l WHERE l.pid IS NULL AND {}))",
        relations(),
        below("$3", "$4", "$5"),
        holds_lock_on_relations(WRITE_LOCKS),
    )
});

pub(super) const PREPARED_WRITERS: Prepared = Prepared::new("prepared_writers", "name[], name[]", || {
    format!(
        "{} SELECT DISTINCT p.gid FROM pg_locks l {PREPARED} WHERE l.pid IS NULL AND {HAS_PREPARED} AND {}",
        relations(),
        holds_lock_on_relations(WRITE_LOCKS),
    )
});

/// True if there are prepared transactions. Much cheaper than reading locks. A prepared transaction is listed before its
/// locks lose their process.
const HAS_PREPARED: &str = "EXISTS (SELECT FROM pg_prepared_xact())";

/// The epoch rows of these resources.
pub fn epochs<'a>(resources: impl IntoIterator<Item = &'a str>) -> String {
    READ.execute(&[&texts("text", resources)])
}

pub(super) const READ: Prepared = Prepared::new("epochs", "text[]", || {
    "SELECT resource, generation, token, drained FROM fencegate_state.epoch WHERE resource = ANY ($1)".to_owned()
});

/// The epoch rows that are above admissions granted by this proxy.
pub fn epochs_above_admissions(proxy: &str) -> String {
    format!(
        "SELECT DISTINCT e.resource, e.generation, e.token FROM fencegate_state.epoch e \
         JOIN fencegate_state.admission a ON a.resource = e.resource AND (a.generation, a.token) < (e.generation, e.token) \
         WHERE a.proxy = {} AND {IS_OF_THIS_DATABASE}",
        quote(proxy)
    )
}

/// The time by the database's clock, in microseconds since 1970.
pub fn now() -> String {
    format!("SELECT {NOW} AS now")
}

const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Records the policies of the resource, unless the recorded ones were loaded later. `loaded` is the time at which these
/// policies were loaded, as returned by [`now`]. Updates the time even if the same policies are recorded: they have been
/// loaded again.
pub fn record_policy(resource: &Resource, loaded: i64) -> String {
    format!(
        "UPDATE fencegate_state.epoch e SET {} WHERE e.resource = {} AND {}",
        policy(resource, loaded),
        quote(&resource.name),
        is_older(loaded)
    )
}

/// Records the policy for the keys of a keyed resource, in a page of epoch rows ordered by name. The page is limited by the
/// time of a Query. Writes nothing if the policies are already recorded. Returns the last row of the page.
///
/// Locks the rows in this order, so that two proxies that load at once cannot deadlock. A separate statement changes the
/// rows, so that it sees tokens that were raised before the lock was granted.
pub fn record_policy_of_keys(resource: &Resource, names: &Template, after: &str, loaded: i64) -> String {
    let page = format!(
        "WITH page AS (SELECT max(p.resource) AS last FROM (SELECT resource FROM fencegate_state.epoch \
           WHERE resource > {after} ORDER BY resource LIMIT 10000) p)",
        after = quote(after),
    );
    let is_due = format!(
        "e.resource > {after} AND e.resource <= (SELECT last FROM page) AND {is_called} AND e.policy_hash IS DISTINCT FROM {hash} AND {is_older}",
        after = quote(after),
        is_called = is_called(names),
        hash = quote(&resource.fingerprint),
        is_older = is_older(loaded),
    );
    format!(
        "{page} SELECT count(*) FROM (SELECT FROM fencegate_state.epoch e WHERE {is_due} ORDER BY e.resource FOR UPDATE) locked; \
         {page}, recorded AS (UPDATE fencegate_state.epoch e SET {policy} WHERE {is_due}) SELECT last FROM page",
        policy = policy(resource, loaded),
    )
}

/// The subset of the resources whose rows record different policies that were not loaded earlier.
pub fn superseded(resources: &[Arc<Resource>], loaded: i64) -> String {
    let known: Vec<String> =
        resources.iter().map(|it| format!("({}, {})", quote(&it.name), quote(&it.fingerprint))).collect();
    format!(
        "SELECT e.resource FROM (VALUES {}) k(resource, hash) JOIN fencegate_state.epoch e USING (resource) \
         WHERE e.policy_hash IS DISTINCT FROM k.hash AND NOT {}",
        known.join(", "),
        is_older(loaded)
    )
}

fn policy(resource: &Resource, loaded: i64) -> String {
    format!("policy_hash = {}, policy_loaded = {loaded}", quote(&resource.fingerprint))
}

/// True if the policies of row `e` were loaded earlier. A time in the future means that the clock was set back since. The
/// policies recorded last are then in force, until a proxy finds that its own were loaded later.
fn is_older(loaded: i64) -> String {
    format!("(e.policy_loaded < {loaded} OR e.policy_loaded > {NOW})")
}

/// True if the resource of row `e` is that of a key.
pub(super) fn is_called(names: &Template) -> String {
    let (before, after) = (names.before(), names.after());
    format!(
        "(starts_with(e.resource, {}) AND right(e.resource, {}) = {} AND length(e.resource) >= {})",
        quote(before),
        after.chars().count(),
        quote(after),
        before.chars().count() + after.chars().count(),
    )
}
