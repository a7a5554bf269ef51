//! What all parts of one history share: its seed, its plan of faults, its story.
//!
//! Owns chance. Must never draw from anything but the seed: the same seed is the same history, to the last byte.

use super::client::Client;
use super::elections::Held;
use super::judge::Judge;
use super::proxy::Proxy;
use super::server::Server;
use super::sql::{SHARDS, SHARED, Table};
use super::store::State as Gate;
pub use fencegate_testing::dice::Dice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// So many keys are in use at a time, each for so many milliseconds.
const KEYS_AT_ONCE: usize = 3;
const KEY_LASTS: usize = 120;

/// One history's world.
pub struct World {
    seed: u64,
    pub plan: Plan,
    pub judge: Judge,
    pub server: Server,
    pub elections: Arc<Held>,
    proxies: Mutex<Vec<Arc<Proxy>>>,
    /// Clients that say nothing any more, and do not hang up; None: all do by now.
    stalled: Mutex<Option<Vec<Client>>>,
    /// Texts that were a string and nothing else to whoever has sent them: the table and the id of the write within.
    strings: Mutex<Vec<(Table, u64)>>,
    calm: AtomicBool,
    calmed: Notify,
    actors: AtomicU64,
    numbers: AtomicU64,
    ids: AtomicU64,
    began: Instant,
    story: Option<Mutex<Vec<String>>>,
}

/// What may happen in a history. Each is a chance in percent, or a number.
#[derive(Debug)]
pub struct Plan {
    pub proxies: usize,
    pub nodes: usize,
    /// So many milliseconds pass before the faults end.
    pub length: u64,
    /// A question of a control connection fails, or is answered when nobody waits any more.
    pub control: usize,
    /// The control connections take so many milliseconds more, at most.
    pub lag: usize,
    /// A leader has more sessions than one.
    pub crowded: usize,
    /// A connection that listens breaks as soon as it does.
    pub listening: usize,
    /// A question to the elections fails.
    pub elections: usize,
    /// A process that is told to end takes its time.
    pub slow_ends: usize,
    /// Clients hang up, cancel, and change tokens in odd moments.
    pub unruly: usize,
    /// Views are made and dropped, and written by.
    pub views: bool,
    /// Statements are prepared, and run by their names.
    pub names: bool,
    /// A table is fenced by its keys; and that table is what is written to, in percent.
    pub keys: bool,
    pub keyed: usize,
    /// Whole tables are locked, and transactions keep one snapshot.
    pub isolates: bool,
    /// Sessions read strings in both ways.
    pub strings: bool,
    /// The guard is installed.
    pub guard: bool,
    /// The tokens of an election are those of leases in the database.
    pub leases: bool,
    /// The server crashes, or a standby takes its place; proxies crash or stop for a while; policies change; fences are reset.
    pub disasters: Vec<Disaster>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disaster {
    Restart,
    Failover,
    ProxyCrash,
    ProxyStop,
    Reload,
    Reset,
    ListenerLost,
}

const DISASTERS: [Disaster; 7] = [
    Disaster::Restart,
    Disaster::Failover,
    Disaster::ProxyCrash,
    Disaster::ProxyStop,
    Disaster::Reload,
    Disaster::Reset,
    Disaster::ListenerLost,
];

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let dice = &mut Dice::new(seed);
        let often = |dice: &mut Dice, most: usize| if dice.chance(50) { 0 } else { 1 + dice.below(most) };
        let kinds: Vec<bool> = (0..6).map(|_| dice.chance(30)).collect();
        // A view takes its time to be made, heard of and written by.
        let is_long = kinds[0] || dice.chance(20);
        let disasters = if dice.chance(40) { 1 + dice.below(3) } else { 0 };
        let plan = Plan {
            proxies: 2 + dice.below(2),
            nodes: 2 + dice.below(3),
            length: if is_long { 300 + dice.below(4000) } else { 150 + dice.below(2000) } as u64,
            control: often(dice, 12),
            lag: often(dice, 80),
            crowded: often(dice, 100),
            listening: often(dice, 20),
            elections: often(dice, 20),
            slow_ends: often(dice, 60),
            unruly: often(dice, 15),
            views: kinds[0],
            names: kinds[1],
            keys: kinds[2],
            keyed: if dice.chance(50) { 30 } else { 80 },
            isolates: kinds[3],
            strings: kinds[4],
            guard: kinds[5],
            leases: seed % 4 == 3,
            disasters: (0..disasters).map(|_| *dice.pick(&DISASTERS)).collect(),
        };
        // What becomes of a view that a proxy may not have heard of is the guard's.
        match plan.views && dice.chance(50) {
            true => Plan { control: 0, listening: 0, disasters: Vec::new(), ..plan },
            false => plan,
        }
    }

    /// Nothing makes an error due that is about the form of what was said.
    pub fn is_plain(&self) -> bool {
        let is_odd = self.unruly > 0 || self.views || self.names || self.strings;
        !is_odd && !self.disasters.contains(&Disaster::Reset)
    }

    /// The tables that are fenced.
    pub fn fenced(&self) -> &'static [Table] {
        if self.keys { &Table::FENCED } else { &Table::FENCED[..2] }
    }
}

impl World {
    /// The world of that seed, in which that may happen. One that tells its story is slower.
    pub fn new(seed: u64, plan: Plan, tells: bool) -> Arc<World> {
        let story = tells.then(|| Mutex::new(vec![format!("{plan:?}")]));
        Arc::new(World {
            seed,
            plan,
            judge: Judge::default(),
            server: Server::new(),
            elections: Arc::default(),
            proxies: Mutex::default(),
            stalled: Mutex::new(Some(Vec::new())),
            strings: Mutex::default(),
            calm: AtomicBool::new(false),
            calmed: Notify::new(),
            actors: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            began: Instant::now(),
            story,
        })
    }

