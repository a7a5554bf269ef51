//! The state that all parts of one history share: its seed, its plan of faults, its trace.
//!
//! Owns randomness. Must never use another source than the seed: the same seed produces the same history, to the last
//! byte.

use super::client::Client;
use super::coverage::Coverage;
use super::elections::Held;
use super::judge::Judge;
use super::proxy::Proxy;
use super::server::Server;
use super::sql::{ROWS, SHARDS, SHARED, Table};
use super::store::State as Gate;
pub use fencegate_testing::dice::Dice;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Number of keys in use at a time, and the milliseconds for which each is used.
const KEYS_AT_ONCE: usize = 3;
const KEY_LASTS: usize = 120;

/// One history's world.
pub struct World {
    seed: u64,
    pub plan: Plan,
    pub judge: Judge,
    pub coverage: Coverage,
    pub server: Server,
    pub elections: Arc<Held>,
    proxies: Mutex<Vec<Arc<Proxy>>>,
    /// Clients that are silent and keep their connections; None once they must close them.
    stalled: Mutex<Option<Vec<Client>>>,
    /// Texts that were only a string in the session that sent them: the table and the id of the write inside.
    strings: Mutex<Vec<(Table, u64)>>,
    /// When a client has sent each write through a view, by its id.
    sent_by_view: Mutex<HashMap<u64, Instant>>,
    calm: AtomicBool,
    calmed: Notify,
    actors: AtomicU64,
    numbers: AtomicU64,
    ids: AtomicU64,
    began: Instant,
    story: Option<Mutex<Vec<String>>>,
}

/// The faults of a history, as probabilities in percent or as numbers.
#[derive(Debug)]
pub struct Plan {
    pub proxies: usize,
    pub nodes: usize,
    /// Milliseconds until the faults end.
    pub length: u64,
    /// A request of a control connection fails, or is executed after its caller has given up.
    pub control: usize,
    /// Maximum additional delay on control connections, in milliseconds.
    pub lag: usize,
    /// A leader has several sessions.
    pub crowded: usize,
    /// A listening connection breaks as soon as it listens.
    pub listening: usize,
    /// A request to the elections fails.
    pub elections: usize,
    /// A terminated process ends slowly.
    pub slow_ends: usize,
    /// Clients disconnect, cancel, and change tokens at unexpected moments.
    pub unruly: usize,
    /// Views are created, dropped, and written through.
    pub views: bool,
    /// Statements are prepared, and run by their names.
    pub names: bool,
    /// A table is fenced by its keys; and the percentage of writes to that table.
    pub keys: bool,
    pub keyed: usize,
    /// Whole tables are locked, and transactions keep one snapshot.
    pub isolates: bool,
    /// Sessions use both string settings.
    pub strings: bool,
    /// The guard is installed; and clients call functions that write, which only the guard sees.
    pub guard: bool,
    pub calls: bool,
    /// Sessions change their search path.
    pub paths: bool,
    /// The server reports changes of the search path, as PostgreSQL 18 does.
    pub reports_path: bool,
    /// Portals run later than they are bound, and simple queries follow a pipeline without Sync.
    pub portals: bool,
    /// A client sends several units without waiting for the replies, and writes again at once after LF006.
    pub hasty: usize,
    /// The server reports idle timeouts so short that most Admits that wait are given up.
    pub impatient: bool,
    /// A text is parsed only with a permit, for which the session waits.
    pub permits: usize,
    /// The tokens of an election come from leases in the database.
    pub leases: bool,
    /// The server crashes or a standby replaces it; proxies crash or are suspended; policies change; fences are reset.
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
        let kinds: Vec<bool> = (0..9).map(|_| dice.chance(30)).collect();
        // Histories with views take longer: a view is created, announced and then used.
        let is_long = kinds[0] || dice.chance(20);
        let disasters = if dice.chance(40) { 1 + dice.below(3) } else { 0 };
        let plan = Plan {
            proxies: 2 + dice.below(2),
            nodes: 2 + dice.below(3),
            length: if is_long { 300 + dice.below(4000) } else { 150 + dice.below(2000) } as u64,
            control: often(dice, 12),
            // Sometimes longer than a timeout of the server.
            lag: if dice.chance(10) { 300 } else { often(dice, 80) },
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
            calls: kinds[5] && kinds[6],
            paths: kinds[7] && !kinds[0],
            reports_path: dice.chance(30),
            portals: kinds[8],
            hasty: if dice.chance(20) { 70 } else { 12 },
            impatient: dice.chance(15),
            permits: often(dice, 20),
            leases: seed % 4 == 3,
            disasters: (0..disasters).map(|_| *dice.pick(&DISASTERS)).collect(),
        };
        // If faults can hide a view from a proxy, the guard decides. Half of the histories with views have no such
        // faults.
        match plan.views && dice.chance(50) {
            true => Plan { control: 0, listening: 0, disasters: Vec::new(), ..plan },
            false => plan,
        }
    }

    /// Returns true if no statement should cause an error about its form.
    pub fn is_plain(&self) -> bool {
        let is_odd = self.unruly > 0 || self.views || self.names || self.strings || self.calls || self.paths;
        !is_odd && !self.disasters.contains(&Disaster::Reset)
    }

    /// The tables that are fenced.
    pub fn fenced(&self) -> &'static [Table] {
        if self.keys { &Table::FENCED } else { &Table::FENCED[..2] }
    }
}

