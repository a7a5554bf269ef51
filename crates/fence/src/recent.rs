//! A map that forgets entries that were not written recently.

use std::collections::HashMap;

/// Half of the maximum number of entries.
pub(super) const GENERATION: usize = 32 * 1024;

/// When `young` is full, it replaces `old`.
#[derive(Debug)]
pub(super) struct Recent<T> {
    pub(super) young: HashMap<String, T>,
    pub(super) old: HashMap<String, T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<T> Recent<T> {
    pub(super) fn get(&self, resource: &str) -> Option<&T> {
        self.young.get(resource).or_else(|| self.old.get(resource))
    }

    /// Returns the previous value.
    pub(super) fn insert(&mut self, resource: &str, value: T) -> Option<T> {
        if let Some(there) = self.young.get_mut(resource) {
            return Some(std::mem::replace(there, value));
        }
        let before = self.old.remove(resource);
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(resource.to_owned(), value);
        before
    }

    pub(super) fn remove(&mut self, resource: &str) {
        self.young.remove(resource);
        self.old.remove(resource);
    }
}
