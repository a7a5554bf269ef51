//! The store in memory does what PostgreSQL does: the same random operations on both, which have to agree after each.

use crate::fence::keys::family;
use crate::fence::server::{World, connect, metrics, resource};
use crate::fence::stale_below;
use crate::support::dice::Dice;
use crate::support::identity::identity;
use crate::support::store::Server;
use crate::support::{length, seed, until};
use fencegate::fence::session::{Epoch, Identity, SessionFence};
use fencegate::fence::store::{Granted, Holder, Key, Listener, Marked, Postgres, Recorded, Report, Store};
use fencegate::fence::{Admission, Database, Fences, Higher, Remedy};
use fencegate::policy::{QualifiedName, Resource};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio_postgres::Client;

/// So many steps come across all that is worth seeing.
const LONG: u64 = 4_000;
const PROXIES: usize = 2;
const SESSIONS: usize = 5;
/// Longer than any run.
const FUTURE: i64 = 3_600_000_000;

#[tokio::test]
async fn both_agree_after_every_operation() {
    let mut dice = Dice::new(seed());
    let steps = length(400, LONG);
    let mut both = Both::new().await;
    both.compare("at first").await;
    for step in 0..steps {
        let what = both.step(&mut dice).await;
        both.compare(&format!("step {step}: {what}")).await;
    }
    both.end_prepared().await;
    println!("{:?}", both.seen);
    assert!(steps < LONG || WORTH_SEEING.iter().all(|it| both.seen.contains_key(it)), "not all has happened");
}

/// Of two old leaders that at work is ended; the other goes on, and is stale.
#[tokio::test]
async fn the_protocol_runs_over_the_store_in_memory() {
    let resource = resource("r", "a");
    let who = |pid: i32| Identity {
        pid,
        backend_start: format!("{pid}.000001"),
        system_identifier: "1".into(),
        postmaster_start: "1.000001".into(),
    };
    let server = Server::new(1_000_000, &who(0), [table("ticks")]);
    let proxy = |name: &'static str| {
        let proxy = Database::over(|listener| server.store(name, listener), "memory", name, None, metrics());
        proxy.put_in_force(std::slice::from_ref(&resource));
        proxy
    };
    let session = |proxy: &Arc<Database>, pid| {
        server.begin_process(&who(pid));
        let fence = Arc::new(SessionFence::new(Ok(who(pid))));
        (proxy.register(fence.clone()), fence)
    };
    let (one, two) = (proxy("p1"), proxy("p2"));
    let ((_at_work, at_work), (_idle, idle), (_new, new)) = (session(&one, 1), session(&one, 2), session(&two, 3));
    one.admit(&at_work, &resource, 7).await.unwrap();
    one.admit(&idle, &resource, 7).await.unwrap();
    assert!(at_work.begin_write([("r", 7)]));
    server.write(1, &table("ticks"), false);
    two.admit(&new, &resource, 8).await.unwrap();
    assert_eq!((server.lives(1), server.lives(2)), (false, true));
    stale_below(one.admit(&idle, &resource, 7).await, 8);
}

/// What a long run has to come across.
const WORTH_SEEING: [&str; 12] = [
    "admitted",
    "admitted again",
    "not fenceable",
    "of older policies",
    "of other policies",
    "raised",
    "not raised",
    "drained",
    "prepared transaction",
    "reset",
    "deleted",
    "ended",
];

/// What was announced to a proxy.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<String>>);

impl Listener for Heard {
    fn listens(&self, _connection: u64) {}

    fn lost(&self, _connection: u64) {}

    fn announced(&self, resource: &str) {
        self.0.lock().unwrap().push(resource.to_owned());
    }

    fn catalogue_changed(&self) {
        self.0.lock().unwrap().push("{catalogue}".to_owned());
    }
}

/// One proxy's two stores. All that is asked of one is asked of the other.
struct Proxy {
    real: Arc<dyn Store>,
    memory: Arc<dyn Store>,
    heard: [Arc<Heard>; 2],
}

