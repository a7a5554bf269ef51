//! The effects of statements on the transaction, on settings and on names. `tables.rs` has their effects on tables.
//!
//! Owns the moment at which each statement takes effect.

use super::transaction::{Savepoint, Setting, Transaction};
use super::{Answer, Diagnosis, Process, told_to_end, trouble};
use crate::sql::{BOUND, Sql};
use crate::world::pass;

/// No rows.
fn done(tag: &'static str) -> Answer {
    (Vec::new(), tag)
}

fn row(values: Vec<Option<String>>, tag: &'static str) -> Answer {
    (vec![values], tag)
}

impl Process {
    pub(super) async fn effect(&mut self, sql: &Sql) -> Result<Answer, Diagnosis> {
        match sql {
            Sql::Begin
            | Sql::BeginRepeatable
            | Sql::Commit
            | Sql::Rollback
            | Sql::Savepoint(_)
            | Sql::RollbackTo(_)
            | Sql::Release(_)
            | Sql::Prepare(_) => self.transact(sql).map(done),
            Sql::Set { .. }
            | Sql::SetConfig { .. }
            | Sql::Reset
            | Sql::ResetAll
            | Sql::SetPlainStrings { .. }
            | Sql::SetPath { .. } => Ok(self.set(sql)),
            Sql::PrepareAs { .. } | Sql::Deallocate(_) | Sql::DiscardAll => self.name(sql).map(done),
            Sql::Read => Ok(row(vec![Some("1".to_owned())], "SELECT 1")),
            Sql::Text => Ok(row(vec![Some(String::new())], "SELECT 1")),
            Sql::Sleep(time) => {
                self.sleep(*time).await?;
                Ok(row(vec![Some(String::new())], "SELECT 1"))
            }
            Sql::Fail => Err(trouble("22012", "division by zero")),
            Sql::Raise(parameter) => {
                Err(trouble("42704", &format!("unrecognized configuration parameter \"{parameter}\"")))
            }
            Sql::Question => Ok(self.question()),
            Sql::Show(value) => Ok(row(vec![Some((*value).to_owned())], "SHOW")),
            Sql::ShowIdleTimeout => {
                let value = if self.world.plan.impatient { "40ms" } else { "0" };
                Ok(row(vec![Some(value.to_owned())], "SHOW"))
            }
            Sql::ShowPath => Ok(row(vec![Some(self.path().to_owned())], "SHOW")),
            Sql::Call { table, row: at, id } => {
                self.call(table.fence(*at), id.unwrap()).await?;
                Ok(row(vec![Some(String::new())], "SELECT 1"))
            }
            Sql::Function { is_harmless } => {
                if !is_harmless {
                    self.world.judge.object("a fast-path call of an unknown function is executed".to_owned());
                }
                Ok(done(""))
            }
            _ => self.touch(sql).await.map(done),
        }
    }

