//! The SQL that the simulated world speaks.
//!
//! Owns what clients and the proxy say to the server, as text and as what the server does. Must read every text that it
//! writes, and fail on any other: a statement that the server does not know would be a hole in the simulation.

use std::fmt;

/// The tables. Each but the last is fenced, by the resource of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Its tokens come from an election that the proxies know.
    Jobs,
    /// Its tokens come from anywhere.
    Ticks,
    Notes,
}

impl Table {
    pub const FENCED: [Table; 2] = [Table::Jobs, Table::Ticks];

    pub fn name(self) -> &'static str {
        match self {
            Table::Jobs => "jobs",
            Table::Ticks => "ticks",
            Table::Notes => "notes",
        }
    }

    pub fn is_fenced(self) -> bool {
        self != Table::Notes
    }

    fn read(name: &str) -> Table {
        let known = [Table::Jobs, Table::Ticks, Table::Notes].into_iter().find(|table| table.name() == name);
        known.unwrap_or_else(|| panic!("no such table: {name}"))
    }
}

/// A statement. The id of a write is unlike any other; none: the first parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sql {
    Begin,
    Commit,
    Rollback,
    Savepoint(u8),
    RollbackTo(u8),
    /// `lease.fence`.
    Set {
        value: String,
        local: bool,
    },
    /// The same by a function, which the proxy cannot follow.
    SetConfig {
        value: String,
        local: bool,
    },
    Reset,
    Insert {
        table: Table,
        id: Option<u64>,
    },
    /// Of one row, which it locks.
    Update {
        table: Table,
        row: u8,
        id: Option<u64>,
    },
    /// SELECT ... FOR UPDATE.
    Lock {
        table: Table,
        row: u8,
    },
    /// COPY ... FROM STDIN, a row for each line.
    CopyIn(Table),
    Read,
    /// Takes so many milliseconds.
    Sleep(u64),
    /// An error of the client's own.
    Fail,
    Prepare(u32),
    /// What the proxy has the server raise.
    Raise {
        code: String,
        message: String,
        detail: String,
    },
    /// What the proxy asks about `lease.fence`.
    Question,
    Show(&'static str),
}

const QUESTION: &str = "SELECT pg_catalog.current_setting('lease.fence', true),";
const RAISE: &str = "DO LANGUAGE plpgsql $fencegate$";

impl fmt::Display for Sql {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: &Option<u64>| id.map_or("$1".to_owned(), |id| id.to_string());
        match self {
            Sql::Begin => write!(out, "BEGIN"),
            Sql::Commit => write!(out, "COMMIT"),
            Sql::Rollback => write!(out, "ROLLBACK"),
            Sql::Savepoint(name) => write!(out, "SAVEPOINT s{name}"),
            Sql::RollbackTo(name) => write!(out, "ROLLBACK TO SAVEPOINT s{name}"),
            Sql::Set { value, local: false } => write!(out, "SET lease.fence = '{value}'"),
            Sql::Set { value, local: true } => write!(out, "SET LOCAL lease.fence = '{value}'"),
            Sql::SetConfig { value, local } => write!(out, "SELECT set_config('lease.fence', '{value}', {local})"),
            Sql::Reset => write!(out, "RESET lease.fence"),
            Sql::Insert { table, id: it } => write!(out, "INSERT INTO {} VALUES ({})", table.name(), id(it)),
            Sql::Update { table, row, id: it } => {
                write!(out, "UPDATE {} SET v = {} WHERE k = {row}", table.name(), id(it))
            }
            Sql::Lock { table, row } => write!(out, "SELECT v FROM {} WHERE k = {row} FOR UPDATE", table.name()),
            Sql::CopyIn(table) => write!(out, "COPY {} FROM STDIN", table.name()),
            Sql::Read => write!(out, "SELECT 1"),
            Sql::Sleep(time) => write!(out, "SELECT pg_sleep({time})"),
            Sql::Fail => write!(out, "SELECT 1 / 0"),
            Sql::Prepare(gid) => write!(out, "PREPARE TRANSACTION 'g{gid}'"),
            Sql::Raise { .. } | Sql::Question | Sql::Show(_) => write!(out, "what only the proxy says"),
        }
    }
}

impl Sql {
    /// All statements of a text.
    pub fn read(text: &str) -> Vec<Sql> {
        split(text).into_iter().map(read_one).collect()
    }