struct Session {
    client: Client,
    who: Identity,
    in_transaction: bool,
}

struct Both {
    world: World,
    memory: Arc<Server>,
    proxies: Vec<Proxy>,
    sessions: Vec<Session>,
    /// Those of sessions that were ended, too.
    identities: Vec<Identity>,
    /// Each under two policies.
    resources: Vec<[Arc<Resource>; 2]>,
    keyed: [Arc<Resource>; 2],
    /// Admissions as they were once read, in both.
    read: Vec<(Granted, Granted)>,
    prepared: Vec<String>,
    /// How many there were.
    gids: usize,
    /// When policies may have been loaded.
    times: [i64; 4],
    /// How often what has happened.
    seen: BTreeMap<&'static str, usize>,
}

/// Asks both, and returns both answers.
macro_rules! ask {
    ($both:expr, $proxy:expr, $operation:ident($($argument:expr),*)) => {{
        let proxy = &$both.proxies[$proxy];
        let real = proxy.real.$operation($($argument),*).await.unwrap();
        let memory = proxy.memory.$operation($($argument),*).await.unwrap();
        (real, memory)
    }};
}

/// Both say the same.
macro_rules! same {
    ($what:expr, $answers:expr) => {{
        let (real, memory) = $answers;
        assert_eq!(real, memory, "{}: what PostgreSQL says, and what the store in memory does", $what);
    }};
}

impl Both {
    async fn new() -> Both {
        let world = World::new().await;
        world.run("CREATE TABLE other (n int); GRANT ALL ON other TO PUBLIC").await;
        let heard = || [Arc::new(Heard::default()), Arc::new(Heard::default())];
        let of_world = identity(&world.root).await;
        let control = || world.control_config(&world.control());
        let real = |name: &str, heard: &[Arc<Heard>; 2]| {
            Arc::new(Postgres::new(control(), name.to_owned(), heard[0].clone())) as Arc<dyn Store>
        };
        let now = real("p0", &heard()).now().await.unwrap();
        let memory = Server::new(now, &of_world, [table("ticks"), table("other")]);
        let proxy = |number: usize| {
            let (name, heard) = (format!("p{number}"), heard());
            Proxy { real: real(&name, &heard), memory: memory.store(&name, heard[1].clone()), heard }
        };
        let other = |fingerprint: &str| {
            let mut other = Arc::into_inner(resource("other", fingerprint)).unwrap();
            other.tables[0].name = table("other");
            Arc::new(other)
        };
        let (keyed, later) = (family(), family());
        let mut later = Arc::into_inner(later).unwrap();
        later.fingerprint = "later".to_owned();
        let keyed = [keyed, Arc::new(later)];
        let key = |key: &str| keyed.each_ref().map(|resource| resource.of_key(key).unwrap());
        let resources =
            vec![[resource("r", "a"), resource("r", "b")], [other("c"), other("d")], key("one"), key("two")];
        let proxies = (0..PROXIES).map(proxy).collect();
        Both {
            memory,
            proxies,
            sessions: Vec::new(),
            identities: Vec::new(),
            resources,
            keyed: keyed.clone(),
            read: Vec::new(),
            prepared: Vec::new(),
            gids: 0,
            seen: BTreeMap::new(),
            times: [now - 3, now - 2, now - 1, now + FUTURE],
            world,
        }
    }

