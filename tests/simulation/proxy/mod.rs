//! A proxy: the machines of its sessions, its fences and its watchers, as they ship, over simulated sockets.
//!
//! Owns what `net` and `server` own outside: it moves bytes, does what sessions ask for, and ends them. Must never decide
//! anything about a write.

use super::elections::Seen as Election;
use super::pipe::{Reader, Writer, pipe};
use super::server::Connection;
use super::store::{Gate, Hears, Reached, State};
use super::world::{Dice, Plan, World, moment};
use crate::fence::session::{Epoch, SessionFence, Token};
use crate::fence::{Authority, Claim, Database};
use crate::metrics::Metrics;
use crate::policy::{PolicySet, Resource, join};
use crate::session::host::{Changes, Seen, Wanted};
use crate::session::judge::PassedWrite;
use crate::session::parameter::{Parameter, ParameterValue};
use crate::session::rejection::{Rejection, cut_off};
use crate::session::suspects::Suspects;
use crate::session::task::{ParsePermit, Room};
use crate::session::{Done, End, Host, Session, Side, Started, Step, Task};
use crate::state::database::{PREPARE_LIMIT, SharedDatabase};
use crate::state::succession::shut_out_deposed;
use crate::statement::{Analysis, Cache, Lexing, Statement};
use crate::wire::error::{ErrorText, field};
use crate::wire::frame::body;
use crate::wire::message::{Status, put_ready};
use bytes::BytesMut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, timeout};

/// What a text does depends on nothing else: all histories share what was read.
static CACHE: LazyLock<Cache> = LazyLock::new(Cache::default);
static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(|| Arc::new(Metrics::new().unwrap()));

const POLICIES: [&str; 2] = [
    "version: 1\nresources:\n  - {name: jobs, tables: [public.jobs], election: /jobs}\n  \
     - {name: ticks, tables: [public.ticks]}\n",
    "version: 1\nresources:\n  - {name: jobs, tables: [public.jobs, public.more], election: /jobs}\n  \
     - {name: ticks, tables: [public.ticks]}\n",
];

/// Those policies, loaded now.
fn policies(number: usize) -> Arc<PolicySet> {
    let mut policies = join([("a.yaml".into(), Ok(POLICIES[number].into()))]).unwrap();
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
}

/// A client's connection to a proxy.
pub struct Accepted {
    pub writer: Writer,
    pub reader: Reader,
    /// The server process, once there is one: with it goes a request to cancel.
    pub pid: Arc<AtomicI32>,
}

impl Proxy {
    pub fn start(world: &Arc<World>) -> Arc<Proxy> {
        let name = format!("proxy {}", world.id());
        let gate = Arc::<Gate>::default();
        let authority = Authority::over(Election::new(world.clone()));
        let policies = watch::Sender::new(policies(0));
        authority.follow(&policies.borrow().elections());
        let (here, stands) = (world.clone(), gate.clone());
        let id = name.clone();
        let store = move |listener| {
            let hears = Hears::new(here.clone(), &id, listener, stands.clone());
            let store = here.server.store.store(&id, hears);
            Reached::new(here, store, stands) as Arc<dyn crate::fence::store::Store>
        };
        let fence = Database::over(store, "postgres", &name, Some(authority.clone()), METRICS.clone());
        let downstream = SharedDatabase::new(fence, policies.subscribe(), METRICS.clone());
        downstream.follow();
        tokio::spawn(shut_out_deposed(downstream.clone(), authority.leaders()));
        let (sessions, begun) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Proxy { name, world: world.clone(), downstream, authority, policies, gate, sessions, begun })
    }

    pub fn is_crashed(&self) -> bool {
        self.gate.state() == State::Crashed
    }

    /// It is gone, with all of its sessions.
    pub fn crash(&self) {
        self.gate.set(State::Crashed);
        self.authority.follow(&Default::default());
        std::mem::take(&mut *self.sessions.lock().unwrap()).iter().for_each(AbortHandle::abort);
    }

    /// Other policies are in force from now on.
    pub async fn reload(&self, number: usize) {
        let policies = policies(number);
        self.world.say(|| format!("{} loads policies {number}", self.name));
        self.policies.send_replace(policies.clone());
        self.authority.follow(&policies.elections());
        self.downstream.forget_catalogue();
        self.downstream.prepare().await;
    }

    /// FENCE RESET, as an operator says it.
    pub async fn reset(&self, resource: &str, token: Token, force: bool) -> bool {
        let resources = self.policies.borrow().resources.clone();
        let resource = resources.iter().find(|it| it.name == resource).unwrap();
        self.downstream.fence.reset(resource, token, "operator", force).await.is_ok()
    }

    pub fn has_sessions(&self) -> bool {
        self.downstream.fence.has_sessions()
    }

    /// A client connects, whose `lease.fence` is that from the start.
    pub fn accept(self: &Arc<Self>, value: Option<String>) -> Accepted {
        let (writer, from_client) = pipe(self.world.dice());
        let (to_client, reader) = pipe(self.world.dice());
        let pid = Arc::new(AtomicI32::new(0));
        let session = serve(self.clone(), from_client, to_client, value, pid.clone());
        self.sessions.lock().unwrap().push(tokio::spawn(session).abort_handle());
        Accepted { writer, reader, pid }
    }
}

