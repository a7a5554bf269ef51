//! A lock for each resource in this process, so that one step of an advance runs at a time.
//!
//! Owns the queues. Must never keep an empty queue, because a table may have a resource for every key.

use dashmap::DashMap;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::Mutex;

/// The queues, by resource.
#[derive(Debug, Default)]
pub(super) struct ResourceLocks(DashMap<String, Queue>);

#[derive(Debug, Default)]
struct Queue {
    mutex: Arc<Mutex<()>>,
    /// Number of [`ResourceLock`]s of the queue.
    standing: usize,
}

/// A place in the queue of a resource. Locked during its turn.
pub(super) struct ResourceLock<'a> {
    turns: &'a ResourceLocks,
    resource: String,
    mutex: Arc<Mutex<()>>,
}

impl ResourceLocks {
    /// A place in the resource's queue.
    pub(super) fn of(&self, resource: &str) -> ResourceLock<'_> {
        let mut queue = self.0.entry(resource.to_owned()).or_default();
        queue.standing += 1;
        ResourceLock { turns: self, resource: resource.to_owned(), mutex: queue.mutex.clone() }
    }
}

impl Deref for ResourceLock<'_> {
    type Target = Mutex<()>;

    fn deref(&self) -> &Mutex<()> {
        &self.mutex
    }
}

impl Drop for ResourceLock<'_> {
    fn drop(&mut self) {
        self.turns.0.remove_if_mut(&self.resource, |_, queue| {
            queue.standing -= 1;
            queue.standing == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_kept_while_it_is_in_use() {
        let turns = ResourceLocks::default();
        for number in 0..1000 {
            turns.of(&number.to_string());
        }
        assert!(turns.0.is_empty());
        let (one, two) = (turns.of("r"), turns.of("r"));
        let running = one.try_lock().unwrap();
        assert!(two.try_lock().is_err(), "both share one queue");
        drop(two);
        let three = turns.of("r");
        assert!(three.try_lock().is_err(), "the queue is still in use");
        drop(running);
        drop((one, three));
        assert!(turns.0.is_empty());
    }
}
