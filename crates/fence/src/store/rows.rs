//! Decodes the rows that the database returns.
//!
//! Must never guess: a row that cannot be decoded counts as absent.

use super::{
    Admission, AdmissionRow, Bounded, EpochRow, Fence, Higher, Holder, Key, LeaseState, Marked, Reach, Recorded,
    Report, ResetReport, StoreError, StoredLease, sql,
};
use crate::obstacle::Blocker;
use crate::session::Epoch;
use fencegate_policy::QualifiedName;
use fencegate_postgres::sql::{StatementResult, column, is_true, number, text};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_postgres::SimpleQueryRow;

/// The columns generation and token.
pub(super) fn epoch(row: &SimpleQueryRow) -> Option<Epoch> {
    Some(Epoch { generation: number(row, "generation")?, token: number(row, "token")? })
}

pub(super) fn key(row: &SimpleQueryRow) -> Option<Key> {
    Some((number(row, "pid")?, text(row, "backend_start")?))
}

pub(super) fn standing(row: &SimpleQueryRow) -> Option<EpochRow> {
    Some(EpochRow { resource: text(row, "resource")?, epoch: epoch(row)?, drained: is_true(row, "drained") })
}

pub(super) fn lease(row: &SimpleQueryRow) -> Option<StoredLease> {
    let state = match (is_true(row, "in_force"), is_true(row, "released")) {
        (true, _) => LeaseState::InForce,
        (false, true) => LeaseState::Released,
        (false, false) => LeaseState::Expired,
    };
    let at = |name| column(row, name).and_then(seconds);
    Some(StoredLease {
        election: text(row, "election")?,
        token: number(row, "token")?,
        state,
        holder: text(row, "holder")?,
        role: text(row, "role")?,
        acquired: at("acquired")?,
        renewed: at("renewed")?,
        expires: at("expires")?,
    })
}

pub(super) fn granted(row: &SimpleQueryRow) -> Option<AdmissionRow> {
    let (pid, backend_start) = key(row)?;
    let (resource, version) = (text(row, "resource")?, number(row, "version")?);
    Some(AdmissionRow { pid, backend_start, resource, epoch: epoch(row)?, version, ending: is_true(row, "ending") })
}

pub(super) fn holder(row: &SimpleQueryRow) -> Option<Holder> {
    let granted = granted(row)?;
    let waits = column(row, "waits").map(|waits| format!(", waiting for {waits}")).unwrap_or_default();
    let blocker = Blocker {
        holder: format!("process {} under token {}{waits}", granted.pid, granted.epoch.token),
        query: text(row, "query").unwrap_or_default(),
    };
    Some(Holder { row: granted, proxy: text(row, "proxy").unwrap_or_default(), blocker })
}

/// Reads a row of [`sql::lock::end_blockers`].
pub(super) fn blocker(row: &SimpleQueryRow) -> Blocker {
    let text = |name| column(row, name).unwrap_or_default();
    if let Some(gid) = column(row, "gid") {
        return Blocker { holder: format!("prepared transaction {gid}"), query: String::new() };
    }
    let holder = format!("process {} of role {}, waiting for {}", text("pid"), text("role"), text("waits"));
    Blocker { holder, query: text("query").to_owned() }
}

/// Reads the answers to [`sql::admission::admit`].
pub(super) fn report(answers: &[StatementResult], resource: &str) -> Result<Report, StoreError> {
    let [_, _, inserted, report] = answers else { return Err(StoreError::UnknownForm("Admit")) };
    let Some(row) = report.rows.first() else { return Err(StoreError::UnknownForm("Admit")) };
    let faults = sql::admission::IDENTITY_ITEMS.into_iter();
    let unfenceable = faults.filter(|(item, _)| !is_true(row, item)).map(|(_, fault)| fault).next();
    let recorded = match (is_true(row, "same_policy"), is_true(row, "older_policy")) {
        (true, _) => Recorded::Same,
        (false, true) => Recorded::Older,
        (false, false) => Recorded::Others,
    };
    let standing = |epoch| EpochRow { resource: resource.to_owned(), epoch, drained: is_true(row, "drained") };
    let current = epoch(row).map(|epoch| (standing(epoch), recorded));
    let admission = inserted.rows.first().and_then(|row| Some((granted(row)?, is_true(row, "is_new"))));
    Ok(Report { unfenceable, current, admission })
}

