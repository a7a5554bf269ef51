//! One server process: it reads messages, does what they say, and answers.
//!
//! Owns the protocol's server half, the transaction and `lease.fence`. Every statement takes a moment, before and after it
//! takes effect; the process may be ended or cancelled in each of them.

use super::judge::Write;
use super::pipe::{Reader, Writer};
use super::server::{Signals, qualified};
use super::sql::{Sql, Table};
use super::world::{Dice, World, moment, pass};
use crate::fence::session::Identity;
use crate::fence::value::FenceValue;
use crate::wire::frame::{Header, body, put_frame, split_string};
use crate::wire::tag::{backend, frontend};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::HashMap;
use std::sync::Arc;

pub struct Process {
    world: Arc<World>,
    who: Identity,
    input: Reader,
    output: Writer,
    read: BytesMut,
    /// Said, and not sent.
    said: BytesMut,
    signals: Arc<Signals>,
    dice: Dice,
    setting: Setting,
    transaction: Option<Transaction>,
    statements: HashMap<String, Option<Sql>>,
    portals: HashMap<String, Option<Sql>>,
    /// After an error, up to a Sync.
    skips: bool,
}

/// `lease.fence`.
#[derive(Clone, Default)]
struct Setting {
    startup: Option<String>,
    session: Option<String>,
    local: Option<Option<String>>,
}

#[derive(Default)]
struct Transaction {
    /// BEGIN was said.
    is_block: bool,
    failed: bool,
    writes: Vec<Write>,
    /// The setting before it.
    before: Setting,
    savepoints: Vec<(u8, Setting, usize)>,
}

/// Why a statement is not done.
struct Trouble {
    code: String,
    message: String,
    detail: String,
    /// The process ends.
    is_fatal: bool,
}

fn trouble(code: &str, message: &str) -> Trouble {
    Trouble { code: code.to_owned(), message: message.to_owned(), detail: String::new(), is_fatal: false }
}

fn told_to_end() -> Trouble {
    Trouble { is_fatal: true, ..trouble("57P01", "terminating connection due to administrator command") }
}

