//! A client: the messages that it sends in one session, and the outcome of each write as far as the replies show it.
//!
//! Owns the client's half of the protocol. Reports acknowledged and refused writes to the judge, and nothing that a
//! client could not know.

use super::pipe::{Reader, Writer, receive};
use super::proxy::{Accepted, Proxy};
use super::sql::{Ids, Sql};
use super::unit::{FUNCTION_RESULT, Form, Unit, ids};
use super::world::{Dice, World, pass};
use bytes::{Bytes, BytesMut};
use fencegate_fence::session::Token;
use fencegate_wire::error::field;
use fencegate_wire::frame::{Header, body, put_frame};
use fencegate_wire::message::put_sync;
use fencegate_wire::tag::{backend, frontend};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// The outcome of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// An error with this SQLSTATE; the session continues.
    Failed(String),
    /// The session has ended.
    Over(String),
}

pub struct Client {
    world: Arc<World>,
    name: String,
    writer: Writer,
    reader: Reader,
    read: BytesMut,
    pid: Arc<AtomicI32>,
    dice: Dice,
    pub ids: Ids,
    pub in_block: bool,
    pub has_failed: bool,
    /// Writes of the open transaction that the server has executed.
    pending: Vec<u64>,
    savepoints: Vec<(u8, usize)>,
}

impl Client {
    pub fn connect(world: &Arc<World>, proxy: &Arc<Proxy>, name: &str, value: Option<String>) -> Client {
        let session = world.number();
        let Accepted { writer, reader, pid } = proxy.accept(value, session);
        Client {
            ids: Ids::of(session),
            world: world.clone(),
            name: name.to_owned(),
            writer,
            reader,
            read: BytesMut::new(),
            pid,
            dice: world.dice(),
            in_block: false,
            has_failed: false,
            pending: Vec::new(),
            savepoints: Vec::new(),
        }
    }

    /// Waits for the first ReadyForQuery. False: the session is over.
    pub async fn is_ready(&mut self) -> bool {
        while let Some(frame) = self.frame().await {
            if frame[0] == backend::READY {
                return true;
            }
        }
        false
    }

    /// Sends units without waiting for their replies, and then waits for all. Returns the outcome of the last unit, or of
    /// the one that ended the session.
    pub async fn say(&mut self, units: &[Unit]) -> Outcome {
        let mut output = BytesMut::new();
        for unit in units {
            if !output.is_empty() && self.dice.chance(40) {
                self.send(output.split().freeze());
                pass(&mut self.dice, 40).await;
            }
            self.world.say(|| {
                let text: Vec<String> = unit.statements.iter().map(Sql::to_string).collect();
                format!("{} says {:?}: {}", self.name, unit.form, text.join("; "))
            });
            for statement in &unit.statements {
                if let Sql::InsertBy { id: Some(id), .. } = statement {
                    self.world.note_sent_by_view(*id);
                }
            }
            unit.put_statements(&mut output);
            if unit.copy.is_eager && self.dice.chance(50) {
                self.send(output.split().freeze());
                pass(&mut self.dice, 40).await;
            }
            unit.put_end(&mut output);
            if unit.form == Form::Call && self.dice.chance(50) {
                // The proxy knows the function before the message has arrived.
                let cut = output.len() - 1 - self.dice.below(5);
                self.send(output.split_to(cut).freeze());
                pass(&mut self.dice, 40).await;
            }
        }
        self.send(output.freeze());
        if let [Unit { form: Form::Flushed, .. }] = units {
            pass(&mut self.dice, 60).await;
            self.sync();
        }
        let mut outcome = Outcome::Done;
        for (index, unit) in units.iter().enumerate() {
            outcome = self.receive(unit).await;
            if let Outcome::Over(said) = &outcome {
                self.session_over(said, &units[index..]);
                return outcome;
            }
        }
        outcome
    }

