//! SQL for admissions: which server process may write under which token.
//!
//! Must never
//! - add an admission except under the current token, after the epoch was drained;
//! - delete an admission except in the row version on which the decision was based, because a Query may be delayed in the
//!   network and arrive after the process was admitted again.

use super::lease::IN_FORCE;
use super::lock::{self, KEY, process_lock};
use super::prepared::{Prepared, numbers, texts};
use super::process::may_terminate;
use super::{LIVING, THIS_DATABASE, below, epoch};
use crate::first::First;
use crate::obstacle::ProcessFault;
use crate::session::{Epoch, Identity, Token};
use crate::store::{AdmissionRow, DESCRIBED};
use fencegate_policy::Resource;
use fencegate_postgres::sql::quote;

/// The columns of an admission.
const GRANTED: &str = "a.pid, extract(epoch FROM a.backend_start) AS backend_start, a.resource, a.generation, a.token, \
     a.xmin AS version, a.ending";

/// The columns of an identity that must all be true, each with the fault if it is not.
pub const IDENTITY_ITEMS: [(&str, ProcessFault); 7] = [
    ("same_server", ProcessFault::OtherServer),
    ("same_start", ProcessFault::Restarted),
    ("writable", ProcessFault::Standby),
    ("running", ProcessFault::Unseen),
    ("same_process", ProcessFault::OtherProcess),
    ("same_database", ProcessFault::OtherDatabase),
    ("killable", ProcessFault::NotTerminable),
];

/// Admit. The third statement's row is the admission. The fourth's row has everything that the decision needs. `loaded`: as
/// in [`super::epoch::record_policy`].
pub fn admit(who: &Identity, resource: &Resource, token: Token, proxy: &str, loaded: i64) -> String {
    let (name, hash) = (quote(&resource.name), quote(&resource.fingerprint));
    let (token, loaded, pid) = (token.to_string(), loaded.to_string(), who.pid.to_string());
    let [start, server, postmaster] =
        [&who.backend_start, &who.system_identifier, &who.postmaster_start].map(|it| quote(it));
    [
        lock::SHARE.execute(&[&name]),
        epoch::LOCK_SHARED.execute(&[&name]),
        ADMIT.execute(&[&name, &token, &hash, &quote(proxy), &pid, &start, &server, &postmaster]),
        REPORT.execute(&[&name, &hash, &loaded, &pid, &start, &server, &postmaster]),
    ]
    .join("; ")
}

/// An existing admission gets a new version, so that a delayed DELETE for the old version does not affect it. A row of
/// another database becomes a row of this one.
pub(super) const ADMIT: Prepared = Prepared::new(
    "admit",
    "text, bigint, text, text, integer, numeric, bigint, numeric",
    || {
        format!(
            "INSERT INTO fencegate_state.admission AS a (pid, backend_start, resource, generation, token, proxy) \
               SELECT i.pid, i.backend_start, e.resource, e.generation, e.token, $4 \
               FROM fencegate_state.epoch e, {identity} \
               WHERE e.resource = $1 AND e.token = $2 AND e.drained AND e.policy_hash = $3 AND {all} \
               ON CONFLICT (pid, backend_start, resource, generation, token) DO UPDATE SET admitted = clock_timestamp(), \
                 system_identifier = excluded.system_identifier, database = excluded.database \
               RETURNING {GRANTED}, a.xmax = 0 AS is_new",
            identity = identity("$5", ["$6", "$7", "$8"]),
            all = all_items(),
        )
    },
);

pub(super) const REPORT: Prepared = Prepared::new(
    "report",
    "text, text, bigint, integer, numeric, bigint, numeric",
    || {
        format!(
            "SELECT e.generation, e.token, e.drained, e.policy_hash = $2 AS same_policy, \
               e.policy_loaded < $3 AS older_policy, {list} FROM {identity} LEFT JOIN fencegate_state.epoch e ON e.resource = $1",
            identity = identity("$4", ["$5", "$6", "$7"]),
            list = IDENTITY_ITEMS.map(|(column, _)| format!("i.{column}")).join(", "),
        )
    },
);

/// First tokens. The second statement's rows are the admissions. The statement begins after the locks are held, so it sees all
/// earlier admissions to, and epochs of, these resources. It creates an epoch only where none exists, and admits only to epochs
/// that it has created, which no other transaction can have changed.
///
/// `OFFSET 0` prevents a join with the admissions. A join planned while the table was empty would read all admissions for each
/// resource.
pub fn admit_first(firsts: &[&First], proxy: &str) -> String {
    let of = |read: fn(&First) -> &str| texts("text", firsts.iter().map(|first| read(first)));
    let exact = |read: fn(&Identity) -> &str| texts("numeric", firsts.iter().map(|first| read(&first.who)));
    let names = of(|it| &it.resource.name);
    let leases = firsts.iter().map(|it| it.resource.lease().map_or("NULL".to_owned(), quote));
    let arguments = [
        quote(proxy),
        names.clone(),
        numbers("bigint", firsts.iter().map(|it| it.token)),
        of(|it| &it.resource.fingerprint),
        numbers("bigint", firsts.iter().map(|it| it.loaded)),
        numbers("text", leases),
        numbers("integer", firsts.iter().map(|it| it.who.pid)),
        exact(|it| &it.backend_start),
        exact(|it| &it.system_identifier),
        exact(|it| &it.postmaster_start),
    ];
    [lock::TRY.execute(&[&names]), ADMIT_FIRST.execute(&arguments.each_ref().map(String::as_str))].join("; ")
}

