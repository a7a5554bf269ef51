//! One server process: it reads messages, executes them, and replies.
//!
//! Owns the protocol's server half, the transaction and `lease.fence`. Every statement takes some time before and after
//! it takes effect; the process may be terminated or its statement canceled at any of these moments.

mod answer;
mod effect;
mod tables;
mod transaction;

use super::pipe::{Reader, Writer, receive};
use super::server::Signals;
use super::sql::{ROWS, Sql, meant};
use super::unit::{FUNCTION_RESULT, LARGE_OBJECT_FUNCTION};
use super::world::{Dice, World, moment};
use bytes::{Buf, Bytes, BytesMut};
use fencegate_fence::session::Identity;
use fencegate_wire::frame::{Header, body, split_string};
use fencegate_wire::tag::{backend, frontend};
use std::collections::HashMap;
use std::sync::Arc;
use transaction::{Setting, Transaction};

pub struct Process {
    world: Arc<World>,
    identity: Identity,
    /// The proxy of the session, and the session's number.
    by: String,
    session: u64,
    input: Reader,
    output: Writer,
    read: BytesMut,
    /// Replies that are not sent yet.
    said: BytesMut,
    signals: Arc<Signals>,
    dice: Dice,
    setting: Setting,
    /// The last values of `standard_conforming_strings` and `search_path` that the client received.
    reported: [&'static str; 2],
    transaction: Option<Transaction>,
    statements: HashMap<String, Option<Sql>>,
    portals: HashMap<String, Portal>,
    /// Messages are skipped after an error, up to a Sync.
    skips: bool,
}

/// A statement that may be executed.
struct Portal {
    sql: Option<Sql>,
    /// Number of savepoints when it was bound: it ends with its subtransaction.
    depth: usize,
    /// Number of rows that it has returned.
    rows: u8,
}

/// Why a statement is not executed.
struct Diagnosis {
    code: String,
    message: String,
    detail: String,
    /// The process ends.
    is_fatal: bool,
}

fn trouble(code: &str, message: &str) -> Diagnosis {
    Diagnosis { code: code.to_owned(), message: message.to_owned(), detail: String::new(), is_fatal: false }
}

fn told_to_end() -> Diagnosis {
    Diagnosis { is_fatal: true, ..trouble("57P01", "terminating connection due to administrator command") }
}

/// The reply to a statement: rows, and its tag.
type Answer = (Vec<Vec<Option<String>>>, &'static str);
impl Process {
    pub fn new(
        world: &Arc<World>,
        (by, session): (&str, u64),
        identity: Identity,
        (input, output): (Reader, Writer),
        signals: Arc<Signals>,
        value: Option<String>,
    ) -> Self {
        Process {
            dice: world.dice(),
            world: world.clone(),
            identity,
            by: by.to_owned(),
            session,
            input,
            output,
            read: BytesMut::new(),
            said: BytesMut::new(),
            signals,
            setting: Setting::new(value),
            reported: ["on", "public"],
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
        // The process releases its locks before it ends.
        moment(&mut self.dice).await;
        if let Some(trouble) = end.filter(|_| self.dice.chance(80)) {
            self.say_error(&trouble);
        }
        let pid = self.identity.pid;
        self.world.say(|| format!("process {pid} ends"));
        self.world.server.ended(pid);
    }

    /// The next message; None at the end.
    async fn message(&mut self) -> Result<Option<Bytes>, Diagnosis> {
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
                Some(chunk) => receive(&mut self.read, chunk),
                None => return Ok(None),
            }
        }
    }

    /// Err: the process ends.
    async fn handle(&mut self, frame: Bytes) -> Result<(), Diagnosis> {
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
            frontend::FUNCTION_CALL => return self.function_call(content).await,
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

    async fn extended(&mut self, tag: u8, content: &[u8]) -> Result<(), Diagnosis> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match tag {
            frontend::PARSE => {
                let (name, rest) = split_string(content).unwrap();
                let mut statements =
                    Sql::read(&text(split_string(rest).unwrap().0), self.setting.plain_strings(), self.session);
                if statements.len() > 1 {
                    return Err(trouble("42601", "cannot insert multiple commands into a prepared statement"));
                }
                self.refuse_in_failed(statements.first())?;
                if !name.is_empty() && self.statements.contains_key(&text(name)) {
                    return Err(trouble("42P05", "prepared statement already exists"));
                }
                self.statements.insert(text(name), statements.pop());
                self.say(backend::PARSE_COMPLETE, &[]);
            }
            frontend::BIND => {
                let (portal, rest) = split_string(content).unwrap();
                let (statement, rest) = split_string(rest).unwrap();
                let Some(sql) = self.statements.get(&text(statement)) else {
                    return Err(trouble("26000", "prepared statement does not exist"));
                };
                let mut values = values(rest);
                if values.len() != sql.as_ref().map_or(0, Sql::parameters) {
                    return Err(trouble("08P01", "bind message supplies another number of parameters"));
                }
                values.iter_mut().take(1).for_each(|id| *id = meant(*id, self.session));
                let bound = sql.clone().map(|sql| sql.bound(&values));
                let is_other = self.setting.is_other_path();
                let bound = bound.map(|sql| if sql.is_planned() { sql.in_schema(is_other) } else { sql });
                self.refuse_in_failed(bound.as_ref())?;
                let portal = text(portal);
                if !portal.is_empty() && self.portals.contains_key(&portal) {
                    return Err(trouble("42P03", "cursor already exists"));
                }
                let depth = self.transaction.as_ref().map_or(0, |it| it.savepoints.len());
                self.portals.insert(portal, Portal { sql: bound, depth, rows: 0 });
                self.say(backend::BIND_COMPLETE, &[]);
            }
            frontend::DESCRIBE => self.say(backend::NO_DATA, &[]),
            frontend::EXECUTE => {
                let (portal, mut limit) = split_string(content).unwrap();
                return self.run_portal(&text(portal), limit.get_i32()).await;
            }
            frontend::CLOSE => {
                let name = text(split_string(&content[1..]).unwrap().0);
                if content[0] == b'S' {
                    self.statements.remove(&name);
                } else {
                    self.portals.remove(&name);
                }
                self.say(backend::CLOSE_COMPLETE, &[]);
            }
            // Data of a failed COPY.
            frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL => {}
            other => panic!("the simulated server does not know messages {}", other as char),
        }
        Ok(())
    }

    /// Executes a portal. Only a SELECT stops at the limit, and continues at the next Execute ("Extended Query").
    async fn run_portal(&mut self, name: &str, limit: i32) -> Result<(), Diagnosis> {
        let Some(Portal { sql, rows, .. }) = self.portals.get(name) else {
            return Err(trouble("34000", "portal does not exist"));
        };
        let Some(sql) = sql.clone() else {
            self.say(backend::EMPTY_QUERY, &[]);
            return Ok(());
        };
        if let (&Sql::LockAll(table), 1) = (&sql, limit) {
            let row = *rows;
            if row < ROWS {
                self.execute(&Sql::Lock { table, row }, true).await?;
                self.portals.get_mut(name).unwrap().rows += 1;
                self.say(backend::PORTAL_SUSPENDED, &[]);
                self.world.judge.see("row of a portal");
                return Ok(());
            }
            self.answer((Vec::new(), "SELECT 0"));
            return Ok(());
        }
        let answer = self.execute(&sql, sql.is_planned()).await?;
        self.answer(answer);
        Ok(())
    }

    /// Only the functions for large objects exist.
    async fn function_call(&mut self, content: &[u8]) -> Result<(), Diagnosis> {
        let sql = Sql::Function { is_harmless: content.starts_with(&LARGE_OBJECT_FUNCTION.to_be_bytes()) };
        match self.execute(&sql, true).await {
            Ok(_) => {
                if self.transaction.as_ref().is_some_and(|it| !it.is_block) {
                    self.commit();
                }
                self.say(FUNCTION_RESULT, &(-1_i32).to_be_bytes());
            }
            Err(trouble) if trouble.is_fatal => return Err(trouble),
            Err(trouble) => self.fail(&trouble),
        }
        moment(&mut self.dice).await;
        self.ready();
        Ok(())
    }

    async fn query(&mut self, text: &[u8]) -> Result<(), Diagnosis> {
        let statements = Sql::read(std::str::from_utf8(text).unwrap(), self.setting.plain_strings(), self.session);
        self.statements.remove("");
        if statements.is_empty() {
            self.say(backend::EMPTY_QUERY, &[]);
        }
        let count = statements.len();
        for (index, sql) in statements.iter().enumerate() {
            if let Sql::Call { .. } = sql {
                self.say(backend::ROW_DESCRIPTION, &[0, 0]);
            }
            match self.execute(sql, false).await {
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

    /// `in_schema`: the server has already looked up the table.
    async fn execute(&mut self, sql: &Sql, in_schema: bool) -> Result<Answer, Diagnosis> {
        self.refuse_in_failed(Some(sql))?;
        if self.transaction.is_none() {
            self.transaction = Some(Transaction::new(&self.setting));
        }
        self.work().await?;
        let named = self.named(sql)?;
        let sql = named.as_ref().unwrap_or(sql);
        let answer = match in_schema {
            true => self.effect(sql).await?,
            false => self.effect(&sql.clone().in_schema(self.setting.is_other_path())).await?,
        };
        if let Some(transaction) = &mut self.transaction {
            transaction.statements += 1;
        }
        match self.work().await {
            // A statement that has ended a transaction can no longer be canceled.
            Err(trouble) if trouble.is_fatal || self.transaction.is_some() => Err(trouble),
            _ => Ok(answer),
        }
    }

    /// The statement that EXECUTE runs.
    fn named(&self, sql: &Sql) -> Result<Option<Sql>, Diagnosis> {
        let Sql::Run { name, id, key } = sql else { return Ok(None) };
        let values: Vec<u64> = id.iter().copied().chain(key.map(u64::from)).collect();
        match self.statements.get(&format!("p{name}")) {
            Some(Some(statement)) if statement.parameters() != values.len() => {
                Err(trouble("42601", "wrong number of parameters for prepared statement"))
            }
            Some(Some(statement)) => Ok(Some(statement.clone().bound(&values))),
            _ => Err(trouble("26000", "prepared statement does not exist")),
        }
    }

    fn refuse_in_failed(&self, sql: Option<&Sql>) -> Result<(), Diagnosis> {
        let ends_block = matches!(sql, Some(Sql::Commit | Sql::Rollback | Sql::RollbackTo(_) | Sql::Prepare(_)) | None);
        match self.transaction.as_ref().is_some_and(|it| it.failed) && !ends_block {
            true => Err(trouble("25P02", "current transaction is aborted")),
            false => Ok(()),
        }
    }

    /// A moment in which the process may be terminated or its statement canceled.
    async fn work(&mut self) -> Result<(), Diagnosis> {
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
}

/// The values of a Bind, which are text.
fn values(mut rest: &[u8]) -> Vec<u64> {
    let formats = rest.get_u16();
    rest.advance(2 * usize::from(formats));
    let count = rest.get_u16();
    let value = |_| {
        let length = rest.get_i32() as usize;
        std::str::from_utf8(&rest.copy_to_bytes(length)).unwrap().parse().unwrap()
    };
    (0..count).map(value).collect()
}
