//! A node: it campaigns, leads, stalls, is deposed without noticing, and writes throughout.

mod special;

use super::client::{Client, Outcome, cancel};
use super::proxy::Proxy;
use super::sql::{Ids, SHARDS, Sql, Table};
use super::unit::{Copy, End, Form, Unit, write};
use super::world::{Dice, World, pass};
use fencegate_fence::session::Token;
use futures_util::future::{join, join_all};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

pub struct Node {
    world: Arc<World>,
    name: String,
    dice: Dice,
    token: Token,
    /// The ids of the session.
    ids: Ids,
    /// Portals that the session has bound in its transaction.
    opened: Vec<(u8, Sql)>,
    /// A savepoint of its transaction.
    savepoint: Option<u8>,
}

/// The next action of a node.
enum Next {
    Reconnects,
    CampaignsAgain,
}

impl Node {
    pub fn new(world: &Arc<World>, number: usize) -> Node {
        Node::named(world, format!("node {number}"), 0)
    }

    fn named(world: &Arc<World>, name: String, token: Token) -> Node {
        let (dice, ids) = (world.dice(), Ids::default());
        Node { world: world.clone(), name, dice, token, ids, opened: Vec::new(), savepoint: None }
    }

    /// Runs until the faults end.
    pub async fn live(mut self) {
        while !self.world.is_calm() {
            let world = self.world.clone();
            tokio::select! {
                biased;
                token = world.elections.win(&world, &mut self.dice) => self.token = token,
                () = world.calm() => return,
            }
            world.say(|| format!("{} leads under {}", self.name, self.token));
            let more = if self.dice.chance(world.plan.crowded) { 1 + self.dice.below(3) } else { 0 };
            let another =
                |number: usize| Node::named(&world, format!("{}{}", self.name, "'".repeat(number)), self.token);
            let mut sessions: Vec<Node> = (1..=more).map(another).collect();
            join(self.lead(), join_all(sessions.iter_mut().map(Node::lead))).await;
        }
    }

    async fn lead(&mut self) {
        while !self.world.is_calm() {
            let Some(proxy) = self.world.some_proxy(&mut self.dice) else { return pass(&mut self.dice, 100).await };
            if let Next::CampaignsAgain = self.work(&proxy).await {
                return;
            }
        }
    }

    /// One session.
    async fn work(&mut self, proxy: &Arc<Proxy>) -> Next {
        let at_start = self.dice.chance(50).then(|| self.value());
        let is_set = at_start.is_some();
        let mut client = Client::connect(&self.world, proxy, &self.name, at_start);
        self.ids = client.ids.clone();
        if !client.is_ready().await {
            return Next::Reconnects;
        }
        if !is_set {
            let set = Unit::simple(vec![Sql::Set { value: self.value(), local: false }]);
            if let Outcome::Over(_) = client.say(&[set]).await {
                return Next::Reconnects;
            }
        }
        if self.world.plan.strings && self.dice.chance(40) {
            client.say(&[Unit::simple(vec![Sql::SetPlainStrings { are: false, local: false }])]).await;
        }
        for _ in 0..self.dice.below(14) {
            if self.world.is_calm() {
                break;
            }
            let leads = self.world.elections.renew(&self.world, self.token);
            if !leads && self.dice.chance(25) {
                client.close();
                return Next::CampaignsAgain;
            }
            self.savepoint = client.some_savepoint();
            let mut units = self.units(&client);
            let (_, before) = units.split_last_mut().unwrap();
            for unit in before.iter_mut().filter(|unit| unit.form == Form::Unsynced) {
                // The client does not know yet whether it must send a Sync.
                unit.form = Form::Extended { bound: true, flushes: false };
            }
            if let [unit] = units.as_mut_slice()
                && unit.copy.rows.is_empty()
                && matches!(unit.form, Form::Simple | Form::Extended { .. } | Form::Named { .. })
                && self.dice.chance(15)
            {
                unit.form = Form::Flushed;
            }
            if self.world.fault(&mut self.dice, self.world.plan.unruly / 3) {
                client.hang_up_within(&units, &mut self.dice).await;
                return Next::Reconnects;
            }
            self.cancel_soon(&client);
            match client.say(&units).await {
                Outcome::Over(_) => return Next::Reconnects,
                Outcome::Failed(code) => {
                    self.is_due(&code);
                    if code == "LF001" && self.dice.chance(40) {
                        client.close();
                        return Next::CampaignsAgain;
                    }
                    // The error asks the client to wait.
                    if code == "LF006" && !self.dice.chance(self.world.plan.hasty) {
                        pass(&mut self.dice, 200).await;
                    }
                }
                Outcome::Done => {}
            }
            self.idle(client.in_block).await;
        }
        if self.world.is_calm() && self.dice.chance(50) {
            // The client stalls forever, and keeps its transaction open.
            self.world.stall(client);
            return Next::CampaignsAgain;
        }
        client.close();
        if self.dice.chance(30) { Next::CampaignsAgain } else { Next::Reconnects }
    }

