//! The fence of one or two proxies over the in-memory database: the replies that sessions receive, and how they end.

mod drained;
mod gone;
mod issued;
mod known;
mod meanwhile;
mod operated;
mod promoted;
mod quiet;

use super::raising::permits;
use super::session::{Activity, Epoch, Identity, IdentityError, SessionFence, Token};
use super::store::Listener;
use super::*;
use crate::background::Background;
use crate::simulated::Server;
use async_trait::async_trait;
use fencegate_leader::etcd::EtcdError;
use fencegate_leader::{ElectionName, Error};
use fencegate_policy::{PolicySet, Resource, join};
use fencegate_statement::{Operation, RelationName};
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts};
use std::io::{PipeReader, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

const POLICIES: &str = "version: 1
resources:
  - {name: jobs, tables: [public.jobs], election: /jobs}
  - {name: bills, tables: [public.bills], lease: bills}
  - {name: notes, tables: [public.notes]}
  - {name: trial, tables: [public.trials], mode: observe}
  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}
  - {name: 'part/{k}', tables: [{name: public.parts, key: k}], election: '/part/{k}'}
  - {name: 'room/{k}', tables: [{name: public.rooms, key: k}], lease: 'room/{k}'}
";

const HOUR: i64 = 3_600_000_000;

fn policies(text: &str) -> PolicySet {
    join([("a.yaml".into(), Ok(text.to_owned().into()))]).unwrap()
}

fn epoch(generation: i64, token: Token) -> Epoch {
    Epoch { generation, token }
}

fn process(pid: i32) -> Identity {
    let (system_identifier, postmaster_start) = ("1".to_owned(), "1".to_owned());
    Identity { pid, backend_start: pid.to_string(), system_identifier, postmaster_start }
}

fn server() -> Arc<Server> {
    let tables = policies(POLICIES).resources.iter().map(|it| it.tables[0].name.clone()).collect::<Vec<_>>();
    Server::new(1_700_000_000_000_000, &process(0), tables)
}

/// A database without cached state, policies or etcd.
fn database(server: &Arc<Server>) -> Arc<Database> {
    let (store, background) = (|listener| server.store("one", listener), Background::current());
    Database::over(store, "postgres", "one", Authority::new(background.clone()), metrics(), background)
}

/// Metrics that are not exported.
fn metrics() -> FenceMetrics {
    let counter = |name: &str| IntCounter::new(name, name).unwrap();
    FenceMetrics {
        advances: counter("advances"),
        drain_seconds: Histogram::with_opts(HistogramOpts::new("drain_seconds", "drain_seconds")).unwrap(),
        drained_sessions: IntCounterVec::new(Opts::new("drained_sessions", "drained_sessions"), &["how"]).unwrap(),
        admissions: counter("admissions"),
    }
}

/// Log lines of this thread. Must not exceed the buffer of a pipe.
struct Log {
    lines: PipeReader,
    logs: tracing::subscriber::DefaultGuard,
    /// With a single subscriber, tracing caches the interest of the first thread that reaches a log line, possibly that
    /// of another test.
    _second: tracing::Dispatch,
}

impl Log {
    fn start() -> Self {
        let (lines, writer) = std::io::pipe().unwrap();
        let second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(writer)).finish();
        Log { lines, logs: tracing::subscriber::set_default(log), _second: second }
    }

    fn end(self) -> String {
        let Log { mut lines, logs, .. } = self;
        drop(logs);
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        text
    }
}

/// An election that reports a leader or fails, and counts its queries.
#[derive(Debug)]
struct Election(watch::Sender<Result<Option<Token>, ()>>, AtomicU32);

impl Election {
    fn elects(&self, leader: Option<Token>) {
        let _ = self.0.send_replace(Ok(leader));
    }

    fn falls_silent(&self) {
        let _ = self.0.send_replace(Err(()));
    }
}

fn silence() -> EtcdError {
    EtcdError::Unreachable { limit: Duration::from_secs(3), reason: "it is silent".to_owned() }
}

