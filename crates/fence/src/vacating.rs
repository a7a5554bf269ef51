//! Whether a statement waits for exclusive use of the database, such as `DROP DATABASE`.

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time until which a statement waits for exclusive use of the database.
#[derive(Debug, Default)]
pub(super) struct Vacating(Mutex<Option<Instant>>);

impl Vacating {
    /// Returns true if a statement waits. The control connections then close as soon as no session is left.
    pub(super) fn lasts(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }

    /// A statement waits until that time. None: no statement waits.
    pub(super) fn set(&self, until: Option<Instant>) {
        *self.0.lock() = until;
    }
}
