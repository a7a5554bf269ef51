//! The effects of statements on tables and views, and the locks that they wait for.
//!
//! Owns the conditions of a write: they are checked here, where the write takes effect.

use super::{Diagnosis, Process, told_to_end, trouble};
use crate::judge::Write;
use crate::locks::{Mode, Taken, Thing};
use crate::server::{View, qualified};
use crate::sql::{Fence, ROWS, Sql, Table, meant};
use fencegate_fence::session::{Epoch, Token};
use fencegate_fence::value::FenceValue;
use fencegate_wire::frame::body;
use fencegate_wire::tag::{backend, frontend};
use std::time::Duration;
use tokio::time::Instant;

/// Time within which other proxies are notified of a definition, without faults.
const NOTIFIED_WITHIN: Duration = Duration::from_millis(500);

impl Process {
    pub(super) async fn touch(&mut self, sql: &Sql) -> Result<&'static str, Diagnosis> {
        if self.transaction().is_repeatable {
            let snapshot = self.world.server.snapshot();
            self.transaction().snapshot.get_or_insert(snapshot);
        }
        Ok(match sql {
            Sql::Insert { table, row, id } => {
                self.lock(Thing::Table(*table), Mode::Shared).await?;
                self.write(table.fence(*row), id.unwrap(), None)?;
                "INSERT 0 1"
            }
            Sql::Update { table, row, id } => {
                self.lock_row(*table, *row).await?;
                self.write(table.fence(*row), id.unwrap(), Some((*table, *row)))?;
                "UPDATE 1"
            }
            Sql::InsertBy { view, id } => {
                self.write_by(*view, id.unwrap()).await?;
                "INSERT 0 1"
            }
            Sql::CreateView { view, table, replaces } => {
                self.define(*view, Some(*table), *replaces).await?;
                "CREATE VIEW"
            }
            Sql::DropView(view) => {
                self.define(*view, None, true).await?;
                "DROP VIEW"
            }
            Sql::Lock { table, row } => {
                self.lock_row(*table, *row).await?;
                self.note_lock(table.fence(*row));
                "SELECT 0"
            }
            Sql::LockAll(table) => {
                for row in 0..ROWS {
                    self.lock_row(*table, row).await?;
                    self.note_lock(table.fence(row));
                }
                "SELECT 0"
            }
            Sql::LockTable(table) => {
                if !self.transaction().is_block {
                    return Err(trouble("25P01", "LOCK TABLE can only be used in transaction blocks"));
                }
                self.lock(Thing::Table(*table), Mode::Exclusive).await?;
                self.note_lock(table.fence(0));
                "LOCK TABLE"
            }
            Sql::CopyIn(table) => {
                self.lock(Thing::Table(*table), Mode::Shared).await?;
                self.copy_in(*table).await?;
                "COPY 1"
            }
            other => panic!("no statement for tables: {other}"),
        })
    }

    /// The row in the transaction's snapshot.
    async fn lock_row(&mut self, table: Table, row: u8) -> Result<(), Diagnosis> {
        self.lock(Thing::Table(table), Mode::Shared).await?;
        self.lock(Thing::Row(table, row), Mode::Exclusive).await?;
        let (world, snapshot) = (self.world.clone(), self.transaction().snapshot);
        if snapshot.is_some_and(|snapshot| world.server.has_changed_since(snapshot, (table, row))) {
            world.judge.see("row changed since the snapshot");
            return Err(trouble("40001", "could not serialize access due to concurrent update"));
        }
        Ok(())
    }

    async fn lock(&mut self, thing: Thing, mode: Mode) -> Result<(), Diagnosis> {
        loop {
            let world = self.world.clone();
            let released = world.server.released.notified();
            match world.server.lock(self.identity.pid, thing, mode) {
                Ok(()) => return Ok(()),
                Err(Taken::Deadlock) => return Err(trouble("40P01", "deadlock detected")),
                Err(Taken::ByOthers) => tokio::select! {
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

    /// The token that the session presents to the fence, if there is one.
    fn token(&self, fence: Fence) -> Option<Token> {
        let value = self.setting.current().map(String::as_str).unwrap_or_default();
        let token = match FenceValue::parse(value) {
            Ok(FenceValue::One(token)) => Some(token),
            Ok(FenceValue::List(list)) => list.iter().find(|(name, _)| name == fence.name()).map(|(_, token)| *token),
            _ => None,
        };
        token.filter(|_| fence.table.is_fenced())
    }

    /// The epoch under which the process may write.
    fn admission(&self, fence: Fence) -> Option<Epoch> {
        self.token(fence).and_then(|token| self.world.server.admission(&self.identity, fence, token))
    }

    /// Records a lock on rows of the table or on the whole table. A session with a token locks under an admission, and
    /// its successor waits.
    fn note_lock(&self, fence: Fence) {
        let (world, pid) = (&self.world, self.identity.pid);
        if self.token(fence).is_some() && self.admission(fence).is_none() {
            world.judge.object(format!("process {pid} presents a token and locks {}, not admitted", fence.name()));
        }
        if fence.table.is_fenced() && self.token(fence).is_none() {
            world.server.locks_without_token(pid);
        }
        world.server.store.write(pid, &qualified(fence.table), true);
    }

    fn write(&mut self, fence: Fence, id: u64, row: Option<(Table, u8)>) -> Result<(), Diagnosis> {
        self.write_guarded(fence, id, row, self.world.plan.guard)
    }

    /// A write takes effect under an admission of this process. The guard keeps the admission until the transaction ends.
    fn write_guarded(
        &mut self,
        fence: Fence,
        id: u64,
        row: Option<(Table, u8)>,
        is_guarded: bool,
    ) -> Result<(), Diagnosis> {
        let (world, pid, epoch) = (self.world.clone(), self.identity.pid, self.admission(fence));
        if fence.table.is_fenced() && epoch.is_none() {
            let value = self.setting.current();
            let why = format!("process {pid} writes {id} to {} under {value:?}, not admitted", fence.name());
            world.judge.object(why);
        }
        if let Some(epoch) = epoch.filter(|_| is_guarded) {
            if world.server.store.epochs().iter().any(|(name, highest)| name == fence.name() && epoch < *highest) {
                world.judge.see("stopped by the guard");
                return Err(trouble("P0001", "the guard: the epoch is over"));
            }
            world.server.store.guard_passes(pid, fence.family());
        }
        world.say(|| format!("process {pid} writes {id} to {} under {epoch:?}", fence.name()));
        world.server.store.write(pid, &qualified(fence.table), false);
        self.transaction().writes.push(Write { id, fence, row, epoch });
        Ok(())
    }

    /// A write through a view. While a proxy may not know the view's definition, the guard applies.
    async fn write_by(&mut self, name: u8, id: u64) -> Result<(), Diagnosis> {
        let missing = || trouble("42P01", "relation does not exist");
        self.view(name).ok_or_else(missing)?;
        self.lock(Thing::View(name), Mode::Shared).await?;
        let view = self.view(name).ok_or_else(missing)?;
        self.lock(Thing::Table(view.table), Mode::Shared).await?;
        let fence = view.table.fence(0);
        self.world.judge.see("write by a view");
        let may_be_unknown = fence.table.is_fenced() && self.may_be_unknown(&view, id);
        if may_be_unknown && self.admission(fence).is_none() {
            self.world.judge.see("stopped by the guard");
            return Err(trouble("P0001", "the guard: no admission"));
        }
        self.write_guarded(fence, id, None, may_be_unknown || self.world.plan.guard)
    }

    /// Calls a function that writes. The proxy does not know it, and the guard decides, as `check_write` does. The simulated guard also
    /// refuses a token that another session has put in force, so that the proxy repeats more statements.
    pub(super) async fn call(&mut self, fence: Fence, id: u64) -> Result<(), Diagnosis> {
        self.lock(Thing::Table(fence.table), Mode::Shared).await?;
        let name = fence.name();
        self.world.judge.see("write by a function");
        let Some(token) = self.token(fence) else {
            return Err(trouble("LF002", "the guard: no token"));
        };
        if self.admission(fence).is_some() {
            return self.write_guarded(fence, id, None, true);
        }
        let highest =
            self.world.server.store.epochs().into_iter().find(|(it, _)| it == name).map(|(_, epoch)| epoch.token);
        let detail = format!("resource={name} presented={token}");
        Err(match highest.filter(|highest| token < *highest) {
            Some(highest) => Diagnosis {
                detail: format!("{detail} highest={highest}"),
                ..trouble("LF001", "the guard: the token is stale")
            },
            None => Diagnosis { detail, ..trouble("LF004", "the guard: the token is not in force") },
        })
    }

    /// The session's proxy may not have known the definition when it judged the current write: the statement was forwarded
    /// earlier, or another proxy's notification had not arrived when the client sent the write. A write that waits for a reading of
    /// the catalog does not wait for a second one.
    fn may_be_unknown(&self, view: &View, id: u64) -> bool {
        let sent = self.input.sent;
        let plan = &self.world.plan;
        let may_be_lost = plan.control > 0 || plan.listening > 0 || !plan.disasters.is_empty();
        let sent_by_client = self.world.sent_by_view(id).unwrap_or(sent);
        let was_notified = || self.world.server.was_notified(&self.by, view.committed, sent_by_client);
        let is_notified_late =
            view.by != self.by && (may_be_lost || sent <= view.committed + NOTIFIED_WITHIN && !was_notified());
        view.process != self.process() && (sent <= view.forwarded || is_notified_late)
    }

    fn process(&self) -> (i32, String) {
        (self.identity.pid, self.identity.backend_start.clone())
    }

    /// The view in this transaction.
    fn view(&self, name: u8) -> Option<View> {
        let own = self.transaction.iter().flat_map(|it| &it.views).rfind(|(it, _)| *it == name);
        own.map_or_else(|| self.world.server.view(name), |(_, view)| view.clone())
    }

    /// Replaces the definition of a view; None: drops it.
    async fn define(&mut self, name: u8, table: Option<Table>, replaces: bool) -> Result<(), Diagnosis> {
        let forwarded = self.input.sent;
        if table.is_none() && self.view(name).is_none() {
            return Err(trouble("42P01", "view does not exist"));
        }
        self.lock(Thing::View(name), Mode::Exclusive).await?;
        match (self.view(name), table) {
            (None, None) => return Err(trouble("42P01", "view does not exist")),
            (Some(_), Some(_)) if !replaces => return Err(trouble("42P07", "relation already exists")),
            _ => {}
        }
        let (process, by, committed) = (self.process(), self.by.clone(), Instant::now());
        self.world.say(|| format!("process {} has view {name} show {table:?}", self.identity.pid));
        self.world.judge.see("view defined");
        let view = table.map(|table| View { table, process, by, forwarded, committed });
        self.transaction().views.push((name, view));
        Ok(())
    }

    async fn copy_in(&mut self, table: Table) -> Result<(), Diagnosis> {
        self.say(backend::COPY_IN, &[0, 0, 0]);
        self.flush();
        let mut text = Vec::new();
        loop {
            let Some(frame) = self.message().await? else { return Err(told_to_end()) };
            match frame[0] {
                frontend::COPY_DATA => text.extend_from_slice(body(&frame)),
                frontend::COPY_DONE => return Ok(()),
                frontend::COPY_FAIL => return Err(trouble("57014", "COPY from stdin failed")),
                frontend::FLUSH | frontend::SYNC => {}
                _ => return Err(trouble("08P01", "unexpected message type during COPY from stdin")),
            }
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let id = String::from_utf8(line).unwrap().trim().parse();
                let id = id.map_err(|_| trouble("22P02", "invalid input syntax"))?;
                self.write(table.fence(0), meant(id, self.session), None)?;
            }
        }
    }
}
