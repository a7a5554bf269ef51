//! Locks of rows, tables and views.
//!
//! Owns who has which, and who waits for whom. Must never let a circle of processes wait.

use super::sql::Table;
use std::collections::BTreeMap;

/// What can be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    Row(Table, u8),
    Table(Table),
    View(u8),
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// As whoever writes to a table locks it.
    Beside,
    /// As LOCK TABLE does, and as a row is locked.
    Alone,
}

/// Why a lock is not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// Others have it.
    ByOthers,
    /// They wait for whoever asks.
    Deadlock,
}

#[derive(Default)]
pub struct Locks {
    held: BTreeMap<Thing, BTreeMap<i32, Mode>>,
    waiting: BTreeMap<i32, Vec<i32>>,
}

impl Locks {
    /// The process takes the lock, or waits for those that have it.
    pub fn take(&mut self, pid: i32, thing: Thing, mode: Mode) -> Result<(), Taken> {
        self.waiting.remove(&pid);
        let held = self.held.entry(thing).or_default();
        let is_in_the_way = |of: Mode| mode == Mode::Alone || of == Mode::Alone;
        let others: Vec<i32> =
            held.iter().filter(|(other, of)| **other != pid && is_in_the_way(**of)).map(|(other, _)| *other).collect();
        if others.is_empty() {
            let of = held.entry(pid).or_insert(mode);
            *of = mode.max(*of);
            return Ok(());
        }
        if self.wait_for(&others, pid) {
            return Err(Taken::Deadlock);
        }
        self.waiting.insert(pid, others);
        Err(Taken::ByOthers)
    }

    /// The process lets go of all that it has.
    pub fn release(&mut self, pid: i32) {
        self.held.retain(|_, held| {
            held.remove(&pid);
            !held.is_empty()
        });
        self.waiting.remove(&pid);
    }

    /// Some of these wait for that one, by way of whomever.
    fn wait_for(&self, some: &[i32], pid: i32) -> bool {
        let (mut seen, mut left) = (Vec::new(), some.to_vec());
        while let Some(next) = left.pop() {
            if next == pid {
                return true;
            }
            if !seen.contains(&next) {
                seen.push(next);
                left.extend(self.waiting.get(&next).into_iter().flatten());
            }
        }
        false
    }
}

#[test]
fn a_circle_does_not_wait() {
    let (mut locks, row, table) = (Locks::default(), Thing::Row(Table::Jobs, 0), Thing::Table(Table::Jobs));
    assert_eq!(locks.take(1, table, Mode::Beside), Ok(()));
    assert_eq!(locks.take(2, table, Mode::Beside), Ok(()));
    assert_eq!(locks.take(1, row, Mode::Alone), Ok(()));
    assert_eq!(locks.take(2, row, Mode::Alone), Err(Taken::ByOthers));
    assert_eq!(locks.take(1, table, Mode::Alone), Err(Taken::Deadlock));
    locks.release(1);
    assert_eq!(locks.take(2, row, Mode::Alone), Ok(()));
}
