//! The latest rejections, for the console.
//!
//! Owns a bounded ring of them. Must never keep a value of a statement.

use super::audit::table_name;
use super::sessions::SessionRecord;
use crate::operate::console::Rejected;
use fencegate_policy::Mode;
use fencegate_session::rejection::Rejection;
use fencegate_statement::Statement;
use fencegate_wire::client_error::ClientError;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

/// The most that are kept.
const MOST: usize = 1000;

/// The latest rejections.
#[derive(Debug, Default)]
pub struct Recent(Mutex<VecDeque<Arc<Rejected>>>);

impl Recent {
    /// One more; the oldest goes when there are too many.
    pub fn push(&self, rejected: Rejected) {
        let mut kept = self.0.lock();
        if kept.len() >= MOST {
            kept.pop_front();
        }
        kept.push_back(Arc::new(rejected));
    }

    /// All of them, the latest first.
    pub fn list(&self) -> Vec<Arc<Rejected>> {
        self.0.lock().iter().rev().cloned().collect()
    }
}

/// The record of a rejection.
pub fn record(
    session: &SessionRecord,
    rejection: &Rejection,
    mode: Mode,
    statement: &Statement,
    resource: Option<&str>,
) -> Rejected {
    let (presented, highest) = rejection.tokens();
    Rejected {
        time: SystemTime::now(),
        session: session.number,
        user: session.user.clone(),
        database: session.database.clone(),
        resource: resource.map(str::to_owned),
        verdict: rejection.kind().label(),
        sqlstate: rejection.text().code,
        presented,
        highest,
        statement: statement.kind.text().to_owned(),
        table: statement.writes.first().map(|write| table_name(&write.relation)),
        mode: mode.name(),
    }
}