    fn transact(&mut self, sql: &Sql) -> Result<&'static str, Diagnosis> {
        let failed = self.transaction().failed;
        match sql {
            Sql::Begin | Sql::BeginRepeatable => {
                let transaction = self.transaction();
                transaction.is_repeatable |= *sql == Sql::BeginRepeatable;
                transaction.is_block = true;
                return Ok("BEGIN");
            }
            Sql::Commit if !failed => {
                self.commit();
                return Ok("COMMIT");
            }
            Sql::Savepoint(name) => {
                let (setting, transaction) = (self.setting.clone(), self.transaction());
                if !transaction.is_block {
                    return Err(trouble("25P01", "SAVEPOINT can only be used in transaction blocks"));
                }
                let (writes, views) = (transaction.writes.len(), transaction.views.len());
                transaction.savepoints.push(Savepoint { name: *name, setting, writes, views });
                return Ok("SAVEPOINT");
            }
            Sql::RollbackTo(name) => return self.roll_back_to(*name),
            Sql::Release(name) => return self.release(*name),
            Sql::Prepare(gid) if !failed && self.transaction().is_block => {
                self.prepare(*gid);
                return Ok("PREPARE TRANSACTION");
            }
            _ => {}
        }
        self.roll_back();
        Ok("ROLLBACK")
    }

    fn savepoint(&mut self, name: u8) -> Result<usize, Diagnosis> {
        let at = self.transaction().savepoints.iter().rposition(|it| it.name == name);
        at.ok_or_else(|| trouble("3B001", "savepoint does not exist"))
    }

    fn release(&mut self, name: u8) -> Result<&'static str, Diagnosis> {
        let at = self.savepoint(name)?;
        self.transaction().savepoints.truncate(at);
        self.portals.values_mut().for_each(|portal| portal.depth = portal.depth.min(at));
        Ok("RELEASE")
    }

    fn roll_back_to(&mut self, name: u8) -> Result<&'static str, Diagnosis> {
        let at = self.savepoint(name)?;
        self.portals.retain(|_, portal| portal.depth <= at);
        let transaction = self.transaction();
        transaction.savepoints.truncate(at + 1);
        let Savepoint { setting, writes, views, .. } = transaction.savepoints[at].clone();
        transaction.writes.truncate(writes);
        transaction.views.truncate(views);
        transaction.failed = false;
        self.setting = setting;
        Ok("ROLLBACK")
    }

    /// No client ends a prepared transaction.
    fn prepare(&mut self, gid: u32) {
        let (world, pid) = (self.world.clone(), self.identity.pid);
        let Transaction { writes, views, .. } = self.transaction.take().unwrap();
        if writes.iter().any(|write| write.fence.table.is_fenced()) {
            world.judge.object("writes to a fenced table are prepared".to_owned());
        }
        if views.iter().any(|(_, view)| view.as_ref().is_some_and(|view| view.table.is_fenced())) {
            world.judge.object("a way to a fenced table is prepared".to_owned());
        }
        self.portals.clear();
        self.setting.end_local();
        if !writes.is_empty() {
            world.server.store.prepare(pid, &format!("g{gid}"));
        }
        world.server.unlock(pid);
    }

    fn set(&mut self, sql: &Sql) -> Answer {
        match sql {
            Sql::Set { value, local } => self.setting.set(value, *local),
            Sql::SetConfig { value, local } => {
                self.setting.set(value, *local);
                return row(vec![Some(value.clone())], "SELECT 1");
            }
            Sql::SetPlainStrings { are, local } => self.setting.set_strings(*are, *local),
            Sql::SetPath { other, local, is_shown } => {
                self.setting.set_path(*other, *local);
                if !is_shown {
                    return row(vec![Some(String::new())], "SELECT 1");
                }
            }
            Sql::ResetAll => {
                self.setting = Setting::new(self.setting.startup.clone());
                return done("RESET");
            }
            _ => {
                (self.setting.session, self.setting.local) = (self.setting.startup.clone(), None);
                return done("RESET");
            }
        }
        done("SET")
    }

    fn name(&mut self, sql: &Sql) -> Result<&'static str, Diagnosis> {
        match sql {
            Sql::PrepareAs { name, table } => {
                let name = format!("p{name}");
                if self.statements.contains_key(&name) {
                    return Err(trouble("42P05", "prepared statement already exists"));
                }
                let row = if table.is_keyed() { BOUND } else { 0 };
                self.statements.insert(name, Some(Sql::Insert { table: *table, row, id: None }));
                return Ok("PREPARE");
            }
            Sql::Deallocate(Some(name)) => match self.statements.remove(&format!("p{name}")) {
                Some(_) => return Ok("DEALLOCATE"),
                None => return Err(trouble("26000", "prepared statement does not exist")),
            },
            _ => self.statements.retain(|name, _| name.is_empty()),
        }
        if *sql != Sql::DiscardAll {
            return Ok("DEALLOCATE ALL");
        }
        if self.transaction().is_block || self.transaction().statements > 0 {
            return Err(trouble("25001", "DISCARD ALL cannot run inside a transaction block"));
        }
        self.portals.clear();
        self.setting = Setting::new(self.setting.startup.clone());
        Ok("DISCARD ALL")
    }

    async fn sleep(&mut self, time: u64) -> Result<(), Diagnosis> {
        tokio::select! {
            biased;
            () = self.signals.told_to_end() => Err(told_to_end()),
            () = pass(&mut self.dice, time as usize) => Ok(()),
        }
    }

    fn question(&self) -> Answer {
        let plain = if self.setting.plain_strings() { "on" } else { "off" };
        let schemas = if self.setting.is_other_path() { "{pg_catalog,other}" } else { "{pg_catalog,public}" };
        let texts = [plain, "UTF8", schemas, self.path()].map(|text| Some(text.to_owned()));
        row([vec![self.setting.current().cloned()], texts.to_vec()].concat(), "SELECT 1")
    }

    pub(super) fn path(&self) -> &'static str {
        if self.setting.is_other_path() { "other" } else { "public" }
    }

    pub(super) fn transaction(&mut self) -> &mut Transaction {
        let setting = &self.setting;
        self.transaction.get_or_insert_with(|| Transaction::new(setting))
    }

    pub(super) fn commit(&mut self) {
        let Some(Transaction { writes, views, .. }) = self.transaction.take() else { return };
        let (world, pid) = (self.world.clone(), self.identity.pid);
        for write in writes.iter().filter(|write| write.fence.table.is_fenced()) {
            let admitted = world.server.store.admissions(&self.identity, write.fence.name());
            if write.epoch.is_none_or(|epoch| !admitted.contains(&epoch)) {
                let why = format!("process {pid} commits {} under {:?}, which is not there", write.id, write.epoch);
                world.judge.object(why);
            }
        }
        if !writes.is_empty() || !views.is_empty() {
            world.say(|| {
                let ids: Vec<u64> = writes.iter().map(|write| write.id).collect();
                let views: Vec<_> = views.iter().map(|(name, view)| (name, view.as_ref().map(|it| it.table))).collect();
                format!("process {pid} commits {ids:?}, views {views:?}")
            });
        }
        self.portals.clear();
        self.setting.end_local();
        world.server.commit(writes.iter().filter_map(|write| write.row), views);
        world.judge.committed(writes);
        self.let_go();
    }

    pub(super) fn roll_back(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.portals.clear();
            self.setting = transaction.before;
            self.setting.end_local();
            self.let_go();
        }
    }

    fn let_go(&self) {
        self.world.server.store.end_transaction(self.identity.pid);
        self.world.server.unlock(self.identity.pid);
    }

    /// A statement has failed, and with it the transaction.
    pub(super) fn fail(&mut self, trouble: &Diagnosis) {
        match &mut self.transaction {
            Some(transaction) if transaction.is_block => {
                transaction.failed = true;
                // The innermost subtransaction ends now, with its settings (`AtEOXact_GUC`) and portals.
                let innermost = transaction.savepoints.last().map(|it| &it.setting);
                self.setting = innermost.unwrap_or(&transaction.before).clone();
                let depth = transaction.savepoints.len();
                self.portals.retain(|_, portal| portal.depth < depth);
                if depth == 0 {
                    // The transaction cannot be continued, so it releases its locks now.
                    self.let_go();
                }
            }
            _ => self.roll_back(),
        }
        self.say_error(trouble);
    }
}