    /// Pauses. Some pauses are so long that the node loses its lease without noticing.
    async fn idle(&mut self, in_block: bool) {
        match self.dice.below(100) {
            0..30 if in_block => pass(&mut self.dice, 800).await,
            0..70 => {}
            70..90 => pass(&mut self.dice, 40).await,
            90..94 => self.world.elections.resign(&self.world, self.token),
            _ => {
                self.world.say(|| format!("{} stalls", self.name));
                pass(&mut self.dice, 2500).await;
            }
        }
    }

    /// The value of `lease.fence`, in one of its forms.
    fn value(&mut self) -> String {
        let token = self.token;
        let shards = if self.world.plan.keys { &SHARDS[..] } else { &[] };
        let names = ["jobs", "ticks"].iter().chain(shards);
        match self.dice.below(3) {
            0 => names.map(|name| format!("{name}={token}")).collect::<Vec<_>>().join(", "),
            _ => token.to_string(),
        }
    }

    fn table(&mut self) -> Table {
        if self.world.plan.keys && self.dice.chance(self.world.plan.keyed) {
            return Table::Shards;
        }
        self.plain_table()
    }

    fn plain_table(&mut self) -> Table {
        *self.dice.pick(&[Table::Jobs, Table::Jobs, Table::Jobs, Table::Ticks, Table::Notes])
    }

    fn write(&mut self) -> Sql {
        if self.world.plan.views && self.dice.chance(30) {
            return Sql::InsertBy { view: self.dice.below(2) as u8, id: Some(self.ids.next()) };
        }
        let table = self.table();
        write(&self.world, &mut self.dice, table, self.ids.next())
    }

    fn lock(&mut self) -> Sql {
        let table = self.table();
        Sql::Lock { table, row: self.world.some_row(&mut self.dice, table) }
    }

    fn form(&mut self) -> Form {
        let plan = &self.world.plan;
        match self.dice.below(4) {
            0 if plan.portals => *self.dice.pick(&[Form::Late, Form::Late, Form::Unsynced]),
            1 if plan.names => Form::Named {
                name: self.dice.below(2) as u8,
                closes: self.dice.chance(60),
                parses: self.dice.chance(60),
            },
            0 | 1 => Form::Extended { bound: self.dice.chance(50), flushes: self.dice.chance(10) },
            _ => Form::Simple,
        }
    }

    fn begin(&mut self) -> Sql {
        if self.world.plan.isolates && self.dice.chance(40) { Sql::BeginRepeatable } else { Sql::Begin }
    }

