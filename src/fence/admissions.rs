//! The admissions of a database, for people.
//!
//! Must never be asked whether somebody may write: they may have changed since.

use super::control::{ControlError, column, is_true, number};
use super::database::{Database, epoch};
use super::session::Epoch;
use super::sql;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_postgres::SimpleQueryRow;

/// So many are shown of a database.
const MOST: usize = 10_000;

/// A server process that may write to a resource, or might until it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What it is admitted to.
    pub resource: String,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Its process id.
    pub pid: i32,
    /// When it started.
    pub backend_start: Option<SystemTime>,
    /// When it was admitted.
    pub admitted: Option<SystemTime>,
    /// The proxy that admitted it.
    pub proxy: String,
    /// That is this one.
    pub is_ours: bool,
    /// It has not ended. The rows of those that have are deleted before long.
    pub is_alive: bool,
}

/// The admissions of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admissions {
    /// By resource, epoch and process: the first 10,000.
    pub list: Vec<Admission>,
    /// How many more there are.
    pub left_out: usize,
}

impl Database {
    /// Who is admitted to anything, through any proxy. Cancel-safe.
    ///
    /// # Errors
    /// When the database cannot be asked, why.
    pub async fn admissions(self: &Arc<Self>) -> Result<Admissions, String> {
        let answers = self.look(&sql::all_admissions(MOST)).await.map_err(|error: ControlError| error.to_string())?;
        let [list, count] = answers.as_slice() else {
            return Err("the database's answer about the admissions has an unknown form".to_owned());
        };
        let list: Vec<_> = list.rows.iter().filter_map(|row| self.read_admission(row)).collect();
        let all = count.rows.first().and_then(|row| number(row, "admissions")).unwrap_or(list.len());
        Ok(Admissions { left_out: all.saturating_sub(list.len()), list })
    }

    fn read_admission(&self, row: &SimpleQueryRow) -> Option<Admission> {
        let proxy = column(row, "proxy")?.to_owned();
        Some(Admission {
            resource: column(row, "resource")?.to_owned(),
            epoch: epoch(row)?,
            pid: number(row, "pid")?,
            backend_start: column(row, "backend_start").and_then(time),
            admitted: column(row, "admitted").and_then(time),
            is_ours: proxy == self.proxy,
            proxy,
            is_alive: is_true(row, "alive"),
        })
    }
}

/// Seconds since 1970, exact to the microsecond. None for what no clock shows.
fn time(seconds: &str) -> Option<SystemTime> {
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(whole.parse().ok()?) + Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        let since = |seconds| time(seconds).map(|it| it.duration_since(UNIX_EPOCH).unwrap().as_micros());
        assert_eq!(since("1795322693.123456"), Some(1_795_322_693_123_456));
        assert_eq!(since("1795322693.5"), Some(1_795_322_693_500_000));
        assert_eq!(since("7"), Some(7_000_000));
        assert_eq!([since("-1"), since(""), since("x.1")], [None; 3]);
    }
}