    /// One operation. Returns its name.
    async fn step(&mut self, dice: &mut Dice) -> String {
        let proxy = dice.below(PROXIES);
        if dice.chance(25) {
            return self.step_of_a_session(dice).await;
        }
        let resource = if dice.chance(50) { &self.resources[0] } else { dice.pick(&self.resources) };
        let resource = resource[usize::from(dice.chance(8))].clone();
        let name = resource.name.clone();
        let loaded = if dice.chance(80) { self.times[1] } else { *dice.pick(&self.times) };
        let current = self.current(&name).await;
        let epoch = |dice: &mut Dice| {
            let near = current.filter(|_| dice.chance(70)).unwrap_or(Epoch { generation: 1, token: 1 });
            let generation = near.generation + i64::from(dice.chance(10)) - i64::from(dice.chance(10));
            Epoch { generation, token: (near.token + dice.below(4) as i64 - 1).max(1) }
        };
        match dice.below(33) {
            0..=8 => {
                let Some(who) = self.somebody(dice) else { return "nobody is there".into() };
                let token = current.filter(|_| dice.chance(90)).unwrap_or(epoch(dice)).token;
                let what = format!("admit {} to {name} under {token}", who.pid);
                let (real, memory) = ask!(self, proxy, admit(&who, &resource, token, loaded));
                self.saw("not fenceable", real.unfenceable.is_some());
                let recorded = real.current.as_ref().map(|(_, recorded)| *recorded);
                self.saw("of older policies", recorded == Some(Recorded::Older));
                self.saw("of other policies", recorded == Some(Recorded::Others));
                let admitted = (real.admission.clone(), memory.admission.clone());
                self.saw("admitted", admitted.0.as_ref().is_some_and(|(_, is_new)| *is_new));
                self.saw("admitted again", admitted.0.as_ref().is_some_and(|(_, is_new)| !is_new));
                same!(what, (plain(real), plain(memory)));
                if let (Some((real, _)), Some((memory, _))) = admitted {
                    self.read.push((real, memory));
                }
                what
            }
            9..=13 => {
                let (target, known) = (epoch(dice), current.map(|_| epoch(dice)).filter(|_| dice.chance(70)));
                let what = format!("publish {target:?} of {name}, known {known:?}");
                let (real, memory) = ask!(self, proxy, publish(&resource, target, known, loaded));
                self.saw(if real == current { "not raised" } else { "raised" }, true);
                same!(what, (real, memory));
                what
            }
            14..=19 => {
                let marked = current.filter(|_| dice.chance(90)).unwrap_or(epoch(dice));
                let what = format!("mark {marked:?} of {name}");
                let sorted = |marked| match marked {
                    Marked::Prepared(mut gids) => {
                        gids.sort();
                        Marked::Prepared(gids)
                    }
                    other => other,
                };
                let (real, memory) = ask!(self, proxy, mark(&resource, marked));
                self.saw("drained", real == Marked::Drained);
                self.saw("prepared transaction", matches!(real, Marked::Prepared(_)));
                same!(what, (sorted(real), sorted(memory)));
                what
            }
            20 => {
                let (known, token, force) = (epoch(dice), epoch(dice).token, dice.chance(50));
                let what = format!("reset {name} from {known:?} to {token}, by force: {force}");
                let (mut real, mut memory) = ask!(self, proxy, reset(&resource, known, token, "operator", force));
                self.saw("reset", real.after.is_some());
                let order = |it: &Higher| (-it.token, it.pid, it.is_ours);
                real.higher.sort_by_key(order);
                memory.higher.sort_by_key(order);
                same!(what, (real, memory));
                what
            }
            21..=22 => {
                let bound = current.filter(|_| dice.chance(70)).unwrap_or(epoch(dice));
                let what = format!("holders of {name} below {bound:?}");
                let (real, memory) = ask!(self, proxy, holders(&name, bound));
                same!(what, (holders(&real), holders(&memory)));
                self.read_both(real.into_iter().map(|it| it.row), memory.into_iter().map(|it| it.row));
                what
            }
            23 => {
                let bound = epoch(dice);
                let only = dice.chance(80).then_some((name.as_str(), bound));
                let what = format!("delete the dead of {only:?}");
                same!(what, sorted(ask!(self, proxy, delete_dead(only))));
                what
            }
            24 => {
                let bound = current.filter(|_| dice.chance(70)).unwrap_or(epoch(dice));
                let keys: Vec<Key> = self.identities.iter().map(key).collect();
                let due: Vec<Key> = keys.into_iter().filter(|_| dice.chance(60)).collect();
                if due.is_empty() {
                    return "nobody to terminate".into();
                }
                ask!(self, proxy, terminate(&due, &name, bound));
                self.bury_the_ended().await;
                format!("terminate {due:?}, admitted to {name} below {bound:?}")
            }
            25..=28 => {
                let rows: Vec<_> = (0..dice.below(4)).filter_map(|_| self.pick_read(dice)).collect();
                if rows.is_empty() {
                    return "nothing to delete".into();
                }
                let what = format!("delete {rows:?}");
                let families: Vec<&str> = rows.iter().map(|(row, _)| self.lock_name(&row.resource)).collect();
                let real: Vec<_> = rows.iter().zip(&families).map(|((row, _), family)| (row, *family)).collect();
                let memory: Vec<_> = rows.iter().zip(&families).map(|((_, row), family)| (row, *family)).collect();
                let proxy = &self.proxies[proxy];
                let real = proxy.real.delete(&real).await.unwrap();
                let memory = proxy.memory.delete(&memory).await.unwrap();
                real.iter().for_each(|_| *self.seen.entry("deleted").or_default() += 1);
                same!(what, sorted((real.iter().map(row).collect(), memory.iter().map(row).collect())));
                what
            }
            29 => {
                let what = format!("policies {} of {name} loaded at {loaded}", resource.fingerprint);
                ask!(self, proxy, record_policy(&resource, loaded));
                what
            }
            30 => {
                let keyed = self.keyed[usize::from(dice.chance(20))].clone();
                let what = format!("policies {} of all keys loaded at {loaded}", keyed.fingerprint);
                ask!(self, proxy, record_policy(&keyed, loaded));
                what
            }
            31 => {
                let enforced: Vec<String> =
                    ["a", "c"].map(str::to_owned).into_iter().filter(|_| dice.chance(50)).collect();
                match dice.below(4) {
                    0 => same!("leave", ask!(self, proxy, leave())),
                    1 => {
                        self.proxies[proxy].real.close(true).await;
                        self.proxies[proxy].memory.close(true).await;
                    }
                    2 => same!("catalogue", ask!(self, proxy, announce_catalogue())),
                    _ => same!("announce", ask!(self, proxy, announce_enforced(&enforced))),
                }
                format!("p{proxy} leaves, closes, announces {enforced:?} or the catalogue")
            }
            32 if dice.chance(30) => {
                self.world.run(&format!("SELECT fencegate.prune('0 s', '{name}')")).await;
                self.memory.prune(&name);
                format!("prune {name}")
            }
            _ => {
                let what = "read".to_owned();
                same!(what, sorted(ask!(self, proxy, epochs_above_admissions())));
                let (real, memory) = ask!(self, proxy, open_transactions());
                same!(what, (real.len(), memory.len()));
                for Identity { pid, .. } in &self.identities {
                    same!(what, ask!(self, proxy, guarded_write(&resource, *pid)));
                }
                what
            }
        }
    }

