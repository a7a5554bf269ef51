//! Parses a text into operations of the server.

use super::{BOUND, Sql, Table};

const QUESTION: &str = "SELECT pg_catalog.current_setting('lease.fence', true),";
const RAISE: &str = "SET fencegate_lf";
const QUOTES: &str = "$fencegate$";

impl Sql {
    /// All statements of a text of that session, with plain strings or not.
    pub fn read(text: &str, plain_strings: bool, session: u64) -> Vec<Sql> {
        split(text, plain_strings).into_iter().map(|one| read_one(one).of(session)).collect()
    }
}

impl Table {
    fn read(name: &str) -> Table {
        Table::ALL.into_iter().find(|table| table.name() == name).unwrap_or_else(|| panic!("no such table: {name}"))
    }
}

/// Splits at semicolons outside quotes, up to a comment.
fn split(text: &str, plain_strings: bool) -> Vec<&str> {
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        let rest = &text[at..];
        match rest.as_bytes()[0] {
            b'\'' => at += string(rest, plain_strings),
            b'$' if rest.starts_with(QUOTES) => at += 2 * QUOTES.len() + rest[QUOTES.len()..].find(QUOTES).unwrap(),
            b'-' if rest.starts_with("--") => break,
            b';' => {
                parts.push(&text[start..at]);
                at += 1;
                start = at;
            }
            _ => at += 1,
        }
    }
    parts.push(&text[start..at]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Length of the string at the start of the text.
fn string(text: &str, is_plain: bool) -> usize {
    let mut at = 1;
    loop {
        match text.as_bytes()[at] {
            b'\'' => return at + 1,
            b'\\' if !is_plain => at += 2,
            _ => at += 1,
        }
    }
}

fn read_one(text: &str) -> Sql {
    let words: Vec<&str> = text.split([' ', '(', ')', ',']).filter(|word| !word.is_empty()).collect();
    let id = |word: &str| (word != "$1").then(|| word.parse().unwrap());
    let number = |word: &str| word.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap();
    let small = |word: &str| number(word) as u8;
    let key = |word: &str| if word == "$2" { BOUND } else { small(word) };
    let value = || text.split('\'').rev().nth(1).unwrap().to_owned();
    match words.as_slice() {
        ["BEGIN"] => Sql::Begin,
        ["BEGIN", "ISOLATION", ..] => Sql::BeginRepeatable,
        ["COMMIT"] => Sql::Commit,
        ["ROLLBACK"] => Sql::Rollback,
        ["SAVEPOINT", name] => Sql::Savepoint(small(name)),
        ["ROLLBACK", "TO", "SAVEPOINT", name] => Sql::RollbackTo(small(name)),
        ["RELEASE", "SAVEPOINT", name] => Sql::Release(small(name)),
        ["SET", "lease.fence", ..] => Sql::Set { value: value(), local: false },
        ["SET", "LOCAL", "lease.fence", ..] => Sql::Set { value: value(), local: true },
        ["SET", rest @ .., "standard_conforming_strings", "=", are] => {
            Sql::SetPlainStrings { are: *are == "on", local: *rest == ["LOCAL"] }
        }
        ["SELECT", "set_config", .., local] => Sql::SetConfig { value: value(), local: *local == "true" },
        ["RESET", "lease.fence"] => Sql::Reset,
        ["RESET", "ALL"] => Sql::ResetAll,
        ["SET", rest @ .., "search_path", "=", schema] => {
            Sql::SetPath { other: *schema == "other", local: *rest == ["LOCAL"], is_shown: true }
        }
        ["SELECT", "look_in", schema] => Sql::SetPath { other: *schema == "'other'", local: false, is_shown: false },
        ["SELECT", call, row, it] if call.starts_with("put_") => {
            Sql::Call { table: Table::read(&call["put_".len()..]), row: small(row), id: id(it) }
        }
        ["INSERT", "INTO", view, "VALUES", it] if is_view(view) => Sql::InsertBy { view: small(view), id: id(it) },
        ["INSERT", "INTO", table, "VALUES", it] => Sql::Insert { table: Table::read(table), row: 0, id: id(it) },
        ["INSERT", "INTO", table, "VALUES", row, it] => {
            Sql::Insert { table: Table::read(table), row: key(row), id: id(it) }
        }
        ["UPDATE", table, "SET", "v", "=", it, "WHERE", "k", "=", row] => {
            Sql::Update { table: Table::read(table), row: key(row), id: id(it) }
        }
        ["CREATE", "VIEW", view, .., table] => {
            Sql::CreateView { view: small(view), table: Table::read(table), replaces: false }
        }
        ["CREATE", "OR", "REPLACE", "VIEW", view, .., table] => {
            Sql::CreateView { view: small(view), table: Table::read(table), replaces: true }
        }
        ["DROP", "VIEW", view] => Sql::DropView(small(view)),
        ["SELECT", "v", "FROM", table, "WHERE", "k", "=", row, "FOR", "UPDATE"] => {
            Sql::Lock { table: Table::read(table), row: small(row) }
        }
        ["SELECT", "v", "FROM", table, "FOR", "UPDATE"] => Sql::LockAll(Table::read(table)),
        ["LOCK", "TABLE", table] => Sql::LockTable(Table::read(table)),
        ["COPY", table, "FROM", "STDIN"] => Sql::CopyIn(Table::read(table)),
        ["SELECT", "1"] => Sql::Read,
        ["SELECT", "pg_sleep", time] => Sql::Sleep(u64::from(number(time))),
        ["SELECT", "1", "/", "0"] => Sql::Fail,
        ["PREPARE", "TRANSACTION", gid] => Sql::Prepare(number(gid)),
        ["PREPARE", name, "AS", "INSERT", "INTO", table, ..] => {
            Sql::PrepareAs { name: small(name), table: Table::read(table) }
        }
        ["EXECUTE", name, it] => Sql::Run { name: small(name), id: id(it), key: None },
        ["EXECUTE", name, it, key] => Sql::Run { name: small(name), id: id(it), key: Some(small(key)) },
        ["DEALLOCATE", "ALL"] => Sql::Deallocate(None),
        ["DEALLOCATE", name] => Sql::Deallocate(Some(small(name))),
        ["DISCARD", "ALL"] => Sql::DiscardAll,
        ["SHOW", "role"] => Sql::Show("none"),
        ["SHOW", "session_authorization"] => Sql::Show("app"),
        ["SHOW", "search_path"] => Sql::ShowPath,
        ["SHOW", "idle_session_timeout" | "idle_in_transaction_session_timeout"] => Sql::ShowIdleTimeout,
        // Short enough that some Admits time out.
        ["SHOW", "transaction_timeout"] => Sql::Show("100ms"),
        _ if text.starts_with(QUESTION) => Sql::Question,
        ["SET", parameter, "=", "1"] if text.starts_with(RAISE) => Sql::Raise((*parameter).to_owned()),
        ["SELECT", ..] if text.starts_with("SELECT '") && text.ends_with('\'') => Sql::Text,
        _ => panic!("the simulated server does not know: {text}"),
    }
}

fn is_view(name: &str) -> bool {
    name.strip_prefix('v').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

#[test]
fn what_is_written_is_read() {
    let value = || "jobs=5, ticks=7".to_owned();
    let all = [
        Sql::Begin,
        Sql::BeginRepeatable,
        Sql::RollbackTo(1),
        Sql::Release(0),
        Sql::ResetAll,
        Sql::Set { value: value(), local: true },
        Sql::SetConfig { value: value(), local: false },
        Sql::Insert { table: Table::Jobs, row: 0, id: Some(4) },
        Sql::Insert { table: Table::Shards, row: 1, id: Some(4) },
        Sql::Insert { table: Table::Shards, row: BOUND, id: None },
        Sql::Update { table: Table::Ticks, row: 1, id: None },
        Sql::Update { table: Table::Shards, row: BOUND, id: None },
        Sql::InsertBy { view: 1, id: None },
        Sql::SetPath { other: true, local: false, is_shown: false },
        Sql::SetPath { other: true, local: true, is_shown: true },
        Sql::SetPath { other: false, local: false, is_shown: true },
        Sql::Call { table: Table::Shards, row: 3, id: Some(5) },
        Sql::CreateView { view: 1, table: Table::Jobs, replaces: true },
        Sql::CreateView { view: 2, table: Table::Notes, replaces: false },
        Sql::DropView(1),
        Sql::Lock { table: Table::Jobs, row: 0 },
        Sql::LockAll(Table::Ticks),
        Sql::LockTable(Table::Jobs),
        Sql::CopyIn(Table::Notes),
        Sql::Sleep(40),
        Sql::Prepare(3),
        Sql::PrepareAs { name: 2, table: Table::Jobs },
        Sql::PrepareAs { name: 3, table: Table::Shards },
        Sql::Run { name: 2, id: Some(7), key: None },
        Sql::Run { name: 3, id: Some(8), key: Some(4) },
        Sql::Deallocate(Some(2)),
        Sql::Deallocate(None),
        Sql::DiscardAll,
        Sql::SetPlainStrings { are: false, local: false },
        Sql::SetPlainStrings { are: true, local: true },
        Sql::Fail,
    ];
    let text: Vec<String> = all.iter().map(Sql::to_string).collect();
    assert_eq!(Sql::read(&text.join("; "), true, 0), all);
    let text = Sql::TwoFaced { table: Table::Jobs, id: Some(9) }.to_string();
    assert_eq!(Sql::read(&text, false, 0), [Sql::Text]);
    let id = Some(7 << 16 | 9);
    assert_eq!(Sql::read(&text, true, 7), [Sql::Text, Sql::Insert { table: Table::Jobs, row: 0, id }]);
}