pub(super) const ADMIT_FIRST: Prepared = Prepared::new(
    "admit_first",
    "text, text[], bigint[], text[], bigint[], text[], integer[], numeric[], numeric[], numeric[]",
    || {
        format!(
            "WITH fenceable AS MATERIALIZED (SELECT f.*, i.backend_start AS started \
                 FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10) \
                   f(resource, token, hash, loaded, lease, pid, backend_start, system_identifier, postmaster_start) \
                 CROSS JOIN LATERAL {identity} \
                 WHERE {key} = ANY (current_setting('fencegate.locked')::bigint[]) AND {all}), \
               made AS (INSERT INTO fencegate_state.epoch (resource, token, drained, policy_hash, policy_loaded) \
                 SELECT f.resource, f.token, true, f.hash, f.loaded FROM fenceable f \
                 WHERE NOT EXISTS (SELECT FROM fencegate_state.admission a WHERE a.resource = f.resource OFFSET 0) \
                   AND NOT EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.database = current_database()) \
                   AND (f.lease IS NULL OR EXISTS (SELECT FROM fencegate_state.lease l \
                     WHERE l.election = f.lease AND l.token = f.token AND {IN_FORCE})) \
                 ON CONFLICT (resource) DO NOTHING RETURNING resource, generation, token) \
             INSERT INTO fencegate_state.admission AS a (pid, backend_start, resource, generation, token, proxy) \
               SELECT f.pid, f.started, m.resource, m.generation, m.token, $1 FROM made m JOIN fenceable f USING (resource) \
               RETURNING {GRANTED}",
            key = KEY.replace("$1", "f.resource"),
            identity = identity("f.pid", ["f.backend_start", "f.system_identifier", "f.postmaster_start"]),
            all = all_items(),
        )
    },
);

/// The facts about a session's process, `i`. Always exactly one row; missing facts are null, which is never true. The arguments
/// are SQL: the pid, and backend_start, system identifier and postmaster start as reported to the session.
///
/// Only this connection decides whether the server is in recovery. The session's own report, made at its start, is outdated if
/// a standby was promoted since, because a promotion ends no session. It is the same server: postmaster and process are the
/// same, each with the same start to the microsecond.
fn identity(pid: &str, [backend_start, system_identifier, postmaster_start]: [&str; 3]) -> String {
    format!(
        "(SELECT a.pid, a.backend_start, a.pid IS NOT NULL AS running, \
            extract(epoch FROM a.backend_start) = {backend_start} AS same_process, \
            a.datid = {THIS_DATABASE} AS same_database, \
            c.system_identifier = {system_identifier} AS same_server, \
            extract(epoch FROM pg_postmaster_start_time()) = {postmaster_start} AS same_start, \
            NOT pg_is_in_recovery() AS writable, {} AS killable \
          FROM pg_control_system() c LEFT JOIN pg_stat_get_activity({pid}) a ON true \
          LEFT JOIN pg_roles t ON t.oid = a.usesysid) i",
        may_terminate("a", "t"),
    )
}

fn all_items() -> String {
    IDENTITY_ITEMS.map(|(column, _)| format!("i.{column}")).join(" AND ")
}

/// All admissions, at most `most`. The second statement's row is their total number.
pub fn all_admissions(most: usize) -> String {
    format!(
        "SELECT a.resource, a.generation, a.token, a.pid, extract(epoch FROM a.backend_start) AS backend_start, \
           extract(epoch FROM a.admitted) AS admitted, a.proxy, {LIVING} AS alive FROM fencegate_state.admission a \
           ORDER BY a.resource, a.generation, a.token, a.pid LIMIT {most}; \
         SELECT count(*) AS admissions FROM fencegate_state.admission"
    )
}

/// The admissions to the resource below the epoch.
pub fn holders(resource: &str, bound: Epoch) -> String {
    HOLDERS.execute(&[&quote(resource), &bound.generation.to_string(), &bound.token.to_string()])
}

/// Looks up only a few processes, because each lookup reads all of them. `OFFSET 0` prevents a plan that looks up all.
pub(super) const HOLDERS: Prepared = Prepared::new("holders", "text, bigint, bigint", || {
    format!(
        "SELECT {GRANTED}, a.proxy, s.waits, s.query \
         FROM (SELECT *, xmin, row_number() OVER () AS number FROM fencegate_state.admission a WHERE {}) a \
         LEFT JOIN LATERAL (SELECT coalesce(s.wait_event_type || '/' || s.wait_event, 'nothing') AS waits, left(s.query, 60) AS query \
           FROM pg_stat_get_activity(a.pid) s WHERE a.number <= {DESCRIBED} OFFSET 0) s ON true ORDER BY a.number",
        below("$1", "$2", "$3")
    )
});