    /// Something that the server processes do, with no store in between.
    async fn step_of_a_session(&mut self, dice: &mut Dice) -> String {
        if self.sessions.len() < SESSIONS && dice.chance(60) {
            let client = connect(&self.world.config(&format!("{}_app", self.world.database))).await;
            let who = identity(&client).await;
            self.memory.begin_process(&who);
            self.identities.retain(|it| it.pid != who.pid);
            self.identities.push(who.clone());
            // The oldest have ended, or will not be missed.
            self.identities.drain(..self.identities.len().saturating_sub(2 * SESSIONS));
            let what = format!("process {} begins", who.pid);
            self.sessions.push(Session { client, who, in_transaction: false });
            return what;
        }
        if self.sessions.is_empty() {
            return "no session".into();
        }
        let number = dice.below(self.sessions.len());
        let name = *dice.pick(&["ticks", "other"]);
        let gid = format!("{}_{}", self.world.database, self.gids);
        let family = self.lock_name(&dice.pick(&self.resources)[0].name).to_owned();
        let Session { client, who, in_transaction } = &mut self.sessions[number];
        let pid = who.pid;
        let begin = if *in_transaction { "" } else { "BEGIN; " };
        let (what, statement) = match dice.below(8) {
            0 => {
                self.memory.end_process(pid);
                let session = self.sessions.remove(number);
                drop(session.client);
                self.wait_for_the_end_of(pid).await;
                return format!("process {pid} ends");
            }
            1..=2 => {
                self.memory.write(pid, &table(name), false);
                ("writes", format!("{begin}INSERT INTO {name} VALUES (1)"))
            }
            3 => {
                self.memory.write(pid, &table(name), true);
                ("locks rows", format!("{begin}SELECT FROM {name} FOR UPDATE"))
            }
            4 => {
                self.memory.guard_passes(pid, &family);
                let lock = format!("{begin}SELECT pg_advisory_xact_lock_shared(hashtext('{family}'), {pid})");
                ("is let pass by the guard", lock)
            }
            5 if *in_transaction => {
                self.memory.prepare(pid, &gid);
                self.gids += 1;
                self.prepared.push(gid.clone());
                ("prepares", format!("PREPARE TRANSACTION '{gid}'"))
            }
            _ => {
                self.memory.end_transaction(pid);
                ("ends its transaction", "ROLLBACK".to_owned())
            }
        };
        client.batch_execute(&statement).await.unwrap();
        *in_transaction = !matches!(what, "prepares" | "ends its transaction");
        if self.prepared.len() > 1 || dice.chance(20) {
            self.end_prepared().await;
        }
        format!("process {pid} {what}: {statement}")
    }

