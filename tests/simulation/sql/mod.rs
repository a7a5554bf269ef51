//! The SQL of the simulated world.
//!
//! Owns the statements that clients and the proxy send to the server, as text and as operations of the server. Must
//! parse every text that it writes, and fail on any other: an unknown statement would be a hole in the simulation.

mod read;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The tables. Each except the last is fenced by the resource of that name; shards by one resource for each of its
/// keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Its tokens come from an election that the proxies know.
    Jobs,
    /// Its tokens come from any source.
    Ticks,
    Shards,
    Notes,
}

/// The resources of the keys of the table of shards.
pub const SHARDS: [&str; 16] = [
    "shard/0", "shard/1", "shard/2", "shard/3", "shard/4", "shard/5", "shard/6", "shard/7", "shard/8", "shard/9",
    "shard/10", "shard/11", "shard/12", "shard/13", "shard/14", "shard/15",
];

/// A unit with separate tokens: a table, or a key of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence {
    pub table: Table,
    key: Option<u8>,
}

impl Table {
    pub const ALL: [Table; 4] = [Table::Jobs, Table::Ticks, Table::Shards, Table::Notes];
    pub const FENCED: [Table; 3] = [Table::Jobs, Table::Ticks, Table::Shards];

    pub fn name(self) -> &'static str {
        match self {
            Table::Jobs => "jobs",
            Table::Ticks => "ticks",
            Table::Shards => "shards",
            Table::Notes => "notes",
        }
    }

    pub fn is_fenced(self) -> bool {
        self != Table::Notes
    }

    pub fn is_keyed(self) -> bool {
        self == Table::Shards
    }

    /// The unit whose token a write to that row requires. The rows of a keyed table are its keys.
    pub fn fence(self, row: u8) -> Fence {
        Fence { table: self, key: self.is_keyed().then_some(row) }
    }
}

impl Fence {
    /// The name of the resource.
    pub fn name(self) -> &'static str {
        match self.key {
            None => self.table.name(),
            Some(key) => SHARDS[usize::from(key)],
        }
    }

    /// The name in the guard: a keyed resource has the same for all keys.
    pub fn family(self) -> &'static str {
        if self.table.is_keyed() { "shard/{}" } else { self.table.name() }
    }
}

/// Number of rows of a table without keys, to be locked or updated.
pub const ROWS: u8 = 2;

/// The row of a keyed table, if it is the second parameter.
pub const BOUND: u8 = u8::MAX;

/// The first id that belongs to no session: texts contain it as a number.
pub const SHARED: u64 = 1000;

/// The placeholder of the id in a text. The ids of a session are counted from 1, so that sessions share texts: each
/// text is parsed once.
pub fn shown(id: u64) -> u64 {
    id & 0xffff
}

/// The ids of one session.
#[derive(Clone, Debug, Default)]
pub struct Ids(Arc<AtomicU64>);

impl Ids {
    pub fn of(session: u64) -> Ids {
        Ids(Arc::new(AtomicU64::new(session << 16)))
    }

