//! A proxy: the released state machines of its sessions, fences and watchers, over simulated sockets.
//!
//! Owns the part of `net` and `server`: it moves bytes, runs the tasks that sessions request, and ends sessions. Must
//! never decide anything about a write.

mod driver;
mod host;

use super::elections::Seen as Election;
use super::pipe::{Reader, Writer, pipe};
use super::store::{DelayedListener, Gate, Reached, State};
use super::world::{Plan, World};
use fencegate::metrics::Metrics;
use fencegate::state::database::SharedDatabase;
use fencegate::state::succession::shut_out_deposed;
use fencegate_fence::background::Background;
use fencegate_fence::session::Token;
use fencegate_fence::store::Store;
use fencegate_fence::{Authority, Database};
use fencegate_policy::{PolicySet, join};
use fencegate_session::host::CatalogRequest;
use fencegate_statement::Cache;
use std::sync::atomic::{AtomicI32, AtomicU64};
use std::sync::{Arc, LazyLock, Mutex};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(|| Arc::new(Metrics::new().unwrap()));

const JOBS: [&str; 2] = [
    "version: 1\nresources:\n  - {name: jobs, tables: [public.jobs], election: /jobs}\n",
    "version: 1\nresources:\n  - {name: jobs, tables: [public.jobs, public.more], election: /jobs}\n",
];
const TICKS: &str = "  - {name: ticks, tables: [public.ticks]}\n";
const SHARDS: &str = "  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}\n";

/// All policies, parsed once, because parsing takes longest when a proxy starts. First those with an election, then
/// those with a lease; in each group, first those without keys.
static POLICIES: LazyLock<[PolicySet; 8]> = LazyLock::new(|| {
    std::array::from_fn(|number| {
        let keyed = if number & 2 == 0 { "" } else { SHARDS };
        let mut text = [JOBS[number & 1], TICKS, keyed].concat();
        if number & 4 != 0 {
            text = text.replace("election: /jobs", "lease: jobs");
        }
        join([("a.yaml".into(), Ok(text.into()))]).unwrap()
    })
});

/// The policies with this number, loaded now.
fn policies(plan: &Plan, number: usize) -> Arc<PolicySet> {
    let read = &POLICIES[number + 2 * usize::from(plan.keys) + 4 * usize::from(plan.leases)];
    let mut policies = read.clone();
    policies.loaded = Instant::now().into_std();
    Arc::new(policies)
}

pub struct Proxy {
    pub name: String,
    world: Arc<World>,
    downstream: Arc<SharedDatabase>,
    authority: Arc<Authority>,
    policies: watch::Sender<Arc<PolicySet>>,
    /// Whether it runs.
    pub gate: Arc<Gate>,
    sessions: Mutex<Vec<AbortHandle>>,
    begun: AtomicU64,
    /// The effects of texts that depend on the session.
    odd_texts: Cache,
}

/// A client's connection to a proxy.
pub struct Accepted {
    pub writer: Writer,
    pub reader: Reader,
    /// The server process, if there is one: cancel requests need it.
    pub pid: Arc<AtomicI32>,
}

impl Proxy {
    pub fn start(world: &Arc<World>) -> Arc<Proxy> {
        let name = format!("proxy {}", world.number());
        let gate = Arc::<Gate>::default();
        let authority = Authority::over(Election::new(world.clone()), Background::current());
        let policies = watch::Sender::new(policies(&world.plan, 0));
        authority.follow(&policies.borrow().elections());
        let (here, stands) = (world.clone(), gate.clone());
        let id = name.clone();
        let store = move |listener| {
            let listener = DelayedListener::new(here.clone(), &id, listener, stands.clone());
            let store = here.server.store.store(&id, listener);
            Reached::new(here, store, stands) as Arc<dyn Store>
        };
        let fence =
            Database::over(store, "postgres", &name, authority.clone(), METRICS.fence.clone(), Background::current());
        let downstream = SharedDatabase::new(fence, policies.subscribe(), METRICS.clone());
        downstream.follow();
        tokio::spawn(shut_out_deposed(Arc::downgrade(&downstream), authority.leaders()));
        Arc::new(Proxy {
            name,
            world: world.clone(),
            downstream,
            authority,
            policies,
            gate,
            sessions: Mutex::default(),
            begun: AtomicU64::new(0),
            odd_texts: Cache::default(),
        })
    }

    pub fn is_crashed(&self) -> bool {
        self.gate.state() == State::Crashed
    }

    /// The proxy crashes with all of its sessions.
    pub fn crash(&self) {
        self.gate.set(State::Crashed);
        self.authority.follow(&Default::default());
        std::mem::take(&mut *self.sessions.lock().unwrap()).iter().for_each(AbortHandle::abort);
    }

    /// Puts other policies in force.
    pub async fn reload(&self, number: usize) {
        let policies = policies(&self.world.plan, number);
        self.world.say(|| format!("{} loads policies {number}", self.name));
        self.policies.send_replace(policies.clone());
        self.authority.follow(&policies.elections());
        self.downstream.forget_catalog();
        self.downstream.prepare().await;
    }

    /// FENCE RESET by an operator.
    pub async fn reset(&self, resource: &str, token: Token, force: bool) -> bool {
        let resources = self.policies.borrow().resources.clone();
        let resource = resources.iter().find(|it| it.name == resource).unwrap();
        self.downstream.fence.reset(resource, token, "operator", force).await.is_ok()
    }

    pub fn has_sessions(&self) -> bool {
        self.downstream.fence.has_sessions()
    }

    /// Connects a client whose `lease.fence` has this value from the start.
    pub fn accept(self: &Arc<Self>, value: Option<String>, number: u64) -> Accepted {
        let (writer, from_client) = pipe(self.world.dice());
        let (to_client, reader) = pipe(self.world.dice());
        let pid = Arc::new(AtomicI32::new(0));
        let session = driver::serve(self.clone(), from_client, to_client, (value, number), pid.clone());
        self.sessions.lock().unwrap().push(tokio::spawn(Box::pin(session)).abort_handle());
        Accepted { writer, reader, pid }
    }
}
/// A catalog reading counts despite any fault, or the next statement causes another one.
#[test]
fn a_reading_counts_or_is_repeated() {
    for seed in 0..200 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let plan = Plan { control: 0, listening: 100, ..Plan::draw(seed) };
            let world = World::new(seed, plan, false);
            let downstream = Proxy::start(&world).downstream.clone();
            downstream.prepare().await;
            let wanted =
                CatalogRequest { since: downstream.changes(), temporary: None, cascades: false, is_plain: false };
            assert!(downstream.catalog(Some(&wanted)).is_current || downstream.is_unread(&wanted), "seed {seed}");
        });
    }
}