#[async_trait]
impl Elections for Election {
    async fn leader(&self, _: &ElectionName) -> Result<Option<Token>, EtcdError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.borrow().map_err(|()| silence())
    }

    fn follow(&self, _: &ElectionName) -> Box<dyn Following> {
        let mut updates = self.0.subscribe();
        updates.mark_changed();
        Box::new(Follower(updates))
    }
}

struct Follower(watch::Receiver<Result<Option<Token>, ()>>);

#[async_trait]
impl Following for Follower {
    async fn next(&mut self) -> Result<Option<Token>, Error> {
        self.0.changed().await.map_err(|_| Error::Gone)?;
        self.0.borrow_and_update().map_err(|()| Error::Gone)
    }
}

struct Proxy {
    server: Arc<Server>,
    fence: Arc<Database>,
    election: Arc<Election>,
    authority: Arc<Authority>,
    policies: PolicySet,
}

/// A session and its server process.
struct Client {
    session: Arc<SessionFence>,
    pid: i32,
    registration: Option<Registration>,
}

impl Proxy {
    async fn start(server: &Arc<Server>, name: &str) -> Proxy {
        Proxy::start_with(server, name, POLICIES).await
    }

    async fn start_with(server: &Arc<Server>, name: &str, text: &str) -> Proxy {
        let policies = policies(text);
        let election = Arc::new(Election(watch::Sender::new(Ok(None)), AtomicU32::new(0)));
        let authority = Authority::over(election.clone(), Background::current());
        authority.follow(&policies.elections());
        let store = |listener: Arc<dyn Listener>| server.store(name, listener);
        let metrics = metrics();
        let fence = Database::over(store, "postgres", name, authority.clone(), metrics, Background::current());
        fence.apply_policy_of(&policies.resources, Instant::now().into_std()).await.unwrap();
        Proxy { server: server.clone(), fence, election, authority, policies }
    }

    fn resource(&self, name: &str) -> Arc<Resource> {
        self.fence.resource(name).unwrap()
    }

    /// A connected client.
    fn client(&self, pid: i32) -> Client {
        let identity = process(pid);
        self.server.begin_process(&identity);
        let session = Arc::new(SessionFence::new(Ok(identity)));
        let registration = Some(self.fence.register(session.clone()));
        Client { session, pid, registration }
    }

    /// An admitted client.
    async fn writer(&self, pid: i32, resource: &str, token: Token) -> Client {
        let client = self.client(pid);
        assert_eq!(self.admit(&client, resource, token).await, "admitted");
        client
    }

    async fn admit(&self, client: &Client, resource: &str, token: Token) -> String {
        self.admit_if(client, resource, token, Raise::Freely).await
    }

    async fn admit_if(&self, client: &Client, resource: &str, token: Token, raise: Raise<'_>) -> String {
        let resource = self.resource(resource);
        outcome_text(self.fence.admit_if(&client.session, &resource, token, raise).await, "admitted")
    }

    /// The epoch as stored in the database.
    fn epoch(&self, resource: &str) -> Option<Epoch> {
        self.server.epochs().into_iter().find(|(name, _)| name == resource).map(|(_, epoch)| epoch)
    }

    fn has_row(&self, client: &Client, resource: &str) -> bool {
        !self.server.admissions(&process(client.pid), resource).is_empty()
    }
}

fn outcome_text(outcome: Result<(), FenceError>, well: &str) -> String {
    outcome.map_or_else(|refusal| refusal.to_string(), |()| well.to_owned())
}

/// The text of LF006 for a session whose process has ended.
fn unseen(resource: &str, pid: i32) -> String {
    FenceError::unavailable(resource, Obstacle::Process { pid, fault: ProcessFault::Unseen }).to_string()
}

fn claim(role: Option<&str>) -> Claim {
    let relation = RelationName { schema: None, name: "notes".to_owned() };
    Claim {
        privileges: Arc::new([RequiredPrivilege::Write(relation, Operation::Insert)]),
        one_suffices: false,
        role: role.map(|role| Role::Current(role.to_owned())),
        login: "app".to_owned(),
    }
}

