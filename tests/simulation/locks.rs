//! Locks of rows, tables and views.
//!
//! Owns the holders of each lock and the processes that wait for it. Must never leave a deadlock unresolved.

use super::sql::Table;
use std::collections::BTreeMap;

/// An object that can be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    Row(Table, u8),
    Table(Table),
    View(u8),
}

/// The lock mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The mode of a process that writes to a table.
    Shared,
    /// The mode of LOCK TABLE, and of a row lock.
    Exclusive,
}

/// Why a lock is not granted.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// Other processes hold it.
    ByOthers,
    /// The holders wait for the requesting process.
    Deadlock,
}

#[derive(Default)]
pub struct Locks {
    held: BTreeMap<Thing, BTreeMap<i32, Mode>>,
    waiting: BTreeMap<i32, Vec<i32>>,
}

impl Locks {
    /// The process acquires the lock, or receives the processes that hold it.
    pub fn take(&mut self, pid: i32, thing: Thing, mode: Mode) -> Result<(), Taken> {
        self.waiting.remove(&pid);
        let held = self.held.entry(thing).or_default();
        let conflicts = |of: Mode| mode == Mode::Exclusive || of == Mode::Exclusive;
        let others: Vec<i32> =
            held.iter().filter(|(other, of)| **other != pid && conflicts(**of)).map(|(other, _)| *other).collect();
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

    /// The process releases all its locks.
    pub fn release(&mut self, pid: i32) {
        self.held.retain(|_, held| {
            held.remove(&pid);
            !held.is_empty()
        });
        self.waiting.remove(&pid);
    }

    /// Returns true if the process holds a lock that no fence covers: on a view, or on a table without a fence.
    pub fn holds_unfenced(&self, pid: i32) -> bool {
        let is_unfenced = |thing: &Thing| match thing {
            Thing::Row(table, _) | Thing::Table(table) => !table.is_fenced(),
            Thing::View(_) => true,
        };
        self.held.iter().any(|(thing, held)| held.contains_key(&pid) && is_unfenced(thing))
    }

    /// Returns true if one of these processes waits for that one, directly or indirectly.
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
    assert_eq!(locks.take(1, table, Mode::Shared), Ok(()));
    assert_eq!(locks.take(2, table, Mode::Shared), Ok(()));
    assert_eq!(locks.take(1, row, Mode::Exclusive), Ok(()));
    assert_eq!(locks.take(2, row, Mode::Exclusive), Err(Taken::ByOthers));
    assert_eq!(locks.take(1, table, Mode::Exclusive), Err(Taken::Deadlock));
    locks.release(1);
    assert_eq!(locks.take(2, row, Mode::Exclusive), Ok(()));
}
