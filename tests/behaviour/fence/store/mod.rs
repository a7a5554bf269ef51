//! The in-memory store behaves like PostgreSQL: the same random operations on both must agree after each step.

/// Calls both stores, and returns both results.
macro_rules! ask {
    ($both:expr, $proxy:expr, $operation:ident($($argument:expr),*)) => {{
        let proxy = &$both.proxies[$proxy];
        let real = proxy.real.$operation($($argument),*).await.unwrap();
        let memory = proxy.memory.$operation($($argument),*).await.unwrap();
        (real, memory)
    }};
}

/// Asserts that both stores return the same.
macro_rules! same {
    ($what:expr, $answers:expr) => {{
        let (real, memory) = $answers;
        assert_eq!(real, memory, "{}: PostgreSQL's result (left) and the in-memory store's (right)", $what);
    }};
}

mod alone;
mod files;
mod listening;
mod plans;
mod reading;
mod steps;
mod stuck;

use crate::fence::keys::family;
use crate::fence::server::{World, connect, metrics, resource};
use crate::fence::stale_below;
use crate::support::identity::identity;
use crate::support::{length, seed, until};
use fencegate_fence::background::Background;
use fencegate_fence::session::{Epoch, Identity, SessionFence, Token};
use fencegate_fence::simulated::Server;
use fencegate_fence::store::{AdmissionRow, Holder, Key, Listener, Marked, Postgres, Report, Store};
use fencegate_fence::{Admission, Database, Fences, First, LeaseState, ProcessFault, StoredLease};
use fencegate_policy::{Issuer, QualifiedName, Resource};
use fencegate_postgres::tls::ControlConfig;
use fencegate_testing::dice::Dice;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio_postgres::Client;

/// Number of steps that reach all relevant states.
const LONG: u64 = 2_000;
const PROXIES: usize = 2;
const SESSIONS: usize = 5;
/// Later than any run.
const FUTURE: i64 = 3_600_000_000;
/// Election whose lease issues the tokens of one resource.
const ELECTION: &str = "election";

#[tokio::test]
async fn both_agree_after_every_operation() {
    let mut dice = Dice::new(seed());
    let steps = length(200, LONG);
    let mut both = Both::new().await;
    // Each proxy listens.
    for proxy in &both.proxies {
        proxy.real.beat().await.unwrap();
    }
    both.compare("at first").await;
    for step in 0..steps {
        let what = both.step(&mut dice).await;
        both.compare(&format!("step {step}: {what}")).await;
    }
    both.end_prepared().await;
    println!("{:?}", both.seen);
    assert!(steps < LONG || WORTH_SEEING.iter().all(|it| both.seen.contains_key(it)), "not all has happened");
}

