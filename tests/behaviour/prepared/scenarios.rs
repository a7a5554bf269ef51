//! Uses of names by clients, one at a time.

use crate::prepared::Act::{self, Bind, ClosePortal, CloseStatement, Execute, Flush, Parse, Query, Run, Sync};
use crate::prepared::{BROKEN, READ, ROWS, WRITE, WRITE_ROWS};

/// A name of 64 bytes, which the server truncates to 63.
const LONG_R: &str = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnr";
const LONG_W: &str = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnw";

/// The claim of each scenario, and its messages. The statements and portals belong to one session.
#[rustfmt::skip]
pub const SCENARIOS: &[(&str, &[Act])] = &[
    ("each of two names keeps its own meaning", &[
        Parse("r", READ), Parse("w", WRITE), Sync, Bind("", "r"), Execute("", 0), Sync, Bind("", "w"), Execute("", 0), Sync,
    ]),
    ("a name that exists is not defined again", &[
        Parse("s", WRITE), Sync, Parse("s", READ), Sync, Bind("", "s"), Execute("", 0), Sync,
    ]),
    ("nor by a Parse that is skipped", &[
        Parse("s", WRITE), Sync, Run(BROKEN), CloseStatement("s"), Parse("s", READ), Sync, Bind("", "s"), Execute("", 0), Sync,
    ]),
    ("a failed Parse of a new name leaves nothing", &[
        Parse("s", BROKEN), Sync, Bind("", "s"), Execute("", 0), Sync, Parse("s", READ), Bind("", "s"), Execute("", 0), Sync,
    ]),
    ("a failed Parse of the unnamed statement takes the old one with it", &[
        Parse("", WRITE), Sync, Parse("", BROKEN), Sync, Bind("", ""), Execute("", 0), Sync,
    ]),
    ("a simple query takes the unnamed statement with it, also one that is rejected", &[
        Parse("", READ), Sync, Query(WRITE), Bind("", ""), Execute("", 0), Sync,
    ]),
    ("a name closed and used again", &[
        Parse("s", WRITE), CloseStatement("s"), Parse("s", READ), Bind("", "s"), Execute("", 0), Sync,
        CloseStatement("s"), Parse("s", WRITE), Sync, Bind("", "s"), Execute("", 0), Sync,
    ]),
    ("a closed name does not run", &[
        Parse("s", WRITE), Sync, CloseStatement("s"), Bind("", "s"), Execute("", 0), Sync,
    ]),
    ("a portal outlives the Close of its statement", &[
        Parse("s", WRITE), Bind("p", "s"), CloseStatement("s"), Parse("s", READ), Execute("p", 0), Sync,
    ]),
    ("PREPARE and Bind share their names", &[
        Query("PREPARE s AS INSERT INTO jobs VALUES (1)"), Bind("", "s"), Execute("", 0), Sync,
        Query("DEALLOCATE s; PREPARE s AS SELECT 'read'"), Bind("", "s"), Execute("", 0), Sync,
    ]),
    ("Parse and EXECUTE as well", &[
        Parse("s", WRITE), Sync, Query("EXECUTE s"), Run("EXECUTE s"), Sync, CloseStatement("s"), Parse("s", READ), Sync,
        Query("EXECUTE s"), Run("EXECUTE s"), Sync,
    ]),
    ("PREPARE through the protocol", &[
        Run("PREPARE s AS INSERT INTO jobs VALUES (1)"), Sync, Query("EXECUTE s"), Run("DEALLOCATE s"),
        Run("PREPARE s AS SELECT 'read'"), Run("EXECUTE s"), Sync,
    ]),
    ("DEALLOCATE ALL, DISCARD ALL and DISCARD PLANS", &[
        Parse("s", WRITE), Sync, Query("DISCARD PLANS"), Bind("", "s"), Execute("", 0), Sync,
        Query("DEALLOCATE ALL"), Bind("", "s"), Execute("", 0), Sync, Parse("s", READ), Bind("", "s"), Execute("", 0), Sync,
        Query("DISCARD ALL"), Parse("s", WRITE), Bind("", "s"), Execute("", 0), Sync,
    ]),
    ("a string that ends before it redefines", &[
        Query("PREPARE s AS INSERT INTO jobs VALUES (1)"), Query("SELECT nonsense; DEALLOCATE s; PREPARE s AS SELECT 1"),
        Query("EXECUTE s"), Query("DEALLOCATE s; SELECT nonsense; PREPARE s AS SELECT 1"),
        Query("PREPARE s AS INSERT INTO jobs VALUES (1)"), Query("EXECUTE s"),
    ]),
    ("a string that redefines what it runs", &[
        Query("PREPARE s AS SELECT 'read'"),
        Query("DEALLOCATE s; PREPARE s AS INSERT INTO jobs VALUES (1); EXECUTE s"), Query("EXECUTE s"),
    ]),
    ("what was prepared is not rolled back", &[
        Query("BEGIN"), Query("PREPARE s AS INSERT INTO jobs VALUES (1)"), Parse("t", WRITE), Sync, Query("ROLLBACK"),
        Query("EXECUTE s"), Bind("", "t"), Execute("", 0), Sync,
        Parse("u", WRITE), Run(BROKEN), Sync, Bind("", "u"), Execute("", 0), Sync,
    ]),
    ("a portal bound again after a rollback to a savepoint", &[
        Parse("r", READ), Parse("w", WRITE), Sync, Query("BEGIN"), Query("SAVEPOINT a"), Bind("p", "r"), Sync,
        Query("ROLLBACK TO a"), Bind("p", "w"), Execute("p", 0), Sync,
    ]),
    ("a portal that a rollback took away", &[
        Parse("w", WRITE), Sync, Query("BEGIN"), Query("SAVEPOINT a"), Bind("p", "w"), Sync, Query("ROLLBACK TO a"),
        Execute("p", 0), Sync,
    ]),
    ("a second Bind fails, and the portal is still the first", &[
        Parse("r", READ), Parse("w", WRITE), Sync, Query("BEGIN"), Bind("p", "w"), Sync, Bind("p", "r"), Sync, Execute("p", 0), Sync,
    ]),
    ("portals end with their transaction", &[
        Parse("r", READ), Parse("w", WRITE), Query("BEGIN"), Bind("p", "w"), Sync, Query("COMMIT"), Execute("p", 0), Sync,
        Bind("p", "r"), Execute("p", 0), Sync,
    ]),
    ("a portal with a row limit", &[
        Parse("w", WRITE_ROWS), Parse("r", ROWS), Bind("p", "r"), Execute("p", 1), Execute("p", 1), Flush, Execute("p", 0),
        Bind("", "w"), Execute("", 1), Sync,
    ]),
    ("FETCH and MOVE run what Bind made", &[
        Query("BEGIN"), Query("SAVEPOINT a"), Parse("w", WRITE_ROWS), Bind("p", "w"), Sync, Query("FETCH p"), Query("ROLLBACK TO a"),
        Bind("p", "w"), Run("MOVE p"), Sync,
    ]),
    // The proxy does not track CLOSE and DECLARE. If Bind made a portal of that name a write, a later portal of DECLARE
    // is rejected too.
    ("CLOSE takes a portal away", &[
        Query("BEGIN"), Query("SAVEPOINT a"), Parse("r", ROWS), Parse("w", WRITE_ROWS), Bind("p", "w"), Sync, Query("CLOSE p"),
        Query("FETCH p"), Query("ROLLBACK TO a"), Bind("p", "r"), Execute("p", 1), Sync, Run("CLOSE ALL"), Bind("p", "w"),
        Execute("p", 0), Sync,
    ]),
    ("what DECLARE made is fetched and executed", &[
        Query("BEGIN"), Query("DECLARE p CURSOR FOR VALUES (1), (2), (3)"), Query("FETCH p"), Execute("p", 1), Run("MOVE p"), Sync,
    ]),
    ("Close of the protocol closes what DECLARE made", &[
        Query("BEGIN"), Query("DECLARE p CURSOR FOR VALUES (1), (2)"), Execute("p", 1), ClosePortal("p"),
        Parse("w", WRITE), Bind("p", "w"), Execute("p", 0), Sync,
    ]),
    ("a portal of DECLARE is not bound over", &[
        Query("BEGIN"), Query("DECLARE p CURSOR FOR VALUES (1), (2)"), Parse("w", WRITE), Bind("p", "w"), Sync, Execute("p", 0), Sync,
    ]),
    ("empty names", &[
        Parse("", ""), Bind("", ""), Execute("", 0), Sync, Parse("", WRITE), Bind("", ""), Execute("", 0), Sync,
    ]),
    ("the name of the statement by which the proxy raises its errors", &[
        Parse("fencegate reject", READ), Sync, Run(WRITE), Sync,
    ]),
    ("names that are one at the server", &[
        Parse(LONG_R, READ), Sync, CloseStatement(LONG_W), Parse(LONG_W, WRITE), Sync, Bind("", LONG_R), Execute("", 0), Sync,
        CloseStatement(LONG_R), Parse(LONG_W, READ), Bind(LONG_R, LONG_R), Execute(LONG_W, 0), Sync,
    ]),
];