    /// The id that it writes, where its text has it.
    pub fn id(&self) -> Option<u64> {
        match self {
            Sql::Insert { id, .. } | Sql::Update { id, .. } => *id,
            _ => None,
        }
    }

    /// The same with the parameter in its place.
    pub fn bound(mut self, parameter: Option<u64>) -> Sql {
        if let Sql::Insert { id, .. } | Sql::Update { id, .. } = &mut self {
            *id = id.or(parameter);
        }
        self
    }
}

/// At semicolons that stand in no dollar quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let from = if rest.starts_with(RAISE) { rest.rfind("$fencegate$").unwrap() } else { 0 };
        let end = rest[from..].find(';').map_or(rest.len(), |at| from + at);
        parts.push(rest[..end].trim());
        rest = rest.get(end + 1..).unwrap_or_default().trim();
    }
    parts
}

fn read_one(text: &str) -> Sql {
    let words: Vec<&str> = text.split([' ', '(', ')']).filter(|word| !word.is_empty()).collect();
    let id = |word: &str| (word != "$1").then(|| word.parse().unwrap());
    let number = |word: &str| word.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap();
    let value = || text.split('\'').rev().nth(1).unwrap().to_owned();
    match words.as_slice() {
        ["BEGIN"] => Sql::Begin,
        ["COMMIT"] => Sql::Commit,
        ["ROLLBACK"] => Sql::Rollback,
        ["SAVEPOINT", name] => Sql::Savepoint(number(name) as u8),
        ["ROLLBACK", "TO", "SAVEPOINT", name] => Sql::RollbackTo(number(name) as u8),
        ["SET", "lease.fence", ..] => Sql::Set { value: value(), local: false },
        ["SET", "LOCAL", "lease.fence", ..] => Sql::Set { value: value(), local: true },
        ["SELECT", "set_config", .., local] => Sql::SetConfig { value: value(), local: *local == "true" },
        ["RESET", "lease.fence"] => Sql::Reset,
        ["INSERT", "INTO", table, "VALUES", it] => Sql::Insert { table: Table::read(table), id: id(it) },
        ["UPDATE", table, "SET", "v", "=", it, "WHERE", "k", "=", row] => {
            Sql::Update { table: Table::read(table), row: number(row) as u8, id: id(it) }
        }
        ["SELECT", "v", "FROM", table, "WHERE", "k", "=", row, "FOR", "UPDATE"] => {
            Sql::Lock { table: Table::read(table), row: number(row) as u8 }
        }
        ["COPY", table, "FROM", "STDIN"] => Sql::CopyIn(Table::read(table)),
        ["SELECT", "1"] => Sql::Read,
        ["SELECT", "pg_sleep", time] => Sql::Sleep(u64::from(number(time))),
        ["SELECT", "1", "/", "0"] => Sql::Fail,
        ["PREPARE", "TRANSACTION", gid] => Sql::Prepare(number(gid)),
        ["SHOW", "role"] => Sql::Show("none"),
        ["SHOW", "session_authorization"] => Sql::Show("app"),
        _ if text.starts_with(QUESTION) => Sql::Question,
        _ if text.starts_with(RAISE) => {
            let part = |name: &str| {
                let quoted = text.split_once(&format!("{name}=$f$"));
                quoted.map(|(_, rest)| rest.split_once("$f$").unwrap().0.to_owned()).unwrap_or_default()
            };
            Sql::Raise { code: part("ERRCODE"), message: part("MESSAGE"), detail: part("DETAIL") }
        }
        _ => panic!("the simulated server does not know: {text}"),
    }
}

#[test]
fn what_is_written_is_read() {
    let value = || "jobs=5, ticks=7".to_owned();
    let all = [
        Sql::Begin,
        Sql::RollbackTo(1),
        Sql::Set { value: value(), local: true },
        Sql::SetConfig { value: value(), local: false },
        Sql::Insert { table: Table::Jobs, id: Some(4) },
        Sql::Update { table: Table::Ticks, row: 1, id: None },
        Sql::Lock { table: Table::Jobs, row: 0 },
        Sql::CopyIn(Table::Notes),
        Sql::Sleep(40),
        Sql::Prepare(3),
        Sql::Fail,
    ];
    let text: Vec<String> = all.iter().map(Sql::to_string).collect();
    assert_eq!(Sql::read(&text.join("; ")), all);
}