    /// The next actor's own chance.
    pub fn dice(&self) -> Dice {
        let actor = 1 + self.actors.fetch_add(1, Ordering::Relaxed);
        Dice::new(self.seed.wrapping_add(actor.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// One of the rows of a table. Of keys the last few: first tokens are rare, and so keys come into use one after the other.
    pub fn some_row(&self, dice: &mut Dice, table: Table) -> u8 {
        if !table.is_keyed() {
            return dice.below(2) as u8;
        }
        let newest = self.began.elapsed().as_millis() as usize / KEY_LASTS;
        (newest.min(SHARDS.len() - KEYS_AT_ONCE) + dice.below(KEYS_AT_ONCE)) as u8
    }

    /// The number of a proxy or a session.
    pub fn number(&self) -> u64 {
        1 + self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// An id that is no session's own: several may send it.
    pub fn id(&self) -> u64 {
        SHARED + self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The faults have ended.
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    pub fn end_faults(&self) {
        self.say(|| "faults end".to_owned());
        self.calm.store(true, Ordering::Relaxed);
        self.calmed.notify_waiters();
    }

    /// Returns when the faults have ended. Cancel-safe.
    pub async fn calm(&self) {
        let calmed = self.calmed.notified();
        if !self.is_calm() {
            calmed.await;
        }
    }

    /// With that chance in percent, while there are faults.
    pub fn fault(&self, dice: &mut Dice, percent: usize) -> bool {
        percent > 0 && dice.chance(percent) && !self.is_calm()
    }

    /// The client says nothing any more, and does not hang up as long as anybody may. One hangs up whose locks no fence covers:
    /// the rightful leader would wait for it.
    pub fn stall(&self, client: Client) {
        if self.server.has_locks_without_token(client.process().load(Ordering::Relaxed)) {
            return;
        }
        if let Some(stalled) = &mut *self.stalled.lock().unwrap() {
            stalled.push(client);
        }
    }

    /// From now on whoever stalls hangs up.
    pub fn end_stalls(&self) {
        drop(self.stalled.lock().unwrap().take());
    }

    /// The text was a string, and its write is not done: another may send it.
    pub fn was_string(&self, table: Table, id: u64) {
        self.strings.lock().unwrap().push((table, id));
    }

    /// A text that was a string to somebody else.
    pub fn some_string(&self, dice: &mut Dice) -> Option<(Table, u64)> {
        let mut strings = self.strings.lock().unwrap();
        let at = dice.below(strings.len());
        (at < strings.len()).then(|| strings.swap_remove(at))
    }

    pub fn add_proxy(&self, proxy: Arc<Proxy>) {
        self.proxies.lock().unwrap().push(proxy);
    }

    /// Those that have not crashed.
    pub fn proxies(&self) -> Vec<Arc<Proxy>> {
        self.proxies.lock().unwrap().iter().filter(|proxy| !proxy.is_crashed()).cloned().collect()
    }

    /// Those that stand still go on.
    pub async fn wake_proxies(&self) {
        for proxy in self.proxies().iter().filter(|proxy| proxy.gate.state() == Gate::Stopped) {
            proxy.gate.set(Gate::Runs);
            self.say(|| format!("{} goes on", proxy.name));
            self.keep_up(proxy).await;
        }
    }

    /// One that has begun meanwhile, with the policies of before, or has stood still, gets the others as well.
    pub async fn keep_up(&self, proxy: &Proxy) {
        if self.plan.disasters.contains(&Disaster::Reload) {
            proxy.reload(1).await;
        }
    }

    /// One of them.
    pub fn some_proxy(&self, dice: &mut Dice) -> Option<Arc<Proxy>> {
        let proxies = self.proxies();
        (!proxies.is_empty()).then(|| dice.pick(&proxies).clone())
    }

    /// Nothing of the history is left: proxies and world hold each other, and so do those who listen.
    pub fn end(&self) {
        self.proxies.lock().unwrap().clear();
        self.server.restart();
    }

    /// A sentence of the story, which ends with the first breach.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if let Some(story) = &self.story
            && self.judge.wrong().is_none()
        {
            story.lock().unwrap().push(format!("{:>7} ms  {}", self.began.elapsed().as_millis(), what()));
        }
    }

    pub fn story(&self) -> Vec<String> {
        self.story.as_ref().map(|story| story.lock().unwrap().clone()).unwrap_or_default()
    }
}

/// Where several tasks draw from one chance, each gets its own.
pub struct Chances(Mutex<Dice>);

impl Chances {
    pub fn new(world: &World) -> Chances {
        Chances(Mutex::new(world.dice()))
    }

    pub fn next(&self) -> Dice {
        Dice::new(self.0.lock().unwrap().below(usize::MAX) as u64)
    }
}

/// When something that takes a moment has come: mostly at once.
pub fn delay(dice: &mut Dice) -> Option<Instant> {
    let time = match dice.below(100) {
        0..65 => return None,
        65..92 => 1 + dice.below(3),
        _ => dice.below(30),
    };
    Some(Instant::now() + Duration::from_millis(time as u64))
}

/// Something takes a moment.
pub async fn moment(dice: &mut Dice) {
    match delay(dice) {
        Some(due) => tokio::time::sleep_until(due).await,
        None if dice.chance(50) => tokio::task::yield_now().await,
        None => {}
    }
}

/// At most so many milliseconds pass.
pub async fn pass(dice: &mut Dice, most: usize) {
    sleep(Duration::from_millis(dice.below(most) as u64)).await;
}