impl World {
    /// The world of that seed, with these possible events. Tracing makes it slower.
    pub fn new(seed: u64, plan: Plan, tells: bool) -> Arc<World> {
        let story = tells.then(|| Mutex::new(vec![format!("{plan:?}")]));
        Arc::new(World {
            seed,
            plan,
            judge: Judge::default(),
            coverage: Coverage::default(),
            server: Server::new(),
            elections: Arc::default(),
            proxies: Mutex::default(),
            stalled: Mutex::new(Some(Vec::new())),
            strings: Mutex::default(),
            sent_by_view: Mutex::default(),
            calm: AtomicBool::new(false),
            calmed: Notify::new(),
            actors: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            began: Instant::now(),
            story,
        })
    }

    /// The random generator of the next actor.
    pub fn dice(&self) -> Dice {
        let actor = 1 + self.actors.fetch_add(1, Ordering::Relaxed);
        Dice::new(self.seed.wrapping_add(actor.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// A random row of a table. For keys, one of the last few: first tokens are rare, so keys come into use one after
    /// the other.
    pub fn some_row(&self, dice: &mut Dice, table: Table) -> u8 {
        if !table.is_keyed() {
            return dice.below(ROWS.into()) as u8;
        }
        let newest = self.began.elapsed().as_millis() as usize / KEY_LASTS;
        (newest.min(SHARDS.len() - KEYS_AT_ONCE) + dice.below(KEYS_AT_ONCE)) as u8
    }

    /// The number of a proxy or a session.
    pub fn number(&self) -> u64 {
        1 + self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// An id that belongs to no session: several may send it.
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

    /// Returns true with that probability in percent, while there are faults.
    pub fn fault(&self, dice: &mut Dice, percent: usize) -> bool {
        percent > 0 && dice.chance(percent) && !self.is_calm()
    }

    /// The client is silent but keeps its connection for as long as that is permitted. A client with locks that no
    /// fence covers disconnects: the current leader would wait for it, or for a session that waits for it.
    pub fn stall(&self, client: Client) {
        let pid = client.process().load(Ordering::Relaxed);
        if self.server.has_locks_without_token(pid) || self.server.holds_unfenced(pid) {
            return;
        }
        if let Some(stalled) = &mut *self.stalled.lock().unwrap() {
            stalled.push(client);
        }
    }

    /// From now on silent clients disconnect.
    pub fn end_stalls(&self) {
        drop(self.stalled.lock().unwrap().take());
    }

    /// A client sends a write through a view.
    pub fn note_sent_by_view(&self, id: u64) {
        self.sent_by_view.lock().unwrap().insert(id, Instant::now());
    }

    /// When a client has sent this write through a view.
    pub fn sent_by_view(&self, id: u64) -> Option<Instant> {
        self.sent_by_view.lock().unwrap().get(&id).copied()
    }

    /// The text was a string, and its write was not executed: another session may send it.
    pub fn was_string(&self, table: Table, id: u64) {
        self.strings.lock().unwrap().push((table, id));
    }

    /// A text that was a string in another session.
    pub fn some_string(&self, dice: &mut Dice) -> Option<(Table, u64)> {
        let mut strings = self.strings.lock().unwrap();
        let at = dice.below(strings.len());
        (at < strings.len()).then(|| strings.swap_remove(at))
    }

    pub fn add_proxy(&self, proxy: Arc<Proxy>) {
        self.proxies.lock().unwrap().push(proxy);
    }

    /// The proxies that have not crashed.
    pub fn proxies(&self) -> Vec<Arc<Proxy>> {
        self.proxies.lock().unwrap().iter().filter(|proxy| !proxy.is_crashed()).cloned().collect()
    }

    /// Resumes the suspended proxies.
    pub async fn wake_proxies(&self) {
        for proxy in self.proxies().iter().filter(|proxy| proxy.gate.state() == Gate::Stopped) {
            proxy.gate.set(Gate::Runs);
            self.say(|| format!("{} goes on", proxy.name));
            self.keep_up(proxy).await;
        }
    }

    /// Proxies that started with the previous policies in the meantime, or were suspended, also receive the new ones.
    pub async fn keep_up(&self, proxy: &Proxy) {
        if self.plan.disasters.contains(&Disaster::Reload) {
            proxy.reload(1).await;
        }
    }

    /// A random proxy that has not crashed.
    pub fn some_proxy(&self, dice: &mut Dice) -> Option<Arc<Proxy>> {
        let proxies = self.proxies();
        (!proxies.is_empty()).then(|| dice.pick(&proxies).clone())
    }

    /// Drops all state of the history: proxies and world refer to each other, and so do listeners.
    pub fn end(&self) {
        self.proxies.lock().unwrap().clear();
        self.server.restart();
    }

    /// A line of the trace, which ends with the first violation.
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

/// Each task gets its own random generator.
pub struct Chances(Mutex<Dice>);

impl Chances {
    pub fn new(world: &World) -> Chances {
        Chances(Mutex::new(world.dice()))
    }

    pub fn next(&self) -> Dice {
        Dice::new(self.0.lock().unwrap().below(usize::MAX) as u64)
    }
}

/// The arrival time after a short delay: usually none.
pub fn delay(dice: &mut Dice) -> Option<Instant> {
    let time = match dice.below(100) {
        0..65 => return None,
        65..92 => 1 + dice.below(3),
        _ => dice.below(30),
    };
    Some(Instant::now() + Duration::from_millis(time as u64))
}

/// Waits for a short time.
pub async fn moment(dice: &mut Dice) {
    match delay(dice) {
        Some(due) => tokio::time::sleep_until(due).await,
        None if dice.chance(50) => tokio::task::yield_now().await,
        None => {}
    }
}

/// Waits for at most that many milliseconds.
pub async fn pass(dice: &mut Dice, most: usize) {
    sleep(Duration::from_millis(dice.below(most) as u64)).await;
}
