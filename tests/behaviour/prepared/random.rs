//! Random conversations about a few names, determined by the seed.

use crate::prepared::Act::{self, Bind, ClosePortal, CloseStatement, Execute, Flush, Parse, Query, Run, Sync};
use crate::prepared::{BROKEN, READ, ROWS, WRITE, WRITE_ROWS};
use fencegate_testing::dice::Dice;

/// A few related messages, so that not all fail because a name is missing.
pub fn phrase(dice: &mut Dice) -> Vec<Act> {
    let (statement, portal) = (*dice.pick(&["s", "t", ""]), *dice.pick(&["p", "q", ""]));
    let text = *dice.pick(&[READ, ROWS, WRITE, WRITE_ROWS, WRITE_ROWS, BROKEN]);
    let limit = *dice.pick(&[0, 1]);
    let sql = *dice.pick(TEXTS);
    match dice.below(10) {
        0 | 1 => vec![CloseStatement(statement), Parse(statement, text)],
        2 => vec![Parse(statement, text), Bind(portal, statement)],
        3 => vec![ClosePortal(portal), Bind(portal, statement), Execute(portal, limit)],
        4 => vec![Bind(portal, statement)],
        5 => vec![Execute(portal, limit), *dice.pick(&[Flush, Sync])],
        6 => vec![*dice.pick(&[CloseStatement(statement), ClosePortal(portal)])],
        7 => vec![Run(sql)],
        8 => vec![Query(sql)],
        _ => vec![Sync, Query(sql)],
    }
}

/// SQL that affects names.
#[rustfmt::skip]
const TEXTS: &[&str] = &[
    "BEGIN", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT a", "SAVEPOINT a", "ROLLBACK TO a", "RELEASE a",
    "PREPARE s AS SELECT 'read'", "PREPARE s AS INSERT INTO jobs VALUES (1)", "EXECUTE s", "EXECUTE s",
    "DEALLOCATE s", "DEALLOCATE ALL", "DISCARD ALL", "DISCARD PLANS", "DECLARE c CURSOR FOR VALUES (1), (2), (3)",
    "FETCH c", "FETCH p", "MOVE p", "CLOSE p", "CLOSE ALL", "SELECT nonsense",
];