    pub fn next(&self) -> u64 {
        1 + self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// The id of the placeholder in a text of the session.
pub fn meant(shown: u64, session: u64) -> u64 {
    if shown < SHARED { session << 16 | shown } else { shown }
}

/// A statement. The id of a write is unique; none: the first parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sql {
    Begin,
    /// All its statements use one snapshot.
    BeginRepeatable,
    Commit,
    Rollback,
    Savepoint(u8),
    RollbackTo(u8),
    Release(u8),
    /// `lease.fence`.
    Set {
        value: String,
        local: bool,
    },
    /// Sets the token by a function, which the proxy cannot follow.
    SetConfig {
        value: String,
        local: bool,
    },
    Reset,
    /// All settings.
    ResetAll,
    /// `search_path`: only the schema that has other tables of the same names, none of them fenced; or `public`. Not shown:
    /// by a function that does it unseen.
    SetPath {
        other: bool,
        local: bool,
        is_shown: bool,
    },
    Insert {
        table: Table,
        row: u8,
        id: Option<u64>,
    },
    /// Updates one row, which it locks.
    Update {
        table: Table,
        row: u8,
        id: Option<u64>,
    },
    /// Inserts into the table of the view.
    InsertBy {
        view: u8,
        id: Option<u64>,
    },
    /// Calls a function that inserts. Only the guard sees the write.
    Call {
        table: Table,
        row: u8,
        id: Option<u64>,
    },
    CreateView {
        view: u8,
        table: Table,
        replaces: bool,
    },
    DropView(u8),
    /// SELECT ... FOR UPDATE.
    Lock {
        table: Table,
        row: u8,
    },
    /// SELECT ... FOR UPDATE of all rows, one after the other.
    LockAll(Table),
    /// LOCK TABLE.
    LockTable(Table),
    /// COPY ... FROM STDIN, a row for each line.
    CopyIn(Table),
    Read,
    /// Takes that many milliseconds.
    Sleep(u64),
    /// An error by the client itself.
    Fail,
    Prepare(u32),
    /// PREPARE: an INSERT of its parameters.
    PrepareAs {
        name: u8,
        table: Table,
    },
    /// EXECUTE.
    Run {
        name: u8,
        id: Option<u64>,
        key: Option<u8>,
    },
    /// DEALLOCATE; None: of all names.
    Deallocate(Option<u8>),
    DiscardAll,
    /// `standard_conforming_strings`: a backslash in a string is an ordinary character.
    SetPlainStrings {
        are: bool,
        local: bool,
    },
    /// A string followed by a write, unless the server reads the write as part of the string. With plain strings it
    /// does not.
    TwoFaced {
        table: Table,
        id: Option<u64>,
    },
    /// A string.
    Text,
    /// An error that the proxy lets the server raise.
    Raise(String),
    /// The proxy's query for `lease.fence` and the settings for strings.
    Question,
    Show(&'static str),
    ShowPath,
    ShowIdleTimeout,
    /// The function of a fast-path call, which has no text: one for large objects, or one that writes.
    Function {
        is_harmless: bool,
    },
}

impl fmt::Display for Sql {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: &Option<u64>| id.map_or("$1".to_owned(), |id| shown(id).to_string());
        match self {
            Sql::Begin => write!(out, "BEGIN"),
            Sql::BeginRepeatable => write!(out, "BEGIN ISOLATION LEVEL REPEATABLE READ"),
            Sql::Commit => write!(out, "COMMIT"),
            Sql::Rollback => write!(out, "ROLLBACK"),
            Sql::Savepoint(name) => write!(out, "SAVEPOINT s{name}"),
            Sql::RollbackTo(name) => write!(out, "ROLLBACK TO SAVEPOINT s{name}"),
            Sql::Release(name) => write!(out, "RELEASE SAVEPOINT s{name}"),
            Sql::Set { value, local: false } => write!(out, "SET lease.fence = '{value}'"),
            Sql::Set { value, local: true } => write!(out, "SET LOCAL lease.fence = '{value}'"),
            Sql::SetConfig { value, local } => write!(out, "SELECT set_config('lease.fence', '{value}', {local})"),
            Sql::Reset => write!(out, "RESET lease.fence"),
            Sql::ResetAll => write!(out, "RESET ALL"),
            Sql::SetPath { other, is_shown: false, .. } => write!(out, "SELECT look_in('{}')", schema(*other)),
            Sql::SetPath { other, local: false, .. } => write!(out, "SET search_path = {}", schema(*other)),
            Sql::SetPath { other, local: true, .. } => write!(out, "SET LOCAL search_path = {}", schema(*other)),
            Sql::Insert { table, row, id: it } if table.is_keyed() => {
                write!(out, "INSERT INTO {} VALUES ({}, {})", table.name(), key(*row), id(it))
            }
            Sql::Insert { table, id: it, .. } => write!(out, "INSERT INTO {} VALUES ({})", table.name(), id(it)),
            Sql::Update { table, row, id: it } => {
                write!(out, "UPDATE {} SET v = {} WHERE k = {}", table.name(), id(it), key(*row))
            }
            Sql::InsertBy { view, id: it } => write!(out, "INSERT INTO v{view} VALUES ({})", id(it)),
            Sql::Call { table, row, id: it } => write!(out, "SELECT put_{}({row}, {})", table.name(), id(it)),
            Sql::CreateView { view, table, replaces } => {
                let replaces = if *replaces { "OR REPLACE " } else { "" };
                write!(out, "CREATE {replaces}VIEW v{view} AS SELECT * FROM {}", table.name())
            }
            Sql::DropView(view) => write!(out, "DROP VIEW v{view}"),
            Sql::Lock { table, row } => write!(out, "SELECT v FROM {} WHERE k = {row} FOR UPDATE", table.name()),
            Sql::LockAll(table) => write!(out, "SELECT v FROM {} FOR UPDATE", table.name()),
            Sql::LockTable(table) => write!(out, "LOCK TABLE {}", table.name()),
            Sql::CopyIn(table) => write!(out, "COPY {} FROM STDIN", table.name()),
            Sql::Read => write!(out, "SELECT 1"),
            Sql::Sleep(time) => write!(out, "SELECT pg_sleep({time})"),
            Sql::Fail => write!(out, "SELECT 1 / 0"),
            Sql::Prepare(gid) => write!(out, "PREPARE TRANSACTION 'g{gid}'"),
            Sql::PrepareAs { name, table } => {
                write!(out, "PREPARE p{name} AS {}", Sql::Insert { table: *table, row: BOUND, id: None })
            }
            Sql::Run { name, id: it, key: None } => write!(out, "EXECUTE p{name} ({})", id(it)),
            Sql::Run { name, id: it, key: Some(key) } => write!(out, "EXECUTE p{name} ({}, {key})", id(it)),
            Sql::Deallocate(Some(name)) => write!(out, "DEALLOCATE p{name}"),
            Sql::Deallocate(None) => write!(out, "DEALLOCATE ALL"),
            Sql::DiscardAll => write!(out, "DISCARD ALL"),
            Sql::SetPlainStrings { are, local } => {
                let (local, are) = (if *local { "LOCAL " } else { "" }, if *are { "on" } else { "off" });
                write!(out, "SET {local}standard_conforming_strings = {are}")
            }
            Sql::TwoFaced { table, id: it } => {
                write!(out, "SELECT '\\'; INSERT INTO {} VALUES ({}); --'", table.name(), id(it))
            }
            Sql::Text => write!(out, "SELECT ''"),
            Sql::Function { is_harmless } => write!(out, "calls a function, harmless: {is_harmless}"),
            Sql::Raise(_) | Sql::Question | Sql::Show(_) | Sql::ShowPath | Sql::ShowIdleTimeout => {
                write!(out, "what only the proxy says")
            }
        }
    }
}

impl Sql {
    /// The id of the write, if the text has one.
    pub fn id(&self) -> Option<u64> {
        match self {
            Sql::Insert { id, .. }
            | Sql::Update { id, .. }
            | Sql::InsertBy { id, .. }
            | Sql::Call { id, .. }
            | Sql::Run { id, .. }
            | Sql::TwoFaced { id, .. } => *id,
            _ => None,
        }
    }

