//! The rejected statements, and statements that fail at the same place on a direct connection.

pub const WRITE: &str = "INSERT INTO jobs VALUES (1)";

/// Fails and ends an open transaction, because the identifier is too long.
pub const UNPREPARABLE: &str = concat!(
    "PREPARE TRANSACTION '",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "'"
);
/// SQLSTATE of `UNPREPARABLE`.
pub const NOT_PREPARED: &str = "22023";

/// Fails when it runs, not when it is planned.
const DIVISION: &str = "INSERT INTO jobs SELECT 1/(random()*0)::int";

/// A statement that the proxy rejects.
pub struct Rejected {
    pub name: &'static str,
    pub code: &'static str,
    /// The text of DETAIL.
    pub detail: &'static str,
    pub database: &'static str,
    /// Runs before everything else.
    pub setup: &'static str,
    /// Run before the statement, in the same transaction.
    pub before: &'static [&'static str],
    pub statement: &'static str,
    /// Replaces the statement on a direct connection.
    pub reference: &'static str,
    /// COPY FROM STDIN data follows the statement immediately.
    pub copies: bool,
    /// The statement ends a transaction, even a failed one.
    pub ends_transaction: bool,
    /// Runs after the portal has started and before it is resumed.
    pub between: &'static str,
}

/// A write without a token.
fn write() -> Rejected {
    Rejected {
        name: "a write without a token",
        code: "LF002",
        detail: "resource=scheduler",
        database: "postgres",
        setup: "RESET lease.fence",
        before: &[],
        statement: WRITE,
        reference: DIVISION,
        copies: false,
        ends_transaction: false,
        between: "",
    }
}

pub fn missing() -> [Rejected; 1] {
    [write()]
}

/// For a world in which the highest token is 100.
pub fn stale() -> [Rejected; 3] {
    let stale = || Rejected {
        name: "a stale token",
        code: "LF001",
        detail: "resource=scheduler presented=47 highest=100",
        setup: "SET lease.fence = 47",
        ..write()
    };
    let copy_in = Rejected {
        name: "COPY FROM STDIN under a stale token",
        statement: "COPY jobs FROM STDIN",
        reference: "COPY jobs FROM STDIN WHERE 1/0 = 1",
        copies: true,
        ..stale()
    };
    let copy_out = Rejected {
        name: "COPY TO STDOUT of a write under a stale token",
        statement: "COPY (INSERT INTO jobs VALUES (1) RETURNING n) TO STDOUT",
        reference: "COPY (INSERT INTO jobs SELECT 1/0 RETURNING n) TO STDOUT",
        ..stale()
    };
    [stale(), copy_in, copy_out]
}

pub fn invalid() -> [Rejected; 2] {
    let value = Rejected {
        name: "a value that is no token",
        code: "LF003",
        detail: "value=\"x\"",
        statement: "SET lease.fence = 'x'",
        ..write()
    };
    let second = Rejected {
        name: "a second token in a transaction",
        code: "LF003",
        detail: "resource=scheduler presented=48 highest=47",
        setup: "SET lease.fence = 47",
        before: &[WRITE, "SET lease.fence = 48"],
        ..write()
    };
    [value, second]
}

pub fn unverifiable() -> [Rejected; 3] {
    let opaque = |name, statement| Rejected { name, code: "LF004", detail: "", statement, ..write() };
    [
        opaque("DO", "DO $$ BEGIN INSERT INTO jobs VALUES (1); END $$"),
        opaque("CALL", "CALL work()"),
        opaque("EXECUTE of an unknown statement", "EXECUTE unknown"),
    ]
}

pub fn prepare_transaction() -> Rejected {
    Rejected {
        name: "PREPARE TRANSACTION by a holder",
        code: "LF004",
        detail: "",
        setup: "SET lease.fence = 47; DELETE FROM jobs WHERE false",
        statement: "PREPARE TRANSACTION 'hidden'",
        ends_transaction: true,
        ..write()
    }
}

/// `fencegate init` has not been run in this database.
pub fn unavailable() -> [Rejected; 1] {
    let name = "a database without a fence";
    [Rejected { name, code: "LF006", database: "plain", setup: "SET lease.fence = 47", ..write() }]
}

/// Statements that pass when their portal starts and are rejected when it is resumed.
pub fn resumed() -> [Rejected; 2] {
    let missing = || Rejected {
        name: "a token taken away",
        setup: "SET lease.fence = 47",
        statement: "SELECT tick(g) AS n FROM generate_series(1, 3) g",
        reference: "SELECT 1/(2-g) AS n FROM generate_series(1, 3) g",
        between: "RESET lease.fence",
        ..write()
    };
    let second = Rejected {
        name: "a second token",
        code: "LF003",
        detail: "resource=scheduler presented=48 highest=47",
        between: "SET lease.fence = 48",
        ..missing()
    };
    [missing(), second]
}
