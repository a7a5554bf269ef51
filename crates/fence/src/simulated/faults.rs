//! Faults of the database, and actions of other processes between two steps.

use super::server::{Meanwhile, Server, State};
use crate::store::{Found, StoreError};

impl Server {
    /// Sets the fault that new connections find in the database. Breaks the existing connections.
    pub fn is_found(&self, found: Found) {
        let mut state = self.state();
        state.found = found;
        state.lose_connections(|_| true);
    }

    /// Does this just before the next Publish or Reset, whose caller has already read the state.
    pub fn meanwhile(&self, does: impl FnOnce() + Send + 'static) {
        self.state().meanwhile = Meanwhile(Some(Box::new(does)));
    }

    pub(super) fn others_come_first(&self) {
        let first = self.state().meanwhile.0.take();
        if let Some(first) = first {
            first();
        }
    }
}

impl State {
    /// Why connections fail, if they do.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        let database = "memory".to_owned();
        match self.found {
            Found::Nothing => None,
            Found::Missing => Some(StoreError::NoDatabase { database }),
            Found::Unprepared => Some(StoreError::Unprepared { database }),
        }
    }
}
