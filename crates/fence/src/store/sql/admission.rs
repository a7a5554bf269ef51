//! SQL for admissions: which server process may write under which token.
//!
//! Must never
//! - add an admission except under the current token, after the epoch was drained;
//! - delete an admission except in the row version on which the decision was based, because a Query may be delayed in the
//!   network and arrive after the process was admitted again.

use super::{Prepared, numbers};
use super::{epoch, lock};
use crate::obstacle::ProcessFault;
use crate::session::{Epoch, Identity, Token};
use crate::store::{AdmissionRow, DESCRIBED, First};
use fencegate_policy::Resource;
use fencegate_postgres::sql::{array, quote};
use fencegate_postgres::sql_file::Value::{self, Count, Sql};

/// The columns of an identity that must all be true, each with the fault if it is not, as in `is_identified.sql`.
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
pub fn admit(identity: &Identity, resource: &Resource, token: Token, proxy: &str, loaded: i64) -> String {
    let (name, hash) = (quote(&resource.name), quote(&resource.fingerprint));
    let (token, loaded, pid) = (token.to_string(), loaded.to_string(), identity.pid.to_string());
    let [start, server, postmaster] =
        [&identity.backend_start, &identity.system_identifier, &identity.postmaster_start].map(|it| quote(it));
    [
        lock::SHARE.execute(&[&name]),
        epoch::LOCK_SHARED.execute(&[&name]),
        ADMIT.execute(&[&name, &token, &hash, &quote(proxy), &pid, &start, &server, &postmaster]),
        REPORT.execute(&[&name, &hash, &loaded, &pid, &start, &server, &postmaster]),
    ]
    .join("; ")
}