    /// The next units, which the client sends at once.
    fn units(&mut self, client: &Client) -> Vec<Unit> {
        if client.has_failed {
            let end = match self.savepoint {
                Some(name) if self.dice.chance(50) => Sql::RollbackTo(name),
                _ if self.dice.chance(70) => Sql::Rollback,
                _ => Sql::Commit,
            };
            return vec![Unit { form: self.form(), ..Unit::simple(vec![end]) }];
        }
        if self.dice.chance(8)
            && let Some(units) = self.in_doubt()
        {
            return units;
        }
        if !client.in_block {
            self.opened.clear();
        }
        if self.world.plan.portals && self.dice.chance(if client.in_block { 60 } else { 25 }) {
            return match (client.in_block, self.dice.below(5)) {
                (false, 1..) => vec![Unit::simple(vec![self.begin()])],
                (true, 0) => vec![Unit { form: self.form(), ..Unit::simple(self.in_savepoint()) }],
                _ => self.portal(),
            };
        }
        let number = if self.dice.chance(self.world.plan.hasty) { 2 + self.dice.below(3) } else { 1 };
        (0..number).map(|_| self.unit(client.in_block, number == 1)).collect()
    }

    /// `alone`: the client sends nothing else before the reply.
    fn unit(&mut self, in_block: bool, alone: bool) -> Unit {
        let unruly = self.world.plan.unruly;
        if self.world.fault(&mut self.dice, unruly) {
            let odd = match self.dice.chance(10) {
                true => return Unit::call(false),
                false => self.odd(),
            };
            return Unit { form: self.form(), ..Unit::simple(odd) };
        }
        let special = if self.world.plan.calls && in_block { 50 } else { 20 };
        if self.dice.chance(special)
            && let Some(unit) = self.special(in_block)
        {
            return unit;
        }
        let statements = match self.dice.below(100) {
            0..40 => vec![self.write()],
            40..50 => (0..2 + self.dice.below(3)).map(|_| self.write()).collect(),
            50..60 if in_block && alone => vec![Sql::Commit],
            60..64 if in_block && alone => vec![Sql::Rollback],
            50..60 if !in_block && alone => vec![self.begin()],
            60..70 if !in_block => vec![self.begin(), self.write(), self.write(), Sql::Commit],
            64..74 => {
                let (mut form, mut copy) = (self.form(), self.copy(alone));
                if form == Form::Unsynced {
                    form = Form::Simple;
                }
                if !alone && form != Form::Simple && copy.end == End::InvalidRow {
                    // The proxy could not determine whether the server has read the Sync during the COPY or after it.
                    copy.end = End::Fails;
                }
                return Unit { form, ..Unit::copies(self.plain_table(), copy) };
            }
            74..80 if in_block && alone => self.in_savepoint(),
            80..86 => vec![self.lock()],
            86..90 => vec![Sql::Sleep(60)],
            90..93 => vec![self.write(), Sql::Fail, self.write()],
            93..96 => return Unit::call(true),
            _ => vec![Sql::Read],
        };
        Unit { form: self.form(), ..Unit::simple(statements) }
    }

    /// If other units follow, the client sends the rows before them.
    fn copy(&mut self, alone: bool) -> Copy {
        let rows = (0..1 + self.dice.below(3)).map(|_| self.ids.next()).collect();
        let end = match self.dice.below(10) {
            // Before another unit, the proxy would report an unexpected message.
            0 if alone => End::InvalidRow,
            0..4 if self.world.plan.unruly > 0 => End::InvalidRow,
            0 | 1 => End::Fails,
            _ => End::Done,
        };
        Copy { rows, end, is_eager: !alone || self.dice.chance(20) }
    }

    fn cancel_soon(&mut self, client: &Client) {
        if self.world.fault(&mut self.dice, self.world.plan.unruly / 3) {
            let (world, process, after) = (self.world.clone(), client.process(), self.dice.below(20) as u64);
            tokio::spawn(async move {
                sleep(Duration::from_millis(after)).await;
                cancel(&world, &process);
            });
        }
    }

    /// Reports an error that does not apply: without resets, well-formed tokens cause no error about their form. A reset
    /// within a transaction gives one token two epochs.
    fn is_due(&self, code: &str) {
        if self.world.plan.is_plain() && ["LF002", "LF003", "LF004"].contains(&code) {
            self.world.judge.object(format!("{} is told {code}, and its token is as it should be", self.name));
        }
    }
}