/// One session, from its login to its end.
async fn serve(proxy: Arc<Proxy>, from_client: Reader, to_client: Writer, value: Option<String>, pid: Arc<AtomicI32>) {
    let mut dice = proxy.world.dice();
    proxy.gate.runs().await;
    moment(&mut dice).await;
    let Connection { who, writer, reader } = proxy.world.server.connect(&proxy.world, value.clone());
    pid.store(who.pid, Ordering::Relaxed);
    proxy.world.say(|| format!("{} begins a session in process {} with {value:?}", proxy.name, who.pid));
    moment(&mut dice).await;
    proxy.downstream.fence.session_comes();
    let downstream = proxy.downstream.clone();
    timeout(PREPARE_LIMIT, tokio::spawn(async move { downstream.prepare().await })).await.ok();
    let fence = Arc::new(SessionFence::new(Ok(who)));
    let registration = proxy.downstream.fence.register(fence.clone());
    proxy.downstream.session_registered();
    let mut greeting = BytesMut::new();
    put_ready(&mut greeting, Status::Idle);
    let started = Started {
        replicates: false,
        temporary: None,
        parameter: Parameter::new(ParameterValue::read(value.as_deref())),
        lexing: Lexing::USUAL,
    };
    let host = Hosting {
        policies: proxy.policies.borrow().clone(),
        receiver: proxy.policies.subscribe(),
        number: 1 + proxy.begun.fetch_add(1, Ordering::Relaxed),
        proxy: proxy.clone(),
        fence,
    };
    let client = Side::new(BytesMut::new(), false, greeting);
    let session = Session::new(host, client, Side::default(), started, now());
    let driver = Driver { session, from_client, to_client, reader, writer: Some(writer), performing: None };
    driver.run().await;
    drop(registration);
}

struct Driver {
    session: Session<Hosting>,
    from_client: Reader,
    to_client: Writer,
    reader: Reader,
    /// None: the server was told that nothing more comes.
    writer: Option<Writer>,
    performing: Option<(JoinHandle<Done>, Arc<()>)>,
}

impl Driver {
    async fn run(mut self) {
        let end = loop {
            if let Err(end) = self.turn().await {
                break end;
            }
        };
        if self.session.server.ended {
            self.session.definitions_over();
        }
        self.last_words(end).await;
    }