/// The values for `identity.sql`, as reported to the session.
fn reported([pid, start, server, postmaster]: [&str; 4]) -> [(&str, Value<'_>); 4] {
    [
        ("pid", Sql(pid)),
        ("backend_start", Sql(start)),
        ("system_identifier", Sql(server)),
        ("postmaster_start", Sql(postmaster)),
    ]
}

pub(super) const ADMIT: Prepared =
    Prepared::new("admit", || sql_file!("admission/admit.sql").with(&reported(["$5", "$6", "$7", "$8"])));

pub(super) const REPORT: Prepared =
    Prepared::new("report", || sql_file!("admission/report.sql").with(&reported(["$4", "$5", "$6", "$7"])));

/// Admit, to several resources. The second statement's rows are the admissions.
pub fn admit_current(identity: &Identity, wanted: &[(&Resource, Token)], proxy: &str) -> String {
    let names = array("text", wanted.iter().map(|(resource, _)| resource.name.as_str()));
    let arguments = [
        names.clone(),
        numbers("bigint", wanted.iter().map(|(_, token)| token)),
        array("text", wanted.iter().map(|(resource, _)| resource.fingerprint.as_str())),
        quote(proxy),
        identity.pid.to_string(),
        quote(&identity.backend_start),
        quote(&identity.system_identifier),
        quote(&identity.postmaster_start),
    ];
    let admit = ADMIT_CURRENT.execute(&arguments.each_ref().map(String::as_str));
    [lock::TRY_SHARED.execute(&[&names]), admit].join("; ")
}

pub(super) const ADMIT_CURRENT: Prepared = Prepared::new("admit_current", || {
    let reported = reported(["$5", "$6", "$7", "$8"]);
    sql_file!("admission/admit_current.sql").with(&[&reported[..], &[("name", Sql("w.resource"))]].concat())
});

/// First tokens. The second statement's rows are the admissions.
pub fn admit_first(firsts: &[&First], proxy: &str) -> String {
    let of = |read: fn(&First) -> &str| array("text", firsts.iter().map(|first| read(first)));
    let exact = |read: fn(&Identity) -> &str| array("numeric", firsts.iter().map(|first| read(&first.identity)));
    let names = of(|it| &it.resource.name);
    let arguments = [
        quote(proxy),
        names.clone(),
        numbers("bigint", firsts.iter().map(|it| it.token)),
        of(|it| &it.resource.fingerprint),
        numbers("bigint", firsts.iter().map(|it| it.loaded)),
        array("text", firsts.iter().map(|it| it.resource.lease())),
        numbers("integer", firsts.iter().map(|it| it.identity.pid)),
        exact(|it| &it.backend_start),
        exact(|it| &it.system_identifier),
        exact(|it| &it.postmaster_start),
    ];
    [lock::TRY.execute(&[&names]), ADMIT_FIRST.execute(&arguments.each_ref().map(String::as_str))].join("; ")
}

pub(super) const ADMIT_FIRST: Prepared = Prepared::new("admit_first", || {
    let reported = reported(["p.pid", "p.backend_start", "p.system_identifier", "p.postmaster_start"]);
    sql_file!("admission/admit_first.sql").with(&[&reported[..], &[("name", Sql("f.resource"))]].concat())
});

/// All admissions, at most `most`. The second statement's row is their total number.
pub fn all_admissions(most: usize) -> String {
    sql_file!("admission/all_admissions.sql").with(&[("most", Count(most))])
}

/// The admissions to the resource below the epoch.
pub fn holders(resource: &str, bound: Epoch) -> String {
    HOLDERS.execute(&[&quote(resource), &bound.generation.to_string(), &bound.token.to_string()])
}

pub(super) const HOLDERS: Prepared =
    Prepared::new("holders", || sql_file!("admission/holders.sql").with(&[("described", Count(DESCRIBED))]));

/// The admissions of one process.
pub fn admissions(identity: &Identity) -> String {
    OF_PROCESS.execute(&[&identity.pid.to_string(), &quote(&identity.backend_start)])
}

pub(super) const OF_PROCESS: Prepared = Prepared::new("of_process", || sql_file!("admission/of_process.sql").with(&[]));

/// Deletes admissions whose rows are unchanged since they were read. Each comes with the name of its family's lock.
///
/// Keeps the admissions of a process that is being terminated. Also keeps an admission on which the guard has relied for a
/// write in the process's open transaction: the process then holds its process lock, or a lock on that row.
pub fn delete(rows: &[(&AdmissionRow, &str)]) -> String {
    let of = |read: fn(&AdmissionRow) -> i64| numbers("bigint", rows.iter().map(|(row, _)| read(row)));
    let arguments = [
        numbers("integer", rows.iter().map(|(row, _)| row.pid)),
        array("numeric", rows.iter().map(|(row, _)| row.backend_start.as_str())),
        array("text", rows.iter().map(|(row, _)| row.resource.as_str())),
        of(|row| row.epoch.generation),
        of(|row| row.epoch.token),
        numbers("bigint", rows.iter().map(|(row, _)| row.version)),
        array("text", rows.iter().map(|(_, family)| *family)),
    ];
    DELETE.execute(&arguments.each_ref().map(String::as_str))
}

pub(super) const DELETE: Prepared = Prepared::new("delete", || sql_file!("admission/delete.sql").with(&[]));

/// Deletes the rows of dead processes and of other databases: those of one resource below an epoch, or all. Skips rows that
/// another transaction is deleting.
pub fn delete_dead(only: Option<(&str, Epoch)>) -> String {
    let below = |(resource, bound): (&str, Epoch)| {
        DELETE_DEAD_BELOW.execute(&[&quote(resource), &bound.generation.to_string(), &bound.token.to_string()])
    };
    only.map_or_else(|| DELETE_DEAD.execute(&[]), below)
}

pub(super) const DELETE_DEAD_BELOW: Prepared =
    Prepared::new("delete_dead_below", || sql_file!("admission/delete_dead_below.sql").with(&[]));

pub(super) const DELETE_DEAD: Prepared =
    Prepared::new("delete_dead", || sql_file!("admission/delete_dead.sql").with(&[]));

#[cfg(test)]
mod tests {
    use super::super::FRAGMENTS;
    use super::*;

    #[test]
    fn each_item_of_an_identity_is_read_and_checked() {
        let items = IDENTITY_ITEMS.map(|(column, _)| format!("i.{column}"));
        for (name, expected) in [("identity_columns", items.join(", ")), ("is_identified", items.join(" AND "))] {
            assert!(
                FRAGMENTS.iter().any(|(it, text)| *it == name && text.ends_with(&format!("\n{expected}\n"))),
                "{name}"
            );
        }
    }
}