/// Lets time pass until the condition holds, for at most two minutes.
async fn until(what: impl Fn() -> bool) -> Duration {
    let since = Instant::now();
    while !what() {
        assert!(since.elapsed() < Duration::from_secs(120), "timed out");
        sleep(Duration::from_millis(1)).await;
    }
    since.elapsed()
}

#[tokio::test(start_paused = true)]
async fn only_the_highest_token_is_admitted() {
    let proxy = Proxy::start(&server(), "one").await;
    let [old, new] = [1, 2].map(|pid| proxy.client(pid));
    assert_eq!(proxy.admit(&old, "notes", 7).await, "admitted");
    assert_eq!(proxy.admit(&new, "notes", 9).await, "admitted");
    assert!(!proxy.has_row(&old, "notes") && proxy.server.lives(1), "the idle process continues");
    assert!(old.session.admission("notes").is_none() && new.session.begin_write([("notes", 9)]));
    let stale = "token 7 for resource notes is lower than 9, the highest seen";
    assert_eq!(proxy.admit(&old, "notes", 7).await, stale);
    assert_eq!(proxy.fence.environment.metrics.admissions.get(), 2);
    assert_eq!(proxy.fence.environment.metrics.advances.get(), 2);
    assert!(old.session.asking().is_none());
}

#[tokio::test(start_paused = true)]
async fn only_a_permitted_role_raises_the_fence() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.client(1);
    for resource in ["notes", "shard/1"] {
        let never = format!("token 5 for resource {resource} is not in force yet");
        assert_eq!(proxy.admit_if(&client, resource, 5, Raise::Never).await, never);
        let unknown = format!("resource {resource}: the session's current role is unknown");
        assert_eq!(proxy.admit_if(&client, resource, 5, Raise::IfPermitted(&claim(None))).await, unknown);
        assert_eq!(proxy.epoch(resource), None);
        proxy.server.forbid("intern");
        let denied = format!("token 5 for resource {resource}: the session's role may not do this to table notes");
        assert_eq!(proxy.admit_if(&client, resource, 5, Raise::IfPermitted(&claim(Some("intern")))).await, denied);
        assert_eq!(proxy.epoch(resource), None);
        assert_eq!(proxy.admit_if(&client, resource, 5, Raise::IfPermitted(&claim(Some("app")))).await, "admitted");
        // The token is in force, so no role is checked.
        for (pid, claim) in [(2, claim(None)), (3, claim(Some("intern")))] {
            let other = proxy.client(pid);
            assert_eq!(proxy.admit_if(&other, resource, 5, Raise::IfPermitted(&claim)).await, "admitted");
            assert_eq!(proxy.admit_if(&other, resource, 5, Raise::Never).await, "admitted");
        }
        let refusal = proxy.fence.admit_if(&client.session, &proxy.resource(resource), 6, Raise::Never).await;
        let expected = FenceError::NotInForce { resource: resource.to_owned(), presented: 6, highest: Some(5) };
        assert_eq!(refusal, Err(expected));
    }
}

