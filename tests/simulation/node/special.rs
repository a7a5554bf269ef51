//! Units that only some nodes send: portals, savepoints, settings, definitions, names, and texts or names whose meaning is in
//! doubt.

use super::Node;
use crate::sql::{Sql, Table};
use crate::unit::{Form, Unit};
use fencegate_fence::session::Token;

impl Node {
    /// Statements that only some histories have.
    pub(super) fn special(&mut self, in_block: bool) -> Option<Unit> {
        let plan = &self.world.plan;
        let kinds = [plan.views, plan.names, plan.isolates, plan.strings, plan.calls, plan.paths];
        let kinds: Vec<usize> = (0..kinds.len()).filter(|kind| kinds[*kind]).collect();
        if kinds.is_empty() {
            return None;
        }
        let (form, id) = (self.form(), Some(self.ids.next()));
        let statements = match *self.dice.pick(&kinds) {
            0 => self.definition(in_block),
            1 => match self.dice.below(6) {
                0 | 1 => vec![Sql::PrepareAs { name: self.dice.below(2) as u8, table: self.table() }],
                2 | 3 => {
                    let is_keyed = self.world.plan.keys && self.dice.chance(self.world.plan.keyed);
                    let key = is_keyed.then(|| self.world.some_row(&mut self.dice, Table::Shards));
                    vec![Sql::Run { name: self.dice.below(2) as u8, id, key }]
                }
                4 => vec![Sql::Deallocate(self.dice.chance(70).then(|| self.dice.below(2) as u8))],
                _ => vec![Sql::Fail, self.write()],
            },
            2 if in_block => vec![Sql::LockTable(self.plain_table()), self.write()],
            2 => vec![Sql::Begin, Sql::LockTable(self.plain_table()), self.write(), Sql::Commit],
            3 if self.dice.chance(30) => vec![self.set_strings(50)],
            3 => return Some(self.two_faced()),
            4 if !in_block && self.dice.chance(30) => return Some(Unit::simple(vec![Sql::Begin])),
            4 => {
                let table = self.table();
                let call = Sql::Call { table, row: self.world.some_row(&mut self.dice, table), id };
                if self.dice.chance(15) { vec![self.write(), call] } else { vec![call] }
            }
            _ => {
                let (other, is_shown) = (self.dice.chance(70), self.dice.chance(60));
                let set = Sql::SetPath { other, local: is_shown && self.dice.chance(30), is_shown };
                if self.dice.chance(50) { vec![set] } else { vec![set, self.write()] }
            }
        };
        Some(Unit { form, ..Unit::simple(statements) })
    }

    /// Binds a portal, or executes one that was bound earlier in the transaction.
    pub(super) fn portal(&mut self) -> Vec<Unit> {
        if self.dice.chance(80) && !self.opened.is_empty() {
            let at = self.dice.below(self.opened.len());
            let (portal, sql) = self.opened[at].clone();
            let goes_on = matches!(sql, Sql::LockAll(_)) && self.dice.chance(80);
            if !goes_on {
                self.opened.remove(at);
            }
            let runs = Unit { form: Form::Runs { portal, rows: goes_on.into() }, ..Unit::simple(vec![sql]) };
            let is_odd = self.world.plan.unruly > 0 && self.world.fault(&mut self.dice, 30);
            return if is_odd { vec![Unit::simple(self.odd()), runs] } else { vec![runs] };
        }
        let portal = self.dice.below(2) as u8;
        let sql = match self.dice.below(4) {
            0 | 1 => Sql::LockAll(self.plain_table()),
            2 => self.lock(),
            _ => self.write(),
        };
        self.opened.retain(|(it, _)| *it != portal);
        self.opened.push((portal, sql.clone()));
        vec![Unit { form: Form::Opens(portal), ..Unit::simple(vec![sql]) }]
    }

    /// Begins a savepoint, or ends one, with settings and writes within and behind it.
    pub(super) fn in_savepoint(&mut self) -> Vec<Sql> {
        let name = self.dice.below(2) as u8;
        let mut statements = match self.savepoint {
            Some(name) if self.dice.chance(60) => vec![self.end_savepoint(name)],
            _ if self.dice.chance(40) => vec![Sql::Savepoint(name), self.setting()],
            _ => vec![Sql::Savepoint(name), self.setting(), self.write(), self.end_savepoint(name)],
        };
        if self.dice.chance(60) {
            statements.push(self.write());
        }
        statements
    }

    fn end_savepoint(&mut self, name: u8) -> Sql {
        if self.dice.chance(70) { Sql::RollbackTo(name) } else { Sql::Release(name) }
    }