/// If there are two old leaders, only the one that has written is terminated. The other continues, and is stale.
#[tokio::test]
async fn the_protocol_runs_over_the_store_in_memory() {
    let resource = resource("r", "a");
    let identity = |pid: i32| Identity {
        pid,
        backend_start: format!("{pid}.000001"),
        system_identifier: "1".into(),
        postmaster_start: "1.000001".into(),
    };
    let server = Server::new(1_000_000, &identity(0), [table("ticks")]);
    let proxy = |name: &'static str| {
        let proxy = Database::over(
            |listener| server.store(name, listener),
            "memory",
            name,
            fencegate_fence::Authority::new(Background::current()),
            metrics(),
            Background::current(),
        );
        proxy.put_in_force(std::slice::from_ref(&resource));
        proxy
    };
    let session = |proxy: &Arc<Database>, pid| {
        server.begin_process(&identity(pid));
        let fence = Arc::new(SessionFence::new(Ok(identity(pid))));
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

/// The state read before a Publish may be outdated when the Publish arrives.
#[tokio::test]
async fn publish_itself_looks_at_the_lease() {
    let both = Both::new().await;
    let other = &both.resources[1][0];
    let real = &both.proxies[0].real;
    let publish = async |token| {
        let raised = real.publish(other, Epoch { generation: 1, token }, None, 0).await.unwrap();
        raised.map(|epoch| epoch.token)
    };
    let lease = async |token: i64, more: &str| {
        both.world
            .run(&format!(
                "INSERT INTO fencegate_state.lease (election, token, released, expires) \
                 VALUES ('{ELECTION}', {token}, false, now() + '1 hour') \
                 ON CONFLICT (election) DO UPDATE SET token = {token}{more}"
            ))
            .await;
    };
    assert_eq!(publish(5).await, None, "no lease");
    lease(5, "").await;
    assert_eq!(publish(4).await, None);
    assert_eq!(publish(5).await, Some(5));
    lease(6, ", released = true").await;
    assert_eq!(publish(6).await, Some(5));
    lease(7, ", released = false, expires = clock_timestamp()").await;
    assert_eq!(publish(7).await, Some(5));
}

/// The epoch row was deleted by hand, but its admissions were not.
#[tokio::test]
async fn a_new_epoch_starts_above_the_admissions() {
    let both = Both::new().await;
    let resource = &both.resources[0][0];
    let client = connect(&both.world.config(&format!("{}_app", both.world.database))).await;
    let identity = identity(&client).await;
    both.memory.begin_process(&identity);
    let seven = Epoch { generation: 1, token: 7 };
    ask!(both, 0, publish(resource, seven, None, 0));
    ask!(both, 0, mark(resource, seven));
    for token in [6, 5] {
        let known = ask!(both, 0, epochs(&[&resource.name])).0[0].epoch;
        let (real, _) = ask!(both, 0, reset(resource, known, token, "operator", true));
        ask!(both, 0, mark(resource, real.after.unwrap()));
    }
    same!("admitted", {
        let (real, memory) = ask!(both, 0, admit(&identity, resource, 5, 0));
        (plain(real), plain(memory))
    });
    both.world.run("DELETE FROM fencegate_state.epoch").await;
    both.memory.delete_epoch(&resource.name);
    let fourth = Some(Epoch { generation: 4, token: 3 });
    assert_eq!(ask!(both, 0, publish(resource, Epoch { generation: 1, token: 3 }, None, 0)), (fourth, fourth));
}

/// First tokens are admitted if there is nothing to drain. Otherwise they are left to the steps that wait.
#[tokio::test]
async fn first_tokens_do_not_wait() {
    let both = Both::new().await;
    let Both { world, keyed, proxies, .. } = &both;
    let client = connect(&world.config(&format!("{}_app", world.database))).await;
    let identity = identity(&client).await;
    let first =
        |key: &str| First { identity: identity.clone(), resource: keyed[0].of_key(key).unwrap(), token: 7, loaded: 0 };
    let admit = async |firsts: &[First]| {
        let rows = proxies[0].real.admit_first(&firsts.iter().collect::<Vec<_>>()).await.unwrap();
        sorted_names(rows.into_iter().map(|row| row.resource))
    };
    let name = |key: &str| keyed[0].of_key(key).unwrap().name.clone();

    let holder = connect(&world.config("postgres")).await;
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock_shared(hashtextextended('fencegate:{}', 0))", name("one"));
    holder.batch_execute(&lock).await.unwrap();
    assert_eq!(admit(&[first("one"), first("two")]).await, [name("two")], "another process holds the lock");
    assert_eq!(admit(&[first("one")]).await, [""; 0], "another process holds all locks");
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(admit(&[first("one"), first("two")]).await, [name("one")], "there is an epoch");

    let row = format!(
        "INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy) \
         VALUES (1, '2000-01-01', '{}', 1, 6, 'lost')",
        name("three")
    );
    world.run(&row).await;
    assert_eq!(admit(&[first("three"), first("four")]).await, [name("four")], "another process was admitted");

    let prepare = format!("BEGIN; INSERT INTO ticks VALUES (1); PREPARE TRANSACTION '{}'", world.database);
    holder.batch_execute(&prepare).await.unwrap();
    assert_eq!(admit(&[first("five")]).await, [""; 0], "a prepared transaction may have written");
    holder.batch_execute(&format!("ROLLBACK PREPARED '{}'", world.database)).await.unwrap();

    let mut other = first("five");
    other.identity.system_identifier = "1".into();
    assert_eq!(admit(&[other]).await, [""; 0], "it is on a different server");
    assert_eq!(admit(&[first("five")]).await, [name("five")]);
}

/// The prepared statements of an operation see everything that was committed while an earlier statement waited.
#[tokio::test]
async fn a_mark_sees_the_admission_that_it_waited_for() {
    let both = Both::new().await;
    let (world, resource, real) = (&both.world, &both.resources[0][0], &both.proxies[0].real);
    let epoch = Epoch { generation: 1, token: 7 };
    assert_eq!(real.publish(resource, epoch, None, 0).await.unwrap(), Some(epoch));
    let holder = connect(&world.config("postgres")).await;
    let admitting = format!(
        "BEGIN; SELECT FROM fencegate_state.epoch WHERE resource = '{name}' FOR SHARE; \
         INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy) \
           SELECT pid, backend_start, '{name}', 1, 6, 'slow' FROM pg_stat_get_activity(pg_backend_pid())",
        name = resource.name
    );
    holder.batch_execute(&admitting).await.unwrap();
    let commit = async {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until("the mark waits", async || world.ask(waiting).await != "0").await;
        holder.batch_execute("COMMIT").await.unwrap();
    };
    let (marked, ()) = tokio::join!(real.mark(resource, epoch), commit);
    assert_eq!(marked.unwrap(), Marked::Nothing);
}

fn sorted_names(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Events that a long run must contain.
const WORTH_SEEING: [&str; 18] = [
    "admitted together",
    "copied",
    "first tokens",
    "no first tokens",
    "admitted",
    "admitted again",
    "not fenceable",
    "of older policies",
    "of other policies",
    "issued",
    "not issued",
    "raised",
    "not raised",
    "drained",
    "prepared transaction",
    "reset",
    "deleted",
    "ended",
];

/// A store of one proxy that ignores notifications.
fn store_in(control: ControlConfig) -> Postgres {
    Postgres::new(control, "p".to_owned(), Arc::new(Notifications::default()))
}

/// The notifications that a proxy received.
#[derive(Debug, Default)]
struct Notifications(Mutex<Vec<String>>);

impl Listener for Notifications {
    fn listens(&self, _connection: u64) {}

    fn lost(&self, _connection: u64) {}

    fn announced(&self, resource: &str) {
        self.0.lock().unwrap().push(resource.to_owned());
    }

    fn lease_changed(&self, election: &str) {
        self.0.lock().unwrap().push(format!("lease {election}"));
    }

    fn catalog_changed(&self) {
        self.0.lock().unwrap().push("{catalogue}".to_owned());
    }
}

/// Both stores of one proxy. Every call goes to both.
struct Proxy {
    real: Arc<dyn Store>,
    memory: Arc<dyn Store>,
    received: [Arc<Notifications>; 2],
}

/// The parts that do not depend on the clock.
fn leases(leases: Vec<StoredLease>) -> Vec<(String, Token, LeaseState)> {
    leases.into_iter().map(|it| (it.election, it.token, it.state)).collect()
}

struct Session {
    client: Client,
    identity: Identity,
    in_transaction: bool,
}

struct Both {
    world: World,
    memory: Arc<Server>,
    /// A process of another database.
    elsewhere: Client,
    proxies: Vec<Proxy>,
    sessions: Vec<Session>,
    /// Includes those of ended sessions.
    identities: Vec<Identity>,
    /// Each resource under two policies.
    resources: Vec<[Arc<Resource>; 2]>,
    keyed: [Arc<Resource>; 2],
    /// Admissions as read earlier from both stores.
    read: Vec<(AdmissionRow, AdmissionRow)>,
    prepared: Vec<String>,
    /// Number of prepared transactions so far.
    gids: usize,
    /// Possible load times of policies.
    times: [i64; 4],
    /// The number of occurrences of each event.
    seen: BTreeMap<&'static str, usize>,
}

impl Both {
    async fn new() -> Both {
        let world = World::new().await;
        world.run("CREATE TABLE other (n int); GRANT ALL ON other TO PUBLIC").await;
        let received = || [Arc::new(Notifications::default()), Arc::new(Notifications::default())];
        let of_world = identity(&world.root).await;
        let control = || world.control_config(&world.control());
        let real = |name: &str, received: &[Arc<Notifications>; 2]| {
            Arc::new(Postgres::new(control(), name.to_owned(), received[0].clone())) as Arc<dyn Store>
        };
        let now = real("p0", &received()).now().await.unwrap();
        let memory = Server::new(now, &of_world, [table("ticks"), table("other")]);
        let proxy = |number: usize| {
            let (name, received) = (format!("p{number}"), received());
            Proxy { real: real(&name, &received), memory: memory.store(&name, received[1].clone()), received }
        };
        let other = |fingerprint: &str| {
            let mut other = Arc::into_inner(resource("other", fingerprint)).unwrap();
            other.tables[0].name = table("other");
            other.issuer = Some(Issuer::Lease(ELECTION.parse().unwrap()));
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
            elsewhere: connect(&world.server.config("postgres", "postgres")).await,
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

    /// All visible state.
    async fn compare(&self, what: &str) {
        let names: Vec<&str> = self.resources.iter().map(|[resource, _]| resource.name.as_str()).collect();
        let resources: Vec<Arc<Resource>> = self.resources[..2].iter().map(|[it, _]| it.clone()).collect();
        let resources = [resources, vec![self.keyed[0].clone()]].concat();
        let pids: Vec<i32> = self.identities.iter().map(|identity| identity.pid).collect();
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
            let (real, memory) = ask!(self, proxy, leases(&[ELECTION, "another"]));
            same!(what, (leases(real), leases(memory)));
            let (real, memory) = ask!(self, proxy, all_leases(1));
            same!(what, ((leases(real.list), real.left_out), (leases(memory.list), memory.left_out)));
            for loaded in self.times {
                same!(what, sorted(ask!(self, proxy, superseded(&resources[..2], loaded))));
            }
            let [real, memory] = &self.proxies[proxy].received;
            let received = |received: &Notifications| received.0.lock().unwrap().clone();
            until(format!("{what}: PostgreSQL notifies {:?}, as in memory", received(memory)), async || {
                received(real).len() >= received(memory).len()
            })
            .await;
            same!(what, (received(real), received(memory)));
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

    /// Waits until terminated processes have ended. In memory, they have already ended.
    async fn delete_ended(&mut self) {
        let (alive, ended) = self.sessions.drain(..).partition(|session| self.memory.lives(session.identity.pid));
        self.sessions = alive;
        let ended: Vec<Session> = ended;
        for session in ended {
            self.saw("ended", true);
            self.wait_for_the_end_of(session.identity.pid).await;
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

fn key(identity: &Identity) -> Key {
    (identity.pid, identity.backend_start.clone())
}

fn sorted<T: Ord>((mut real, mut memory): (Vec<T>, Vec<T>)) -> (Vec<T>, Vec<T>) {
    real.sort();
    memory.sort();
    (real, memory)
}

/// Everything but the version, which has no meaning for the other store.
fn row(row: &AdmissionRow) -> (Key, String, Epoch, bool) {
    (row.key(), row.resource.clone(), row.epoch, row.ending)
}

type PlainReport = (Option<ProcessFault>, String, Option<((Key, String, Epoch, bool), bool)>);

fn plain(report: Report) -> PlainReport {
    let admission = report.admission.map(|(admission, is_new)| (row(&admission), is_new));
    (report.unfenceable, format!("{:?}", report.current), admission)
}

fn holders(holders: &[Holder]) -> Vec<((Key, String, Epoch, bool), String)> {
    let mut plain: Vec<_> = holders.iter().map(|it| (row(&it.row), it.proxy.clone())).collect();
    plain.sort();
    plain
}

/// Everything but the time of admission.
fn admissions(list: Vec<Admission>) -> Vec<String> {
    list.into_iter().map(|it| format!("{:?}", Admission { admitted: None, ..it })).collect()
}

fn fences(fences: Fences) -> String {
    let mut plain: Vec<_> = fences.plain.into_iter().collect();
    plain.sort_by_key(|(name, _)| name.clone());
    format!("{plain:?} {:?} {}", fences.of_keys, fences.left_out)
}