    /// Sends the beginning of some units or all of them, and closes the connection, perhaps later.
    pub async fn hang_up_within(mut self, units: &[Unit], dice: &mut Dice) {
        self.world.say(|| format!("{} hangs up in the middle of {units:?}", self.name));
        let mut output = BytesMut::new();
        units.iter().for_each(|unit| unit.put(&mut output));
        let cut = if dice.chance(50) { output.len() } else { dice.below(output.len() + 1) };
        self.send(output.split_to(cut).freeze());
        if dice.chance(50) {
            pass(dice, 40).await;
        }
    }

    /// A savepoint of the open transaction.
    pub fn some_savepoint(&mut self) -> Option<u8> {
        let at = self.dice.below(self.savepoints.len());
        self.savepoints.get(at).map(|(name, _)| *name)
    }

    /// The client sends nothing more.
    pub fn close(mut self) {
        let mut output = BytesMut::new();
        put_frame(&mut output, frontend::TERMINATE, |_| {});
        self.send(output.freeze());
    }

    /// The server process, for a cancel request.
    pub fn process(&self) -> Arc<AtomicI32> {
        self.pid.clone()
    }

    fn sync(&mut self) {
        let mut output = BytesMut::new();
        put_sync(&mut output);
        self.send(output.freeze());
    }

    fn send(&mut self, bytes: Bytes) {
        self.writer.write(bytes);
    }

    /// The reply to one unit.
    async fn receive(&mut self, unit: &Unit) -> Outcome {
        let mut rest = unit.statements.iter();
        let mut outcome = Outcome::Done;
        loop {
            let Some(frame) = self.frame().await else { return Outcome::Over(String::new()) };
            let content = body(&frame);
            match frame[0] {
                backend::COMMAND_COMPLETE => {
                    if let [Sql::TwoFaced { .. }] = rest.as_slice()
                        && content == b"SELECT 1\0"
                    {
                        // The write after the string was not executed, or not yet.
                        continue;
                    }
                    match rest.next() {
                        Some(done) => self.done(done, content, unit),
                        None => self.world.judge.object(format!("{} receives a reply too many", self.name)),
                    }
                }
                backend::COPY_IN if !unit.copy.is_eager => self.send_rows(unit).await,
                FUNCTION_RESULT => drop(rest.next()),
                backend::ERROR => {
                    let part = |tag| String::from_utf8_lossy(field(content, tag).unwrap_or_default()).into_owned();
                    let (code, message, detail) = (part(b'C'), part(b'M'), part(b'D'));
                    self.world.say(|| format!("{} is told {code}: {message} ({detail})", self.name));
                    if code == "LF001" {
                        self.world.judge.told_stale(number_in(&detail, "presented="));
                    }
                    self.world.judge.see(of_code(&code));
                    if part(b'V') != "ERROR" {
                        return Outcome::Over(format!("{code} {detail}"));
                    }
                    self.failed(rest.as_slice(), unit);
                    if unit.form == Form::Unsynced && rest.len() > 1 {
                        self.sync();
                    }
                    outcome = Outcome::Failed(code);
                }
                backend::READY => {
                    if let ([Sql::TwoFaced { table, id: Some(id) }], Outcome::Done) = (rest.as_slice(), &outcome) {
                        self.world.was_string(*table, *id);
                    }
                    self.has_failed = content == b"E";
                    self.in_block = content != b"I";
                    if !self.in_block {
                        let judge = &self.world.judge;
                        for id in std::mem::take(&mut self.pending) {
                            match outcome {
                                // The statement that would have ended the block has failed.
                                Outcome::Failed(_) => judge.refused(id, "failed with its transaction"),
                                _ => judge.acknowledged(id),
                            }
                        }
                        self.savepoints.clear();
                    }
                    return outcome;
                }
                _ => {}
            }
        }
    }