    /// A setting that does not change the token.
    fn setting(&mut self) -> Sql {
        let local = self.dice.chance(40);
        match self.dice.below(3) {
            0 if self.world.plan.strings => self.set_strings(50),
            1 if self.world.plan.paths => Sql::SetPath { other: self.dice.chance(70), local, is_shown: true },
            _ => Sql::Set { value: self.value(), local },
        }
    }

    fn set_strings(&mut self, plain: usize) -> Sql {
        Sql::SetPlainStrings { are: self.dice.chance(plain), local: self.dice.chance(30) }
    }

    /// A text that is a string or a write, depending on how strings are read: a new one, or one that was a string in
    /// another session.
    fn two_faced(&mut self) -> Unit {
        let again = if self.dice.chance(50) { self.world.some_string(&mut self.dice) } else { None };
        let (table, id) = again.unwrap_or_else(|| (self.plain_table(), self.world.id()));
        Unit::simple(vec![Sql::TwoFaced { table, id: Some(id) }])
    }

    /// The meaning of a text or a name depends on whether the previous unit succeeds, and its reply is still pending.
    pub(super) fn in_doubt(&mut self) -> Option<Vec<Unit>> {
        let (has_names, has_strings) = (self.world.plan.names, self.world.plan.strings);
        match self.dice.chance(50) {
            true if has_names => {
                let name = self.dice.below(2) as u8;
                let named = |closes, parses| Form::Named { name, closes, parses };
                let fails = self.dice.chance(70).then_some(Sql::Fail);
                let insert =
                    |node: &mut Self| Sql::Insert { table: node.plain_table(), row: 0, id: Some(node.ids.next()) };
                let [before, last] = [insert(self), insert(self)];
                let defines =
                    Unit { form: named(true, true), ..Unit::simple(fails.into_iter().chain([before]).collect()) };
                Some(vec![defines, Unit { form: named(false, false), ..Unit::simple(vec![last]) }])
            }
            false if has_strings && self.dice.chance(30) => {
                let statements = [vec![self.set_strings(60)], self.two_faced().statements].concat();
                let form = match self.world.plan.portals && self.dice.chance(50) {
                    true => Form::Unsynced,
                    false => Form::Extended { bound: false, flushes: self.dice.chance(50) },
                };
                let set = Unit { form, ..Unit::simple(statements) };
                Some(if self.dice.chance(50) { vec![set] } else { vec![set, self.two_faced()] })
            }
            false if has_strings => {
                let set = vec![self.set_strings(60)];
                let set = Unit { form: self.form(), ..Unit::simple(set) };
                Some(vec![set, self.two_faced()])
            }
            _ => None,
        }
    }

    /// Creates, changes or drops a view, and perhaps writes through it.
    fn definition(&mut self, in_block: bool) -> Vec<Sql> {
        let (view, table) = (self.dice.below(2) as u8, *self.dice.pick(&[Table::Jobs, Table::Ticks, Table::Notes]));
        let defines = match self.dice.chance(75) {
            true => Sql::CreateView { view, table, replaces: self.dice.chance(60) },
            false => Sql::DropView(view),
        };
        match self.dice.below(3) {
            0 if !in_block => vec![Sql::Begin, self.write(), defines, self.write(), Sql::Commit],
            1 if !in_block => vec![Sql::Begin, defines],
            _ => vec![defines],
        }
    }

    /// Statements that clients should not send, but some will.
    pub(super) fn odd(&mut self) -> Vec<Sql> {
        let other = (self.token - 2 + self.dice.below(4) as Token).max(1);
        // Without a known election, a proxy accepts any token.
        self.world.judge.presented(other);
        let value = if self.dice.chance(60) { self.token } else { other }.to_string();
        let local = self.dice.chance(40);
        match self.dice.below(10) {
            0 => vec![Sql::Set { value, local }, self.write()],
            1 => vec![Sql::SetConfig { value, local }, self.write()],
            2 => vec![Sql::Begin, self.write(), Sql::Set { value, local }, self.write(), Sql::Commit],
            3 if self.dice.chance(50) => vec![Sql::ResetAll],
            3 => vec![Sql::Reset],
            4 => vec![Sql::Begin, self.write(), Sql::Prepare(self.world.id() as u32)],
            5 => vec![Sql::Begin, self.write(), Sql::Commit, Sql::Set { value, local: false }, self.write()],
            6 if self.world.plan.names => vec![Sql::DiscardAll],
            7 if self.world.plan.views => {
                let defines = self.definition(true);
                [vec![Sql::Begin], defines, vec![Sql::Prepare(self.world.id() as u32)]].concat()
            }
            8 => {
                let (set, end) = (Sql::Set { value, local }, self.end_savepoint(0));
                vec![Sql::Begin, Sql::Savepoint(0), set, end, self.write(), Sql::Commit]
            }
            _ => vec![Sql::Set { value, local: false }],
        }
    }
}