    /// The statement with parameters in place of the id and the key, if its syntax permits them; and their values.
    pub fn unbound(&self) -> Option<(Sql, Vec<u64>)> {
        let mut unbound = self.clone();
        let values = match &mut unbound {
            Sql::Insert { id, row, table } | Sql::Update { id, row, table } if table.is_keyed() => {
                vec![shown(id.take()?), u64::from(std::mem::replace(row, BOUND))]
            }
            Sql::Insert { id, .. } | Sql::Update { id, .. } | Sql::InsertBy { id, .. } | Sql::Call { id, .. } => {
                vec![shown(id.take()?)]
            }
            _ => return None,
        };
        Some((unbound, values))
    }

    /// The number of its parameters.
    pub fn parameters(&self) -> usize {
        match self {
            Sql::Insert { id: None, row: BOUND, .. } | Sql::Update { id: None, row: BOUND, .. } => 2,
            Sql::Insert { id, .. } | Sql::Update { id, .. } | Sql::InsertBy { id, .. } | Sql::Call { id, .. } => {
                usize::from(id.is_none())
            }
            _ => 0,
        }
    }

    /// The statement with the placeholder replaced by an id of that session.
    pub fn of(mut self, session: u64) -> Sql {
        if let Sql::Insert { id, .. }
        | Sql::Update { id, .. }
        | Sql::InsertBy { id, .. }
        | Sql::Call { id, .. }
        | Sql::Run { id, .. }
        | Sql::TwoFaced { id, .. } = &mut self
        {
            *id = id.map(|shown| meant(shown, session));
        }
        self
    }

    /// The statement with these values of its parameters: the id, and perhaps the key.
    pub fn bound(mut self, values: &[u64]) -> Sql {
        if let (Sql::Insert { row, .. } | Sql::Update { row, .. }, [_, key]) = (&mut self, values) {
            *row = *key as u8;
        }
        if let Sql::Insert { id, .. } | Sql::Update { id, .. } | Sql::InsertBy { id, .. } | Sql::Call { id, .. } =
            &mut self
        {
            *id = id.or(values.first().copied());
        }
        self
    }

    /// Returns true if the server looks up the tables of its portal when the portal is bound, not when it is executed.
    pub fn is_planned(&self) -> bool {
        matches!(self, Sql::Insert { .. } | Sql::Update { .. } | Sql::Lock { .. } | Sql::LockAll(_))
    }

    /// The statement after the server has looked up its table. The tables of the other schema are not fenced.
    pub fn in_schema(mut self, is_other: bool) -> Sql {
        if let Sql::Insert { table, .. }
        | Sql::Update { table, .. }
        | Sql::Lock { table, .. }
        | Sql::LockAll(table)
        | Sql::CopyIn(table)
        | Sql::LockTable(table) = &mut self
            && is_other
        {
            *table = Table::Notes;
        }
        self
    }
}

/// A key, or its parameter.
fn key(row: u8) -> String {
    if row == BOUND { "$2".to_owned() } else { row.to_string() }
}

fn schema(is_other: bool) -> &'static str {
    if is_other { "other" } else { "public" }
}