    async fn turn(&mut self) -> Result<(), End> {
        self.session.host.proxy.gate.runs().await;
        let step = loop {
            match self.session.step(now())? {
                Step::GoOn => {}
                step => break step,
            }
        };
        if let Step::Do(task) = step {
            self.performing = Some(self.session.host.perform(task));
        }
        self.flush();
        let is_held_back = self.session.is_held_back();
        if self.session.is_terminating() || self.session.client.ended && !is_held_back {
            self.writer = None;
        }
        let keeps_room = self.session.keeps_room();
        let Driver { session, from_client, reader, performing, .. } = self;
        let done = async {
            match performing {
                Some((task, _)) => task.await.unwrap(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = done => {
                *performing = None;
                session.done(done);
            }
            () = session.fence.revoked.notified() => session.revoked(),
            read = reader.read(), if !session.server.ended => match read {
                Some(bytes) => session.server.input.extend_from_slice(&bytes),
                None => session.server.ended = true,
            },
            read = from_client.read(), if !session.client.ended => match read {
                Some(bytes) => session.client.input.extend_from_slice(&bytes),
                None => session.client.ended = true,
            },
            () = sleep(Duration::from_millis(100)), if keeps_room => {}
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.to_client.write(self.session.client.output.split().freeze());
        let bytes = self.session.server.output.split().freeze();
        if let Some(writer) = &self.writer {
            writer.write(bytes);
        }
    }

    /// As `net::farewell` does.
    async fn last_words(mut self, end: End) {
        match end {
            End::Server if !self.session.is_terminating() => self.lost_server().await,
            End::ClientFault(why) => {
                let text = ErrorText::new("08P01", why.to_string());
                self.session.say_last(&text, &End::Client);
            }
            End::ServerFault(why) => {
                self.session.host.proxy.world.judge.object(format!("the server broke the protocol: {why}"));
            }
            _ => {}
        }
        self.flush();
    }

    async fn lost_server(&mut self) {
        let said = self.session.last_error();
        let may_be_cut_off = said.as_ref().is_none_or(|error| field(body(error), b'C') == Some(b"57P01"));
        let database = self.session.host.proxy.downstream.fence.clone();
        if may_be_cut_off && let Some(by) = database.cut_off_by(&self.session.fence).await {
            let outcome = self.session.cut_off();
            let text = cut_off(&by.resource, by.presented, by.highest, outcome);
            self.session.say_last(&text, &End::CutOff(by));
        } else if let Some(said) = said {
            self.session.client.output.extend_from_slice(&said);
        }
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// What a session knows of its proxy.
struct Hosting {
    proxy: Arc<Proxy>,
    number: u64,
    policies: Arc<PolicySet>,
    receiver: watch::Receiver<Arc<PolicySet>>,
    fence: Arc<SessionFence>,
}

impl Hosting {
    fn perform(&self, task: Task) -> (JoinHandle<Done>, Arc<()>) {
        let (downstream, wanted) = (self.proxy.downstream.clone(), Arc::new(()));
        let handle = match task {
            Task::Admit(needs) => {
                let admitted = downstream.admit(needs, &self.fence, Arc::downgrade(&wanted));
                tokio::spawn(async move { Done::Admit(admitted.await) })
            }
            Task::CatchUp(of, within) => tokio::spawn(async move {
                timeout(within, downstream.catch_up_with(&of)).await.ok();
                Done::Tried
            }),
            Task::LeaveAlone(..) => tokio::spawn(async { Done::Tried }),
            Task::ParsePermit { apart } => {
                tokio::spawn(async move { Done::ParsePermit(Some(ParsePermit::new((), apart))) })
            }
            Task::Room { .. } => tokio::spawn(async { Done::Room(None) }),
        };
        (handle, wanted)
    }
}

impl Host for Hosting {
    fn user(&self) -> &str {
        "app"
    }

    fn fence(&self) -> &Arc<SessionFence> {
        &self.fence
    }

    fn take_up_policies(&mut self) -> bool {
        if self.receiver.has_changed().unwrap_or(false) {
            self.policies = self.receiver.borrow_and_update().clone();
        }
        false
    }

    fn is_fenced(&self) -> bool {
        true
    }

    fn policies(&self) -> &PolicySet {
        &self.policies
    }

    fn database(&self) -> &str {
        "postgres"
    }

    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        self.proxy.downstream.fence.known_stale(resource, token)
    }

    fn release(&self) {
        let (database, fence) = (self.proxy.downstream.fence.clone(), self.fence.clone());
        tokio::spawn(async move { database.release(&fence).await });
    }

    fn catalogue(&self, wanted: Option<&Wanted>) -> Seen {
        self.proxy.downstream.catalogue(wanted)
    }

    fn changes(&self) -> Changes {
        self.proxy.downstream.changes()
    }

    fn is_unread(&self, wanted: &Wanted) -> bool {
        self.proxy.downstream.is_unread(wanted)
    }

    fn forget_catalogue(&self) {
        self.proxy.downstream.forget_catalogue();
    }

    fn catalogue_changed(&self) {
        let downstream = self.proxy.downstream.clone();
        downstream.forget_catalogue();
        tokio::spawn(async move {
            downstream.fence.announce_catalogue().await;
            downstream.read_soon();
        });
    }

    fn note_harmless_change(&self, doubts: u64) -> bool {
        self.proxy.downstream.note_harmless_change(doubts)
    }

    fn forget_database(&self, _name: &str) {}

    fn suspects_of_others(&self) -> Vec<Arc<Suspects>> {
        self.proxy.downstream.suspects.except(self.number)
    }

    fn publish_suspects(&self, suspects: &Suspects) {
        self.proxy.downstream.suspects.publish(self.number, suspects);
    }

    fn withdraw_suspects(&self) {
        let downstream = &self.proxy.downstream;
        downstream.suspects.withdraw(self.number, downstream.changes().doubts);
    }

    fn read(&self, text: &[u8], lexing: Lexing, with_rows: bool, _: Option<ParsePermit>) -> Result<Analysis, Task> {
        Ok(CACHE.get(text, lexing, with_rows).expect("all statements are short"))
    }

    fn room(&self, _bytes: usize, _there: usize, _behind: bool) -> Option<Room> {
        None
    }

    fn at_length<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    fn note_query(&self) {}

    fn note_presented(&self, _value: &ParameterValue) {}

    fn note_admitted(&mut self, _resource: &Resource) {}

    fn note_rejected(&self, rejection: &Rejection, _statement: &Statement) {
        self.proxy.world.say(|| format!("{} rejects: {}", self.proxy.name, rejection.text().message));
    }

    fn note_passed(&self, _passed: Vec<PassedWrite>) {}

    fn observe(&self, _resource: Arc<Resource>, _token: Token, _claim: Claim) {}
}

/// Whatever the reading of a catalogue meets: it counts, or the next statement has it read again.
#[test]
fn a_reading_counts_or_is_repeated() {
    for seed in 0..200 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let plan = Plan { control: 0, listening: 100, ..Plan::draw(&mut Dice::new(seed)) };
            let world = World::new(seed, plan, false);
            let downstream = Proxy::start(&world).downstream.clone();
            downstream.prepare().await;
            let wanted = Wanted { since: downstream.changes(), temporary: None, cascades: false, is_plain: false };
            assert!(downstream.catalogue(Some(&wanted)).is_current || downstream.is_unread(&wanted), "seed {seed}");
        });
    }
}