/// If the token probably has to be raised, the role is determined before any Query.
#[tokio::test(start_paused = true)]
async fn a_token_is_not_raised_before_the_role_is_known() {
    let server = server();
    let (one, two) = (Proxy::start(&server, "one").await, Proxy::start(&server, "two").await);
    let _writer = one.writer(1, "notes", 5).await;
    let _other = two.writer(2, "notes", 6).await;
    let client = one.client(3);
    until(|| one.fence.known_stale("notes", 5).is_some()).await;
    let unknown = "resource notes: the session's current role is unknown";
    assert_eq!(one.admit_if(&client, "notes", 7, Raise::IfPermitted(&claim(None))).await, unknown);
    assert_eq!(one.admit_if(&client, "notes", 6, Raise::IfPermitted(&claim(None))).await, "admitted");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_accepted_only_with_permitted_privileges() {
    let proxy = Proxy::start(&server(), "one").await;
    proxy.server.forbid("intern");
    let notes = proxy.resource("notes");
    let permits = async |claim: &Claim| outcome_text(permits(proxy.fence.context(), claim, &notes, 5).await, "yes");
    let all = claim(Some("app"));
    let two = Claim { privileges: all.privileges.iter().chain(&*all.privileges).cloned().collect(), ..all.clone() };
    for one_suffices in [false, true] {
        assert_eq!(permits(&Claim { one_suffices, ..two.clone() }).await, "yes");
        let role = Some(Role::AnyOf("intern".to_owned()));
        assert!(permits(&Claim { one_suffices, role, ..two.clone() }).await.contains("may not do this"));
    }
    let nothing = Claim { privileges: Arc::new([]), ..all };
    assert_eq!(permits(&nothing).await, "resource notes: the catalog has changed in the meantime");
}

/// For the keys of a family, a permission is valid for a second.
#[tokio::test(start_paused = true)]
async fn a_permission_is_checked_again_after_a_second() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.client(1);
    let app = claim(Some("app"));
    assert_eq!(proxy.admit_if(&client, "shard/1", 5, Raise::IfPermitted(&app)).await, "admitted");
    proxy.server.forbid("app");
    assert_eq!(proxy.admit_if(&client, "shard/2", 5, Raise::IfPermitted(&app)).await, "admitted");
    let other = Claim { login: "other".to_owned(), ..app.clone() };
    assert!(proxy.admit_if(&client, "shard/3", 5, Raise::IfPermitted(&other)).await.contains("may not do this"));
    sleep(Duration::from_secs(1)).await;
    assert!(proxy.admit_if(&client, "shard/3", 5, Raise::IfPermitted(&app)).await.contains("may not do this"));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_be_revoked_is_not_admitted() {
    let proxy = Proxy::start(&server(), "one").await;
    let mut client = proxy.client(1);
    drop(client.registration.take());
    let unregistered = "resource notes: the session is not registered, so its admission could not be revoked";
    assert_eq!(proxy.admit(&client, "notes", 5).await, unregistered);
    let unknown =
        Client { session: Arc::new(SessionFence::new(Err(IdentityError::NoAnswer))), pid: 2, registration: None };
    assert_eq!(
        proxy.admit(&unknown, "notes", 5).await,
        "resource notes: the server did not identify the session's process"
    );
    let stranger = proxy.client(3);
    proxy.server.end_process(3);
    assert_eq!(proxy.admit(&stranger, "notes", 5).await, unseen("notes", 3));
    assert_eq!(proxy.epoch("notes"), None);
}

/// The first token of a key takes one Query if no process can have been admitted.
#[tokio::test(start_paused = true)]
async fn first_tokens_of_many_keys_are_admitted_separately() {
    let proxy = Proxy::start(&server(), "one").await;
    let clients: Vec<Client> = (1..=40).map(|pid| proxy.client(pid)).collect();
    let admit = |client: &Client| {
        let (fence, session) = (proxy.fence.clone(), client.session.clone());
        let (resource, token) = (proxy.resource(&format!("shard/{}", client.pid % 20)), 5);
        tokio::spawn(async move { outcome_text(fence.admit(&session, &resource, token).await, "admitted") })
    };
    let admits: Vec<_> = clients.iter().map(admit).collect();
    for (client, admit) in clients.iter().zip(admits) {
        assert_eq!(admit.await.unwrap(), "admitted");
        let (own, other) = (format!("shard/{}", client.pid % 20), format!("shard/{}", (client.pid + 1) % 20));
        assert_eq!(client.session.admission(&own), Some(epoch(1, 5)));
        assert!(proxy.has_row(client, &own) && !proxy.has_row(client, &other));
        assert!(client.session.presented().contains_key(&own));
    }
    assert_eq!(proxy.fence.environment.metrics.admissions.get(), 40);
    assert_eq!(proxy.fence.environment.metrics.advances.get(), 20);
    assert_eq!(proxy.fence.environment.metrics.drain_seconds.get_sample_count(), 0, "no drain was needed");
}

/// An idle session with many admissions releases them, and their rows are deleted.
#[tokio::test(start_paused = true)]
async fn a_session_with_many_keys_deletes_rows_that_it_no_longer_needs() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.client(1);
    for key in 0..session::FULL {
        assert_eq!(proxy.admit(&client, &format!("shard/{key}"), 5).await, "admitted");
        assert!(client.session.begin_write([(format!("shard/{key}").as_str(), 5)]));
        client.session.set_activity(Activity::Idle);
    }
    assert!(proxy.has_row(&client, "shard/0"));
    client.session.set_activity(Activity::Waiting);
    assert_eq!(proxy.admit(&client, "shard/one", 5).await, "admitted");
    assert!(proxy.has_row(&client, "shard/0"), "its writes may be uncommitted");
    client.session.set_activity(Activity::Idle);
    assert_eq!(proxy.admit(&client, "shard/two", 5).await, "admitted");
    assert!(!proxy.has_row(&client, "shard/0") && proxy.has_row(&client, "shard/two"));
    assert!(client.session.admission("shard/0").is_none());
    let presented = client.session.presented();
    assert!(!presented.contains_key("shard/0") && presented.contains_key("shard/two"));
    assert_eq!(proxy.admit(&client, "shard/0", 5).await, "admitted");
}

