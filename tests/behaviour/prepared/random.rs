//! Random conversations about a few names: the seed says which.

use crate::prepared::Act::{self, Bind, ClosePortal, CloseStatement, Execute, Flush, Parse, Query, Run, Sync};
use crate::prepared::{BROKEN, READ, ROWS, WRITE, WRITE_ROWS};

/// Numbers that look random: xorshift*.
pub struct Random(pub u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // Seeds that are close to each other give streams that are not.
        self.0 = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1);
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        usize::try_from((mixed >> 33) % bound as u64).unwrap()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A few messages that belong together, so that not all fails for want of a name.
    pub fn phrase(&mut self) -> Vec<Act> {
        let (statement, portal) = (self.one_of(&["s", "t", ""]), self.one_of(&["p", "q", ""]));
        let text = self.one_of(&[READ, ROWS, WRITE, WRITE_ROWS, WRITE_ROWS, BROKEN]);
        let limit = self.one_of(&[0, 1]);
        match self.below(10) {
            0 | 1 => vec![CloseStatement(statement), Parse(statement, text)],
            2 => vec![Parse(statement, text), Bind(portal, statement)],
            3 => vec![ClosePortal(portal), Bind(portal, statement), Execute(portal, limit)],
            4 => vec![Bind(portal, statement)],
            5 => vec![Execute(portal, limit), self.one_of(&[Flush, Sync])],
            6 => vec![self.one_of(&[CloseStatement(statement), ClosePortal(portal)])],
            7 => vec![Run(self.one_of(TEXTS))],
            8 => vec![Query(self.one_of(TEXTS))],
            _ => vec![Sync, Query(self.one_of(TEXTS))],
        }
    }
}

/// What SQL can do to names.
#[rustfmt::skip]
const TEXTS: &[&str] = &[
    "BEGIN", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT a", "SAVEPOINT a", "ROLLBACK TO a", "RELEASE a",
    "PREPARE s AS SELECT 'read'", "PREPARE s AS INSERT INTO jobs VALUES (1)", "EXECUTE s", "EXECUTE s",
    "DEALLOCATE s", "DEALLOCATE ALL", "DISCARD ALL", "DISCARD PLANS", "DECLARE c CURSOR FOR VALUES (1), (2), (3)",
    "FETCH c", "FETCH p", "MOVE p", "CLOSE p", "CLOSE ALL", "SELECT nonsense",
];