/// Reads the answers to [`sql::epoch::mark`].
pub(super) fn marked(answers: &[StatementResult]) -> Marked {
    let [_, _, update, prepared] = answers else { return Marked::Nothing };
    if update.affected > 0 {
        return Marked::Drained;
    }
    let gids: Vec<String> = prepared.rows.iter().filter_map(|row| text(row, "gid")).collect();
    if gids.is_empty() { Marked::Nothing } else { Marked::Prepared(gids) }
}

/// Reads the answers to [`sql::epoch::reset`].
pub(super) fn reset(answers: &[StatementResult], proxy: &str) -> Result<ResetReport, StoreError> {
    let [_, before, higher, after, ..] = answers else { return Err(StoreError::UnknownForm("a reset")) };
    let read = |row| {
        let is_ours = column(row, "proxy") == Some(proxy);
        Some(Higher { pid: number(row, "pid")?, token: number(row, "token")?, is_ours })
    };
    Ok(ResetReport {
        before: before.rows.first().and_then(epoch),
        same_policy: before.rows.first().is_some_and(|row| is_true(row, "same_policy")),
        higher: higher.rows.iter().filter_map(read).collect(),
        after: after.rows.first().and_then(epoch),
    })
}

pub(super) fn fence(row: &SimpleQueryRow) -> Option<(String, Fence)> {
    let (epoch, admissions) = (epoch(row)?, number(row, "admissions")?);
    Some((text(row, "resource")?, Fence { epoch, drained: is_true(row, "drained"), admissions }))
}

pub(super) fn reach(row: &SimpleQueryRow) -> Option<(String, Reach)> {
    let (proxies, lost, enforcing) = (number(row, "proxies")?, number(row, "lost")?, number(row, "enforcing")?);
    Some((text(row, "fingerprint")?, Reach { proxies, lost, enforcing }))
}

pub(super) fn name(row: &SimpleQueryRow) -> Option<QualifiedName> {
    Some(QualifiedName { schema: text(row, "schema")?, name: text(row, "name")? })
}

pub(super) fn admission(row: &SimpleQueryRow, own_proxy: &str) -> Option<Admission> {
    let proxy = text(row, "proxy")?;
    Some(Admission {
        resource: text(row, "resource")?,
        epoch: epoch(row)?,
        pid: number(row, "pid")?,
        backend_start: column(row, "backend_start").and_then(seconds),
        admitted: column(row, "admitted").and_then(seconds),
        is_ours: proxy == own_proxy,
        proxy,
        is_alive: is_true(row, "alive"),
    })
}

/// Reads a list, and the row that has the number of all its entries in this column.
pub(super) fn bounded<T>(
    [list, count]: [&StatementResult; 2],
    column: &str,
    read: impl Fn(&SimpleQueryRow) -> Option<T>,
) -> Bounded<T> {
    let list: Vec<T> = list.rows.iter().filter_map(read).collect();
    let all = count.rows.first().and_then(|row| number(row, column)).unwrap_or(list.len());
    Bounded { left_out: all.saturating_sub(list.len()), list }
}

/// Seconds since 1970, exact to the microsecond. None if the text is not a time.
pub(crate) fn seconds(seconds: &str) -> Option<SystemTime> {
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(whole.parse().ok()?) + Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_microseconds() {
        let since = |seconds| super::seconds(seconds).map(|it| it.duration_since(UNIX_EPOCH).unwrap().as_micros());
        assert_eq!(since("1795322693.123456"), Some(1_795_322_693_123_456));
        assert_eq!(since("1795322693.5"), Some(1_795_322_693_500_000));
        assert_eq!(since("7"), Some(7_000_000));
        assert_eq!([since("-1"), since(""), since("x.1")], [None; 3]);
    }
}