/// The admissions of one process.
pub fn admissions(who: &Identity) -> String {
    OF_PROCESS.execute(&[&who.pid.to_string(), &quote(&who.backend_start)])
}

pub(super) const OF_PROCESS: Prepared = Prepared::new("of_process", "integer, numeric", || {
    format!(
        "SELECT {GRANTED} FROM fencegate_state.admission a WHERE a.pid = $1 AND extract(epoch FROM a.backend_start) = $2"
    )
});

/// Deletes admissions whose rows are unchanged since they were read. Each comes with the name of its family's lock.
///
/// Keeps the admissions of a process that is being terminated. Also keeps an admission on which the guard has relied for a
/// write in the process's open transaction: the process then holds its process lock, or a lock on that row.
pub fn delete(rows: &[(&AdmissionRow, &str)]) -> String {
    let of = |read: fn(&AdmissionRow) -> i64| numbers("bigint", rows.iter().map(|(row, _)| read(row)));
    let arguments = [
        numbers("integer", rows.iter().map(|(row, _)| row.pid)),
        texts("numeric", rows.iter().map(|(row, _)| row.backend_start.as_str())),
        texts("text", rows.iter().map(|(row, _)| row.resource.as_str())),
        of(|row| row.epoch.generation),
        of(|row| row.epoch.token),
        numbers("bigint", rows.iter().map(|(row, _)| row.version)),
        texts("text", rows.iter().map(|(_, family)| *family)),
    ];
    DELETE.execute(&arguments.each_ref().map(String::as_str))
}

/// The first row lock does not conflict with the guard's. Once it is held, only the guard's lock can block the second.
/// The CTEs are materialized so that, in any plan, the statement tries only the locks of these processes. Another proxy that
/// found its own process's lock taken would conclude that the guard has seen a write.
///
/// Looks up each row by its key, then by its ctid. A join would be planned by the last ANALYZE of the table: one such plan
/// compared every row with every other.
pub(super) const DELETE: Prepared = Prepared::new(
    "delete",
    "integer[], numeric[], text[], bigint[], bigint[], bigint[], text[]",
    || {
        format!(
            "WITH theirs AS MATERIALIZED (SELECT a.place, k.pid, k.family \
               FROM unnest($1, $2, $3, $4, $5, $6, $7) k(pid, backend_start, resource, generation, token, version, family) \
               CROSS JOIN LATERAL (SELECT a.ctid AS place FROM fencegate_state.admission a \
                 WHERE a.pid = k.pid AND a.backend_start = {backend_start} AND a.resource = k.resource \
                   AND a.generation = k.generation AND a.token = k.token AND a.xmin = k.version::text::xid \
                 FOR NO KEY UPDATE) a), \
               free AS MATERIALIZED (SELECT a.place, t.pid, t.family FROM theirs t \
                 CROSS JOIN LATERAL (SELECT a.ctid AS place FROM fencegate_state.admission a WHERE a.ctid = t.place AND NOT a.ending \
                   FOR UPDATE SKIP LOCKED) a) \
             DELETE FROM fencegate_state.admission a WHERE a.ctid = ANY (ARRAY( \
               SELECT f.place FROM free f WHERE pg_try_advisory_xact_lock({lock}))) \
             RETURNING {GRANTED}",
            backend_start = exactly("k.backend_start"),
            lock = process_lock("f.family", "f.pid"),
        )
    },
);

/// The time that many seconds after 1970, exact to the microsecond. A double that counts microseconds is exact until 2255. One
/// that counts seconds with decimals is not.
fn exactly(seconds: &str) -> String {
    format!("timestamptz 'epoch' + ({seconds} * 1000000)::bigint * interval '1 microsecond'")
}

/// Deletes the rows of dead processes and of other databases: those of one resource below an epoch, or all. Skips rows that
/// another transaction is deleting.
pub fn delete_dead(only: Option<(&str, Epoch)>) -> String {
    let below = |(resource, bound): (&str, Epoch)| {
        DELETE_DEAD_BELOW.execute(&[&quote(resource), &bound.generation.to_string(), &bound.token.to_string()])
    };
    only.map_or_else(|| DELETE_DEAD.execute(&[]), below)
}

pub(super) const DELETE_DEAD_BELOW: Prepared =
    Prepared::new("delete_dead_below", "text, bigint, bigint", || delete_dead_if(&below("$1", "$2", "$3")));

pub(super) const DELETE_DEAD: Prepared = Prepared::new("delete_dead", "", || delete_dead_if("true"));

fn delete_dead_if(only: &str) -> String {
    format!(
        "DELETE FROM fencegate_state.admission WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM fencegate_state.admission a \
         WHERE {only} AND NOT {LIVING} FOR UPDATE OF a SKIP LOCKED)) \
         RETURNING pid, extract(epoch FROM backend_start) AS backend_start, token"
    )
}