/// What a statement answers: rows, and its tag.
type Answer = (Vec<Vec<Option<String>>>, &'static str);

impl Process {
    pub fn new(
        world: Arc<World>,
        who: Identity,
        input: Reader,
        output: Writer,
        signals: Arc<Signals>,
        value: Option<String>,
    ) -> Self {
        let setting = Setting { startup: value.clone(), session: value, local: None };
        Process {
            dice: world.dice(),
            world,
            who,
            input,
            output,
            read: BytesMut::new(),
            said: BytesMut::new(),
            signals,
            setting,
            transaction: None,
            statements: HashMap::new(),
            portals: HashMap::new(),
            skips: false,
        }
    }

    pub async fn run(mut self) {
        let end = loop {
            match self.message().await {
                Ok(Some(frame)) if frame[0] == frontend::TERMINATE => break None,
                Ok(Some(frame)) => {
                    if let Err(trouble) = self.handle(frame).await {
                        break Some(trouble);
                    }
                }
                Ok(None) => break None,
                Err(trouble) => break Some(trouble),
            }
        };
        self.roll_back();
        // Its locks are gone before it is.
        moment(&mut self.dice).await;
        if let Some(trouble) = end.filter(|_| self.dice.chance(80)) {
            self.say_error(&trouble);
        }
        let pid = self.who.pid;
        self.world.say(|| format!("process {pid} ends"));
        self.world.server.ended(pid);
    }

    /// The next message; None at the end.
    async fn message(&mut self) -> Result<Option<Bytes>, Trouble> {
        loop {
            if let Some(header) = Header::from_client(&self.read).unwrap()
                && self.read.len() >= header.frame()
            {
                return Ok(Some(self.read.split_to(header.frame()).freeze()));
            }
            let chunk = tokio::select! {
                biased;
                () = self.signals.told_to_end() => return Err(told_to_end()),
                chunk = self.input.read() => chunk,
            };
            match chunk {
                Some(chunk) => self.read.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    /// Err: the process ends.
    async fn handle(&mut self, frame: Bytes) -> Result<(), Trouble> {
        let content = body(&frame);
        match frame[0] {
            frontend::SYNC => {
                self.skips = false;
                if self.transaction.as_ref().is_some_and(|it| !it.is_block) {
                    self.commit();
                }
                self.ready();
                return Ok(());
            }
            _ if self.skips => return Ok(()),
            frontend::QUERY => return self.query(split_string(content).unwrap().0).await,
            frontend::FLUSH => {
                self.flush();
                return Ok(());
            }
            _ => {}
        }
        let outcome = self.extended(frame[0], content).await;
        if self.dice.chance(30) {
            self.flush();
        }
        match outcome {
            Err(trouble) if trouble.is_fatal => Err(trouble),
            Err(trouble) => {
                self.fail(&trouble);
                self.skips = true;
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn extended(&mut self, tag: u8, content: &[u8]) -> Result<(), Trouble> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match tag {
            frontend::PARSE => {
                let (name, rest) = split_string(content).unwrap();
                let mut statements = Sql::read(&text(split_string(rest).unwrap().0));
                assert!(statements.len() <= 1);
                self.statements.insert(text(name), statements.pop());
                self.say(backend::PARSE_COMPLETE, &[]);
            }
            frontend::BIND => {
                let (portal, rest) = split_string(content).unwrap();
                let (statement, rest) = split_string(rest).unwrap();
                let Some(sql) = self.statements.get(&text(statement)) else {
                    return Err(trouble("26000", "prepared statement does not exist"));
                };
                let bound = sql.clone().map(|sql| sql.bound(parameter(rest)));
                self.portals.insert(text(portal), bound);
                self.say(backend::BIND_COMPLETE, &[]);
            }
            frontend::DESCRIBE => self.say(backend::NO_DATA, &[]),
            frontend::EXECUTE => {
                let portal = text(split_string(content).unwrap().0);
                let Some(sql) = self.portals.get(&portal) else {
                    return Err(trouble("34000", "portal does not exist"));
                };
                match sql.clone() {
                    Some(sql) => {
                        let answer = self.execute(&sql).await?;
                        self.answer(answer);
                    }
                    None => self.say(backend::EMPTY_QUERY, &[]),
                }
            }
            frontend::CLOSE => {
                let name = text(split_string(&content[1..]).unwrap().0);
                if content[0] == b'S' {
                    self.statements.remove(&name)
                } else {
                    self.portals.remove(&name)
                };
                self.say(backend::CLOSE_COMPLETE, &[]);
            }
            // Of a COPY that has failed.
            frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL => {}
            other => panic!("the simulated server does not know messages {}", other as char),
        }
        Ok(())
    }

    async fn query(&mut self, text: &[u8]) -> Result<(), Trouble> {
        let statements = Sql::read(std::str::from_utf8(text).unwrap());
        self.statements.remove("");
        if statements.is_empty() {
            self.say(backend::EMPTY_QUERY, &[]);
        }
        let count = statements.len();
        for (index, sql) in statements.iter().enumerate() {
            match self.execute(sql).await {
                Ok(answer) => {
                    if index + 1 == count && self.transaction.as_ref().is_some_and(|it| !it.is_block) {
                        self.commit();
                    }
                    self.answer(answer);
                }
                Err(trouble) if trouble.is_fatal => return Err(trouble),
                Err(trouble) => {
                    self.fail(&trouble);
                    break;
                }
            }
        }
        moment(&mut self.dice).await;
        self.ready();
        Ok(())
    }

    async fn execute(&mut self, sql: &Sql) -> Result<Answer, Trouble> {
        let ends_block = matches!(sql, Sql::Commit | Sql::Rollback | Sql::RollbackTo(_) | Sql::Prepare(_));
        if self.transaction.as_ref().is_some_and(|it| it.failed) && !ends_block {
            return Err(trouble("25P02", "current transaction is aborted"));
        }
        if self.transaction.is_none() {
            self.transaction = Some(Transaction { before: self.setting.clone(), ..Transaction::default() });
        }
        self.work().await?;
        let answer = self.effect(sql).await?;
        match self.work().await {
            // It is too late to leave off what has ended a transaction.
            Err(trouble) if trouble.is_fatal || self.transaction.is_some() => Err(trouble),
            _ => Ok(answer),
        }
    }

    /// A moment in which the process may be ended or cancelled.
    async fn work(&mut self) -> Result<(), Trouble> {
        tokio::select! {
            biased;
            () = self.signals.told_to_end() => return Err(told_to_end()),
            () = moment(&mut self.dice) => {}
        }
        if self.signals.take_cancel() {
            return Err(trouble("57014", "canceling statement due to user request"));
        }
        Ok(())
    }

    async fn effect(&mut self, sql: &Sql) -> Result<Answer, Trouble> {
        let pid = self.who.pid;
        let none = Vec::new;
        Ok(match sql {
            Sql::Begin => {
                self.transaction().is_block = true;
                (none(), "BEGIN")
            }
            Sql::Commit => match self.transaction().failed {
                true => {
                    self.roll_back();
                    (none(), "ROLLBACK")
                }
                false => {
                    self.commit();
                    (none(), "COMMIT")
                }
            },
            Sql::Rollback => {
                self.roll_back();
                (none(), "ROLLBACK")
            }
            Sql::Savepoint(name) => {
                let (setting, transaction) = (self.setting.clone(), self.transaction());
                if !transaction.is_block {
                    return Err(trouble("25P01", "SAVEPOINT can only be used in transaction blocks"));
                }
                let length = transaction.writes.len();
                transaction.savepoints.push((*name, setting, length));
                (none(), "SAVEPOINT")
            }
            Sql::RollbackTo(name) => {
                let transaction = self.transaction();
                let Some(at) = transaction.savepoints.iter().rposition(|(it, ..)| it == name) else {
                    return Err(trouble("3B001", "savepoint does not exist"));
                };
                transaction.savepoints.truncate(at + 1);
                let (_, setting, length) = transaction.savepoints[at].clone();
                transaction.writes.truncate(length);
                transaction.failed = false;
                self.setting = setting;
                (none(), "ROLLBACK")
            }
            Sql::Set { value, local } => {
                self.setting.set(value, *local);
                (none(), "SET")
            }
            Sql::SetConfig { value, local } => {
                self.setting.set(value, *local);
                (vec![vec![Some(value.clone())]], "SELECT 1")
            }
            Sql::Reset => {
                (self.setting.session, self.setting.local) = (self.setting.startup.clone(), None);
                (none(), "RESET")
            }
            Sql::Insert { table, id } => {
                self.write(*table, id.unwrap())?;
                (none(), "INSERT 0 1")
            }
            Sql::Update { table, row, id } => {
                self.lock(*table, *row).await?;
                self.write(*table, id.unwrap())?;
                (none(), "UPDATE 1")
            }
            Sql::Lock { table, row } => {
                self.lock(*table, *row).await?;
                self.world.server.store.write(pid, &qualified(*table), true);
                (none(), "SELECT 0")
            }
            Sql::CopyIn(table) => {
                self.copy_in(*table).await?;
                (none(), "COPY 1")
            }
            Sql::Read => (vec![vec![Some("1".to_owned())]], "SELECT 1"),
            Sql::Sleep(time) => {
                let (signals, dice) = (self.signals.clone(), &mut self.dice);
                tokio::select! {
                    biased;
                    () = signals.told_to_end() => return Err(told_to_end()),
                    () = pass(dice, *time as usize) => {}
                }
                (vec![vec![Some(String::new())]], "SELECT 1")
            }
            Sql::Fail => return Err(trouble("22012", "division by zero")),
            Sql::Prepare(gid) => {
                if self.transaction().failed || !self.transaction().is_block {
                    self.roll_back();
                    return Ok((none(), "ROLLBACK"));
                }
                let writes = self.transaction.take().unwrap().writes;
                if writes.iter().any(|write| write.table.is_fenced()) {
                    self.world.judge.object("writes to a fenced table are prepared".to_owned());
                }
                self.setting.local = None;
                if !writes.is_empty() {
                    self.world.server.store.prepare(pid, &format!("g{gid}"));
                }
                self.world.server.unlock(pid);
                (none(), "PREPARE TRANSACTION")
            }
            Sql::Raise { code, message, detail } => {
                return Err(Trouble { detail: detail.clone(), ..trouble(code, message) });
            }
            Sql::Question => {
                let path = "{pg_catalog,public}".to_owned();
                let value = self.setting.current().cloned();
                (vec![vec![value, Some("on".to_owned()), Some("UTF8".to_owned()), Some(path)]], "SELECT 1")
            }
            Sql::Show(value) => (vec![vec![Some((*value).to_owned())]], "SHOW"),
        })
    }

    fn transaction(&mut self) -> &mut Transaction {
        self.transaction.get_or_insert_default()
    }

    async fn lock(&mut self, table: Table, row: u8) -> Result<(), Trouble> {
        loop {
            let world = self.world.clone();
            let released = world.server.released.notified();
            match world.server.lock(self.who.pid, (table, row)) {
                Ok(()) => return Ok(()),
                Err(None) => return Err(trouble("40P01", "deadlock detected")),
                Err(Some(_)) => tokio::select! {
                    biased;
                    () = self.signals.told_to_end() => return Err(told_to_end()),
                    () = released => {}
                },
            }
            if self.signals.take_cancel() {
                return Err(trouble("57014", "canceling statement due to user request"));
            }
        }
    }

    /// A write takes effect. What it may be done under is looked at here: an admission of this very process.
    fn write(&mut self, table: Table, id: u64) -> Result<(), Trouble> {
        let pid = self.who.pid;
        let value = self.setting.current().map(String::as_str).unwrap_or_default();
        let token = match FenceValue::parse(value) {
            Ok(FenceValue::One(token)) => Some(token),
            Ok(FenceValue::List(list)) => list.iter().find(|(name, _)| name == table.name()).map(|(_, token)| *token),
            _ => None,
        };
        let epoch = token.filter(|_| table.is_fenced()).and_then(|it| self.world.server.admission(pid, table, it));
        if table.is_fenced() && epoch.is_none() {
            let why = format!("process {pid} writes {id} to {} under {value:?}, not admitted", table.name());
            self.world.judge.object(why);
        }
        self.world.say(|| format!("process {pid} writes {id} to {} under {epoch:?}", table.name()));
        self.world.server.store.write(pid, &qualified(table), false);
        self.transaction().writes.push(Write { id, table, epoch });
        Ok(())
    }

    async fn copy_in(&mut self, table: Table) -> Result<(), Trouble> {
        self.say(backend::COPY_IN, &[0, 0, 0]);
        self.flush();
        let mut text = Vec::new();
        loop {
            let Some(frame) = self.message().await? else { return Err(told_to_end()) };
            match frame[0] {
                frontend::COPY_DATA => text.extend_from_slice(body(&frame)),
                frontend::COPY_DONE => break,
                frontend::COPY_FAIL => return Err(trouble("57014", "COPY from stdin failed")),
                frontend::FLUSH | frontend::SYNC => {}
                _ => return Err(trouble("08P01", "unexpected message type during COPY from stdin")),
            }
        }
        for line in String::from_utf8(text).unwrap().lines() {
            self.write(table, line.parse().unwrap())?;
        }
        Ok(())
    }

    fn commit(&mut self) {
        let Some(transaction) = self.transaction.take() else { return };
        let pid = self.who.pid;
        for write in transaction.writes.iter().filter(|write| write.table.is_fenced()) {
            let admitted = self.world.server.store.admissions(pid, write.table.name());
            if write.epoch.is_none_or(|epoch| !admitted.contains(&epoch)) {
                let why = format!("process {pid} commits {} under {:?}, which is not there", write.id, write.epoch);
                self.world.judge.object(why);
            }
        }
        if !transaction.writes.is_empty() {
            self.world.say(|| {
                let ids: Vec<u64> = transaction.writes.iter().map(|write| write.id).collect();
                format!("process {pid} commits {ids:?}")
            });
        }
        self.setting.local = None;
        self.world.judge.committed(transaction.writes);
        self.let_go();
    }

    fn roll_back(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.setting = transaction.before;
            self.setting.local = None;
            self.let_go();
        }
    }

    fn let_go(&self) {
        self.world.server.store.end_transaction(self.who.pid);
        self.world.server.unlock(self.who.pid);
    }

    /// A statement has failed, and with it the transaction.
    fn fail(&mut self, trouble: &Trouble) {
        match &mut self.transaction {
            Some(transaction) if transaction.is_block => transaction.failed = true,
            _ => self.roll_back(),
        }
        self.say_error(trouble);
    }

    fn answer(&mut self, (rows, tag): Answer) {
        for row in rows {
            put_frame(&mut self.said, backend::DATA_ROW, |out| {
                out.put_i16(row.len() as i16);
                for column in &row {
                    match column {
                        Some(text) => {
                            out.put_i32(text.len() as i32);
                            out.put_slice(text.as_bytes());
                        }
                        None => out.put_i32(-1),
                    }
                }
            });
        }
        self.say(backend::COMMAND_COMPLETE, &[tag.as_bytes(), b"\0"].concat());
    }

    fn ready(&mut self) {
        let status = match &self.transaction {
            None => b'I',
            Some(transaction) if transaction.failed => b'E',
            Some(_) => b'T',
        };
        self.say(backend::READY, &[status]);
        if status == b'I' {
            self.portals.clear();
        }
        self.flush();
    }

    fn say_error(&mut self, Trouble { code, message, detail, is_fatal }: &Trouble) {
        let severity = if *is_fatal { "FATAL" } else { "ERROR" };
        let fields = [(b'S', severity), (b'V', severity), (b'C', code), (b'M', message), (b'D', detail)];
        put_frame(&mut self.said, backend::ERROR, |out| {
            for (tag, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
                out.put_u8(*tag);
                out.put_slice(value.as_bytes());
                out.put_u8(0);
            }
            out.put_u8(0);
        });
        // As `send_message_to_frontend` does.
        self.flush();
    }

    fn say(&mut self, tag: u8, content: &[u8]) {
        put_frame(&mut self.said, tag, |out| out.put_slice(content));
    }

    fn flush(&mut self) {
        self.output.write(self.said.split().freeze());
    }
}

impl Setting {
    fn current(&self) -> Option<&String> {
        self.local.as_ref().unwrap_or(&self.session).as_ref()
    }

    fn set(&mut self, value: &str, local: bool) {
        let value = Some(value.to_owned());
        match local {
            true => self.local = Some(value),
            false => (self.session, self.local) = (value, None),
        }
    }
}

/// The only parameter of a Bind, if there is one.
fn parameter(mut rest: &[u8]) -> Option<u64> {
    let formats = rest.get_u16();
    rest.advance(2 * usize::from(formats));
    let values = rest.get_u16();
    (values > 0).then(|| {
        let length = rest.get_i32() as usize;
        std::str::from_utf8(&rest[..length]).unwrap().parse().unwrap()
    })
}