/// A revoked admission is not released while the open transaction may commit its writes: the drain could not see them.
#[tokio::test(start_paused = true)]
async fn a_transaction_keeps_the_rows_of_its_writes_when_it_makes_room() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.writer(1, "notes", 5).await;
    assert_eq!(proxy.admit(&client, "shard/0", 5).await, "admitted");
    assert_eq!(proxy.admit(&client, "shard/1", 5).await, "admitted");
    for key in 2..session::MOST_AT_ONCE {
        assert!(client.session.record_admission(&format!("shard/{key}"), epoch(1, 5), 0));
    }
    client.session.set_activity(Activity::Idle);
    assert!(client.session.begin_write([("notes", 5), ("shard/1", 5)]));
    client.session.set_activity(Activity::Waiting);
    client.session.revoke("notes", epoch(1, 6));
    assert_eq!(proxy.admit(&client, "shard/new", 5).await, "admitted");
    let kept = ["notes", "shard/0", "shard/1", "shard/new"].map(|resource| proxy.has_row(&client, resource));
    assert_eq!(kept, [true, false, true, true]);
}

/// A row that could not be deleted may still cause the process to be terminated.
#[tokio::test(start_paused = true)]
async fn a_presented_token_is_known_while_its_row_exists() {
    let proxy = Proxy::start(&server(), "one").await;
    let client = proxy.writer(1, "notes", 5).await;
    for key in 0..session::FULL - 2 {
        assert!(client.session.record_admission(&format!("shard/{key}"), epoch(1, 5), 0));
    }
    client.session.present("shard/0", session::Presented { epoch: epoch(1, 5), lock_name: "shard/{k}".to_owned() });
    assert!(client.session.begin_write([("notes", 5)]));
    client.session.set_activity(Activity::Idle);
    proxy.server.guard_passes(1, "notes");
    assert_eq!(proxy.admit(&client, "trial", 5).await, "admitted");
    assert!(client.session.is_full() && client.session.admission("notes").is_some());
    assert_eq!(proxy.admit(&client, "shard/new", 5).await, "admitted");
    assert!(client.session.admission("notes").is_none() && proxy.has_row(&client, "notes"));
    assert_eq!(client.session.admission("trial"), Some(epoch(1, 5)), "its write is still held back");
    let presented: std::collections::BTreeSet<_> = client.session.presented().into_keys().collect();
    assert_eq!(presented.into_iter().collect::<Vec<_>>(), ["notes", "shard/new", "trial"]);
}
