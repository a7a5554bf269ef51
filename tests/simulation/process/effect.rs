//! What statements do: to the transaction, to the tables, to `lease.fence`.
//!
//! Owns the moment at which each takes effect.

use super::{Answer, Process, Transaction, Trouble, told_to_end, trouble};
use crate::fence::value::FenceValue;
use crate::simulation::judge::Write;
use crate::simulation::server::qualified;
use crate::simulation::sql::{Sql, Table};
use crate::simulation::world::pass;
use crate::wire::frame::body;
use crate::wire::tag::{backend, frontend};

impl Process {
    pub(super) async fn effect(&mut self, sql: &Sql) -> Result<Answer, Trouble> {
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

    pub(super) fn transaction(&mut self) -> &mut Transaction {
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

    pub(super) async fn copy_in(&mut self, table: Table) -> Result<(), Trouble> {
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

    pub(super) fn commit(&mut self) {
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

    pub(super) fn roll_back(&mut self) {
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
    pub(super) fn fail(&mut self, trouble: &Trouble) {
        match &mut self.transaction {
            Some(transaction) if transaction.is_block => transaction.failed = true,
            _ => self.roll_back(),
        }
        self.say_error(trouble);
    }
}