    async fn end_prepared(&mut self) {
        for gid in std::mem::take(&mut self.prepared) {
            self.world.run(&format!("ROLLBACK PREPARED '{gid}'")).await;
            self.memory.end_prepared(&gid);
        }
    }

    /// All that can be seen.
    async fn compare(&self, what: &str) {
        let names: Vec<&str> = self.resources.iter().map(|[resource, _]| resource.name.as_str()).collect();
        let resources: Vec<Arc<Resource>> = self.resources[..2].iter().map(|[it, _]| it.clone()).collect();
        let resources = [resources, vec![self.keyed[0].clone()]].concat();
        let pids: Vec<i32> = self.identities.iter().map(|who| who.pid).collect();
        for proxy in 0..PROXIES {
            let (mut real, mut memory) = ask!(self, proxy, epochs(&names));
            real.sort_by_key(|it| it.resource.clone());
            memory.sort_by_key(|it| it.resource.clone());
            same!(what, (real, memory));
            let (real, memory) = ask!(self, proxy, admissions(1000));
            same!(what, (real.left_out, memory.left_out));
            same!(what, sorted((admissions(real.list), admissions(memory.list))));
            let (real, memory) = ask!(self, proxy, fences(&resources, 1));
            same!(what, (fences(real), fences(memory)));
            for [resource, _] in self.resources.iter().filter(|_| !pids.is_empty()) {
                same!(what, ask!(self, proxy, lockers(resource, &pids)));
            }
            same!(what, ask!(self, proxy, enforcement(&resources)));
            let [real, memory] = &self.proxies[proxy].heard;
            let heard = |heard: &Heard| heard.0.lock().unwrap().clone();
            until(format!("{what}: {:?} is heard of PostgreSQL, as it is in memory", heard(memory)), async || {
                heard(real).len() >= heard(memory).len()
            })
            .await;
            same!(what, (heard(real), heard(memory)));
            real.0.lock().unwrap().clear();
            memory.0.lock().unwrap().clear();
        }
    }

    fn saw(&mut self, what: &'static str, has_happened: bool) {
        if has_happened {
            *self.seen.entry(what).or_default() += 1;
        }
    }

