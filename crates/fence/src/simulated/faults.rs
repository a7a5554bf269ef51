//! Faults of the database, and actions of others between two steps.

use super::server::{Meanwhile, Server, State};
use crate::store::{Found, StoreError};

impl Server {
    /// Whoever connects from now on finds the database like that. The connections that there are break.
    pub fn is_found(&self, found: Found) {
        let mut state = self.state();
        state.found = found;
        state.lose_connections(|_| true);
    }

    /// That is done just before the next Publish or Reset, whose asker has read all it knows before.
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
    /// Why nobody can connect, if so.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        let database = "memory".to_owned();
        match self.found {
            Found::Nothing => None,
            Found::Missing => Some(StoreError::NoDatabase { database }),
            Found::Unprepared => Some(StoreError::Unprepared { database }),
        }
    }
}
