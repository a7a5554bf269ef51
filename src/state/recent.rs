//! The latest rejections, for the console.
//!
//! Owns a bounded ring of them. Must never keep a value of a statement.

use crate::operate::console::Rejected;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of stored rejections.
const MOST: usize = 1000;

/// The latest rejections.
#[derive(Debug, Default)]
pub struct Recent(Mutex<VecDeque<Arc<Rejected>>>);

impl Recent {
    /// Adds a rejection. Removes the oldest if there are too many.
    pub fn push(&self, rejected: Rejected) {
        let mut kept = self.0.lock();
        if kept.len() >= MOST {
            kept.pop_front();
        }
        kept.push_back(Arc::new(rejected));
    }

    /// All rejections, latest first.
    pub fn list(&self) -> Vec<Arc<Rejected>> {
        self.0.lock().iter().rev().cloned().collect()
    }
}