    /// A statement has succeeded.
    fn done(&mut self, statement: &Sql, tag: &[u8], unit: &Unit) {
        let judge = &self.world.judge;
        match statement {
            Sql::Insert { id, .. }
            | Sql::Update { id, .. }
            | Sql::InsertBy { id, .. }
            | Sql::Call { id, .. }
            | Sql::Run { id, .. }
            | Sql::TwoFaced { id, .. } => self.pending.extend(*id),
            Sql::CopyIn(_) => self.pending.extend(&unit.copy.rows),
            Sql::Savepoint(name) => self.savepoints.push((*name, self.pending.len())),
            Sql::RollbackTo(name) => {
                let at = self.savepoints.iter().rposition(|(it, _)| it == name).unwrap();
                self.savepoints.truncate(at + 1);
                let rolled_back = self.pending.split_off(self.savepoints[at].1);
                rolled_back.into_iter().for_each(|id| judge.refused(id, "rolled back to a savepoint"));
            }
            Sql::Release(name) => {
                let at = self.savepoints.iter().rposition(|(it, _)| it == name).unwrap();
                self.savepoints.truncate(at);
            }
            Sql::Begin | Sql::BeginRepeatable => self.in_block = true,
            Sql::Commit | Sql::Rollback | Sql::Prepare(_) => {
                let pending = std::mem::take(&mut self.pending);
                self.savepoints.clear();
                self.in_block = false;
                match tag {
                    b"COMMIT\0" => pending.into_iter().for_each(|id| judge.acknowledged(id)),
                    b"ROLLBACK\0" => pending.into_iter().for_each(|id| judge.refused(id, "rolled back")),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// A statement has failed, and the statements after it in the unit are not executed.
    fn failed(&mut self, rest: &[Sql], unit: &Unit) {
        let judge = &self.world.judge;
        ids(rest, unit).for_each(|id| judge.refused(id, "failed"));
        if !self.in_block {
            std::mem::take(&mut self.pending).into_iter().for_each(|id| judge.refused(id, "failed with its batch"));
        }
    }

    /// The known outcome of writes when the session has ended.
    fn session_over(&mut self, said: &str, units: &[Unit]) {
        self.world.say(|| format!("{}'s session is over: {said}", self.name));
        if said.contains("outcome=rolled_back") {
            let judge = &self.world.judge;
            std::mem::take(&mut self.pending).into_iter().for_each(|id| judge.refused(id, "outcome=rolled_back"));
            for unit in units {
                ids(&unit.statements, unit).for_each(|id| judge.refused(id, "outcome=rolled_back"));
            }
        }
    }

    /// The server requests the rows of a COPY. In an extended unit a Sync follows, because the server has ignored the one before
    /// the rows.
    async fn send_rows(&mut self, unit: &Unit) {
        let mut output = BytesMut::new();
        unit.put_rows(&mut output);
        if self.dice.chance(30) {
            self.send(output.split().freeze());
            pass(&mut self.dice, 40).await;
        }
        unit.put_end_of_rows(&mut output);
        if unit.form != Form::Simple {
            put_sync(&mut output);
        }
        self.send(output.freeze());
    }

    async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(header) = Header::from_server(&self.read).unwrap()
                && self.read.len() >= header.frame()
            {
                return Some(self.read.split_to(header.frame()).freeze());
            }
            let chunk = self.reader.read().await?;
            receive(&mut self.read, chunk);
        }
    }
}

fn number_in(text: &str, name: &str) -> Token {
    let (_, rest) = text.split_once(name).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// The event for the statistics.
fn of_code(code: &str) -> &'static str {
    match code {
        "LF001" => "told LF001",
        "LF002" => "told LF002",
        "LF003" => "told LF003",
        "LF004" => "told LF004",
        "LF005" => "told LF005",
        "LF006" => "told LF006",
        _ => "told what the server says",
    }
}

/// Cancels the current statement of the process, like a cancel request that the proxy forwards.
pub fn cancel(world: &World, process: &AtomicI32) {
    world.server.cancel(process.load(Ordering::Relaxed));
}
