//! SQL for epochs (the highest token of each resource, and the policy that fences it) and for reading leases.
//!
//! Must never lower a token, except for a reset. Must never write more than the row permits on which the decision was based: a
//! Query may be delayed in the network and arrive after the epoch has changed. Must never write or lock a lease, because a leader's transaction may hold the row for
//! as long as it runs.

use super::FRAGMENTS;
use super::lock::{self, lock_name};
use super::{Prepared, or_null};
use crate::session::{Epoch, Token};
use fencegate_policy::{Resource, Template};
use fencegate_postgres::sql::{array, arrays, quote};
use fencegate_postgres::sql_file::Value::{Count, Number, Part, Sql, Text};
use fencegate_postgres::sql_file::fill;
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

pub(super) const RAISE: Prepared = Prepared::new("raise", || sql_file!("epoch/raise.sql").with(&[]));

/// Reset, if the previous epoch is `known`, and no process is admitted under a higher token or `force` is set.
pub fn reset(resource: &Resource, known: Epoch, token: Token, by: &Operator<'_>, force: bool) -> String {
    let permitted = if force { "true" } else { "NOT EXISTS (SELECT :higher_admissions)" };
    sql_file!("epoch/reset.sql").with(&[
        ("resource", Text(&resource.name)),
        ("lock_name", Text(&lock_name(&resource.name))),
        ("policy", Text(&resource.fingerprint)),
        ("generation", Number(known.generation)),
        ("known_token", Number(known.token)),
        ("token", Number(token)),
        ("permitted", Part(permitted)),
        ("role", Text(by.role)),
        ("proxy", Text(by.proxy)),
        ("force", Sql(&force.to_string())),
    ])
}

/// Notifies listeners of changes.
pub fn announce(payloads: &BTreeSet<String>) -> String {
    let payloads = array("text", payloads.iter().map(String::as_str));
    sql_file!("epoch/announce.sql").with(&[("payloads", Sql(&payloads))])
}

/// How full the server's notification queue is, from 0 to 1.
pub fn queue_usage() -> String {
    sql_file!("epoch/queue_usage.sql").with(&[])
}

/// The operator's role that resets a fence, and the proxy that executes the reset.
pub struct Operator<'a> {
    pub role: &'a str,
    pub proxy: &'a str,
}

/// The fences of these resources, with at most `most_keys` fences of keys.
pub fn fences(resources: &[Arc<Resource>], most_keys: usize) -> String {
    let plain: Vec<String> = resources.iter().filter(|it| it.keyed.is_none()).map(|it| quote(&it.name)).collect();
    let names = resources.iter().filter_map(|resource| resource.keyed.as_ref()).map(|keyed| &keyed.names);
    let of_keys: Vec<String> = ["false".to_owned()].into_iter().chain(names.map(is_called)).collect();
    sql_file!("epoch/fences.sql").with(&[
        ("plain", Sql(&plain.join(", "))),
        ("of_keys", Sql(&of_keys.join(" OR "))),
        ("most_keys", Count(most_keys)),
    ])
}

/// Mark. The third statement's count is 1 if the epoch is now drained. The fourth's rows are the prepared transactions that
/// block it.
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

pub(super) const LOCK_SHARED: Prepared =
    Prepared::new("lock_epoch_shared", || sql_file!("epoch/lock_epoch_shared.sql").with(&[]));

pub(super) const LOCK: Prepared = Prepared::new("lock_epoch", || sql_file!("epoch/lock_epoch.sql").with(&[]));

pub(super) const COUNT_BELOW: Prepared = Prepared::new("count_below", || sql_file!("epoch/count_below.sql").with(&[]));

pub(super) const MARK: Prepared =
    Prepared::new("mark", || sql_file!("epoch/mark.sql").with(&[("modes", Part(":write_locks"))]));

pub(super) const PREPARED_WRITERS: Prepared = Prepared::new("prepared_writers", || {
    sql_file!("epoch/prepared_writers.sql").with(&[("modes", Part(":write_locks"))])
});

/// The epoch rows of these resources.
pub fn epochs<'a>(resources: impl IntoIterator<Item = &'a str>) -> String {
    READ.execute(&[&array("text", resources)])
}

pub(super) const READ: Prepared = Prepared::new("epochs", || sql_file!("epoch/epochs.sql").with(&[]));

/// The epoch rows that are above admissions granted by this proxy.
pub fn epochs_above_admissions(proxy: &str) -> String {
    sql_file!("epoch/epochs_above_admissions.sql").with(&[("proxy", Text(proxy))])
}

/// The time by the database's clock, in microseconds since 1970.
pub fn now() -> String {
    sql_file!("epoch/now.sql").with(&[])
}

/// Records the policies of the resource, unless the recorded ones were loaded later. `loaded` is the time at which these
/// policies were loaded, as returned by [`now`].
pub fn record_policy(resource: &Resource, loaded: i64) -> String {
    sql_file!("epoch/record_policy.sql").with(&[
        ("resource", Text(&resource.name)),
        ("policy", Text(&resource.fingerprint)),
        ("loaded", Number(loaded)),
    ])
}

/// Records the policy for the keys of a keyed resource, in a page of epoch rows ordered by name. Returns the last row of
/// the page.
pub fn record_policy_of_keys(resource: &Resource, names: &Template, after: &str, loaded: i64) -> String {
    let is_called = is_called(names);
    sql_file!("epoch/record_policy_of_keys.sql").with(&[
        ("after_name", Text(after)),
        ("is_called", Sql(&is_called)),
        ("policy", Text(&resource.fingerprint)),
        ("loaded", Number(loaded)),
    ])
}

/// The subset of the resources whose rows record different policies that were not loaded earlier.
pub fn superseded(resources: &[Arc<Resource>], loaded: i64) -> String {
    let known: Vec<String> =
        resources.iter().map(|it| format!("({}, {})", quote(&it.name), quote(&it.fingerprint))).collect();
    sql_file!("epoch/superseded.sql").with(&[("known", Sql(&known.join(", "))), ("loaded", Number(loaded))])
}

/// True if the resource of row `e` is that of a key.
pub(super) fn is_called(names: &Template) -> String {
    let (before, after) = (names.before(), names.after());
    let length = |text: &str| Count(text.chars().count());
    let values = [
        ("before", Text(before)),
        ("after", Text(after)),
        ("after_length", length(after)),
        ("length", length(&[before, after].concat())),
    ];
    fill(":is_called", FRAGMENTS, &values).text
}

/// The existing leases of these elections.
pub fn leases(elections: &[&str]) -> String {
    let names: Vec<String> = elections.iter().map(|it| quote(it)).collect();
    sql_file!("lease/leases.sql").with(&[("elections", Sql(&names.join(", ")))])
}

/// The most recently acquired leases, at most `most`. The second statement's row is their total number.
pub fn all_leases(most: usize) -> String {
    sql_file!("lease/all_leases.sql").with(&[("most", Count(most))])
}