    async fn current(&self, resource: &str) -> Option<Epoch> {
        self.proxies[0].memory.epochs(&[resource]).await.unwrap().pop().map(|it| it.epoch)
    }

    /// Sometimes not who it says it is.
    fn somebody(&self, dice: &mut Dice) -> Option<Identity> {
        let mut who = if dice.chance(85) && !self.sessions.is_empty() {
            self.sessions[dice.below(self.sessions.len())].who.clone()
        } else if self.identities.is_empty() {
            return None;
        } else {
            dice.pick(&self.identities).clone()
        };
        match dice.below(30) {
            0 => who.system_identifier = "1".into(),
            1 => who.postmaster_start = "1".into(),
            2 => who.backend_start = "1.000000".into(),
            _ => {}
        }
        Some(who)
    }

    fn pick_read(&self, dice: &mut Dice) -> Option<(Granted, Granted)> {
        // Mostly what was read lately.
        let from = if dice.chance(70) { self.read.len().saturating_sub(6) } else { 0 };
        (!self.read.is_empty()).then(|| self.read[dice.between(from, self.read.len())].clone())
    }

    fn read_both(&mut self, real: impl Iterator<Item = Granted>, memory: impl Iterator<Item = Granted>) {
        let order = |row: &Granted| (row.key(), row.resource.clone(), row.epoch);
        let (mut real, mut memory): (Vec<_>, Vec<_>) = (real.collect(), memory.collect());
        real.sort_by_key(order);
        memory.sort_by_key(order);
        self.read.extend(real.into_iter().zip(memory));
    }

    fn lock_name(&self, resource: &str) -> &str {
        let it = self.resources.iter().find(|[it, _]| it.name == resource);
        it.map(|[it, _]| it.lock_name()).unwrap()
    }

    /// A process that was told to end takes a moment for it; in memory it has ended.
    async fn bury_the_ended(&mut self) {
        let (alive, ended) = self.sessions.drain(..).partition(|session| self.memory.lives(session.who.pid));
        self.sessions = alive;
        let ended: Vec<Session> = ended;
        for session in ended {
            self.saw("ended", true);
            self.wait_for_the_end_of(session.who.pid).await;
        }
    }

    async fn wait_for_the_end_of(&self, pid: i32) {
        let living = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        until(format!("process {pid} has ended"), async || self.world.ask(&living).await == "0").await;
    }
}

fn table(name: &str) -> QualifiedName {
    QualifiedName { schema: "public".into(), name: name.into() }
}

fn key(who: &Identity) -> Key {
    (who.pid, who.backend_start.clone())
}

fn sorted<T: Ord>((mut real, mut memory): (Vec<T>, Vec<T>)) -> (Vec<T>, Vec<T>) {
    real.sort();
    memory.sort();
    (real, memory)
}

/// All but its version, which means nothing to the other store.
fn row(row: &Granted) -> (Key, String, Epoch, bool) {
    (row.key(), row.resource.clone(), row.epoch, row.ending)
}

type PlainReport = (Option<Remedy>, String, Option<((Key, String, Epoch, bool), bool)>);

fn plain(report: Report) -> PlainReport {
    let admission = report.admission.map(|(admission, is_new)| (row(&admission), is_new));
    (report.unfenceable.map(|it| it.remedy), format!("{:?}", report.current), admission)
}

fn holders(holders: &[Holder]) -> Vec<((Key, String, Epoch, bool), String)> {
    let mut plain: Vec<_> = holders.iter().map(|it| (row(&it.row), it.proxy.clone())).collect();
    plain.sort();
    plain
}

/// But when they were admitted.
fn admissions(list: Vec<Admission>) -> Vec<String> {
    list.into_iter().map(|it| format!("{:?}", Admission { admitted: None, ..it })).collect()
}

fn fences(fences: Fences) -> String {
    let mut plain: Vec<_> = fences.plain.into_iter().collect();
    plain.sort_by_key(|(name, _)| name.clone());
    format!("{plain:?} {:?} {}", fences.of_keys, fences.left_out)
}
