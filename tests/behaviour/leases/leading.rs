//! The library's elections on leases: leading, waiting, and the end of leadership.

use super::Leases;
use crate::election::loss::is_announced_in_time;
use crate::election::{is_silence, renewed, soon};
use crate::lead::stage::{kill, stop};
use crate::support::link::{Fault, Link};
use crate::support::postgres::SUPERUSER;
use crate::support::{DEADLINE, Options, Postgres, Stalls, fenced, ticks, until, wait_until};
use fencegate_leader::coordinator::{BootInstant, Candidate, Coordinator};
use fencegate_leader::{self, Election, Error, Leadership, Lost, Patience};
use futures_util::StreamExt;
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::{Config, NoTls};

pub(super) type Client = fencegate_leader::Leases<(Config, NoTls)>;

const NAME: &str = "e";
/// Long enough that neither a renewal nor an expiry affects the test.
const LONG: u64 = 300;
const TTL: Duration = Duration::from_secs(30);
const PATIENCE: Patience = Patience { limit: TTL, member: Duration::from_millis(500) };

/// A server with leases, and the link to it.
pub(super) struct Server {
    // Before the server: fields are dropped in this order.
    link: Link,
    pub(super) postgres: Postgres,
}

impl Server {
    pub(super) fn start() -> Self {
        let postgres = Postgres::start(Options::default());
        fenced::init(&postgres, "postgres");
        ticks::may_lead(&postgres, "postgres", "*");
        Server { link: Link::to(postgres.port()), postgres }
    }

    /// The client behaves like a separate process.
    pub(super) fn client(&self, name: &str) -> Arc<Client> {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.link.port()).user(SUPERUSER).dbname("postgres");
        config.application_name(name);
        fencegate_leader::Leases::new((config, NoTls))
    }

    fn election(&self, holder: &str, ttl: u64) -> Election {
        election(self.client(holder), NAME, holder, ttl)
    }

    fn leader(&self) -> String {
        self.postgres.value(&format!("SELECT holder || ' ' || token FROM fencegate.leader('{NAME}')"))
    }

    pub(super) fn silence(&self) {
        self.link.suffer(Fault::Silent);
    }

    pub(super) fn connections(&self, name: &str) -> String {
        self.postgres.value(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}' AND query NOT LIKE 'SET %' AND query <> ''"
        ))
    }
}

fn election(client: Arc<Client>, name: &str, holder: &str, ttl: u64) -> Election {
    Election::on(client).name(name).holder(holder).ttl(Duration::from_secs(ttl)).build().unwrap()
}

async fn win(election: &Election) -> Leadership {
    soon(election.campaign()).await.unwrap()
}

/// A candidate that has queried the server.
async fn waits(server: &Server, holder: &str, ttl: u64) -> tokio::task::JoinHandle<Result<Leadership, Error>> {
    let election = server.election(holder, ttl);
    let campaign = tokio::spawn(async move { election.campaign().await });
    until("the candidate has queried", async || server.connections(holder) == "1").await;
    campaign
}

#[tokio::test(flavor = "multi_thread")]
async fn resigning_lets_the_next_candidate_lead_at_once() {
    let server = Server::start();
    let first = win(&server.election("first", LONG)).await;
    let campaign = waits(&server, "second", LONG).await;
    assert!(server.leader().starts_with("first#") && server.leader().ends_with(" 1"), "{}", server.leader());
    first.resign().await.unwrap();
    assert_eq!(soon(first.lost()).await, Lost::Resigned);
    let second = soon(campaign).await.unwrap().unwrap();
    assert_eq!((second.token().get(), second.holder()), (2, "second"));
}

/// The database would give a holder of the same name the same token.
#[tokio::test(flavor = "multi_thread")]
async fn two_candidates_with_the_same_name_do_not_both_lead() {
    let server = Server::start();
    let first = win(&server.election("same", LONG)).await;
    assert!(soon(server.election("same", LONG).try_campaign()).await.unwrap().is_none());
    first.resign().await.unwrap();
    let second = soon(server.election("same", LONG).try_campaign()).await.unwrap().unwrap();
    assert!(second.token() > first.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_leader_is_succeeded_when_the_lease_ends() {
    let server = Server::start();
    assert_eq!(server.postgres.value("SELECT token FROM fencegate.acquire('e', 'crashed', '2 s')"), "1");
    let next = win(&server.election("next", LONG)).await;
    assert_eq!(next.token().get(), 2);
    let how = server.postgres.value("SELECT how || ' ' || holder FROM fencegate_state.lease_history");
    assert_eq!(how, "overtaken crashed");
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_last_clone_or_the_campaign_gives_up_the_place() {
    let server = Server::start();
    let leadership = win(&server.election("a", LONG)).await;
    let campaign = waits(&server, "b", LONG).await;
    campaign.abort();
    drop(leadership.clone());
    leadership.proclaim("http://here").await.unwrap();
    assert_eq!(server.leader(), "http://here 1");
    drop(leadership);
    wait_until("there is no leader", DEADLINE, || server.leader().is_empty());
    // Dropped before the server could answer.
    let last = server.election("c", LONG);
    assert!(tokio::time::timeout(Duration::ZERO, last.campaign()).await.is_err());
    assert_eq!(win(&server.election("d", LONG)).await.holder(), "d");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_serves_many_elections() {
    let server = Server::start();
    let client = server.client("ours");
    let mut leaderships = Vec::new();
    for number in 0..50 {
        leaderships.push(win(&election(client.clone(), &format!("shard/{number}"), "ours", 10)).await);
    }
    renewed(&leaderships).await;
    // A connection that answered too late is replaced. The old one remains for a moment.
    until("it is one connection", async || server.connections("ours") == "1").await;
    assert!(leaderships.iter().all(|leadership| leadership.check().is_ok()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_counts_from_the_sending_of_the_renewal() {
    let server = Server::start();
    let client = server.client("ours");
    let (candidate, _) = client.enrol(&NAME.parse().unwrap(), "ours", TTL, PATIENCE).await.unwrap();
    let turn = client.try_turn(&candidate, PATIENCE).await.unwrap().unwrap();
    let candidate = Candidate { token: turn.token.get(), ..candidate };
    server.silence();
    let patience = Patience { member: TTL, ..PATIENCE };
    let mut renewal = pin!(client.renew(&candidate, patience));
    tokio::select! {
        // Polled first, so that it has been sent when the silence begins.
        biased;
        answer = &mut renewal => panic!("{answer:?} from a silent server"),
        () = tokio::time::sleep(Duration::from_millis(500)) => {}
    }
    let silent_until = BootInstant::now();
    server.link.mend();
    let deadline = soon(renewal).await.unwrap();
    assert!(deadline < silent_until + TTL, "the answer's delay extends the lease");
}

/// A silent connection does not delay a query that a new one would answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_dead_is_replaced() {
    let server = Server::start();
    let leadership = win(&server.election("ours", 10)).await;
    server.link.cut();
    server.link.mend();
    renewed(slice::from_ref(&leadership)).await;
}

/// The server process is suspended, but the server is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_replaced() {
    let server = Server::start();
    let leadership = win(&server.election("ours", 10)).await;
    let process = "SELECT pid FROM pg_stat_activity WHERE application_name = 'ours'";
    let process = server.postgres.value(process).parse().unwrap();
    stop(process);
    renewed(slice::from_ref(&leadership)).await;
    kill("CONT", process);
    wait_until("the old connection ends", DEADLINE, || server.connections("ours") == "1");
}

/// The database granted the lease, but the answer was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_that_does_not_know_of_its_win_releases_the_lease() {
    let server = Server::start();
    let client = server.client("ours");
    let (candidate, _) = client.enrol(&NAME.parse().unwrap(), "ours", TTL, PATIENCE).await.unwrap();
    client.try_turn(&candidate, PATIENCE).await.unwrap().unwrap();
    client.withdraw(&candidate, PATIENCE).await.unwrap();
    assert_eq!(server.leader(), "");
    server.postgres.sql("SELECT fencegate.acquire('e', 'theirs', '1 min')");
    client.withdraw(&candidate, PATIENCE).await.unwrap();
    assert_eq!(server.leader(), "theirs 2", "it releases only its own lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_is_distinguished_from_an_outage() {
    let mut server = Server::start();
    let client = server.client("ours");
    let (candidate, _) = client.enrol(&NAME.parse().unwrap(), "ours", TTL, PATIENCE).await.unwrap();
    let turn = client.try_turn(&candidate, PATIENCE).await.unwrap().unwrap();
    let candidate = Candidate { token: turn.token.get(), ..candidate };
    assert_eq!(server.postgres.value("SELECT fencegate.release('e', 1)"), "t");
    assert_eq!(client.renew(&candidate, PATIENCE).await, Err(Error::Gone));
    assert_eq!(client.proclaim(&candidate, b"x".to_vec(), PATIENCE).await, Err(Error::Gone));
    assert_eq!(client.withdraw(&candidate, PATIENCE).await, Ok(()));
    server.postgres.stop();
    let patience = Patience { limit: Duration::from_millis(200), ..PATIENCE };
    let error = client.renew(&candidate, patience).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// The role's default settings do not prevent it from leading.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_role_do_not_count() {
    let server = Server::start();
    server.postgres.sql(
        "ALTER ROLE postgres SET default_transaction_read_only = on; \
         ALTER ROLE postgres SET default_transaction_isolation = 'serializable'",
    );
    assert_eq!(win(&server.election("ours", LONG)).await.token().get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_leadership_at_the_deadline() {
    let server = Server::start();
    let leadership = win(&server.election("ours", 3)).await;
    let stalls = Stalls::watch();
    server.silence();
    let silent = Instant::now();
    let loss = soon(leadership.lost()).await;
    let (left, stalled) = (leadership.remaining(), stalls.total());
    let no_longer = Duration::from_secs(3) + stalled;
    assert!(silent.elapsed() < no_longer, "no renewal was sent and answered after the server fell silent");
    assert!(is_silence(&loss, stalled), "{loss}, stalled for {stalled:?}");
    assert!(is_announced_in_time(left, stalled), "{left:?} left, stalled for {stalled:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_postgres_lease_ends_leadership_at_once() {
    let server = Server::start();
    let leadership = win(&server.election("ours", LONG)).await;
    assert_eq!(server.postgres.value("SELECT fencegate.release('e', 1)"), "t");
    assert_eq!(soon(leadership.lost()).await, Lost::Revoked);
    let leadership = win(&server.election("ours", LONG)).await;
    server
        .postgres
        .sql("BEGIN; SELECT fencegate.release('e', 2); SELECT fencegate.acquire('e', 'theirs', '1 min'); COMMIT");
    let lost = soon(leadership.lost()).await;
    assert!(matches!(lost, Lost::Superseded { token } if token.get() == 3), "{lost}");
    assert_eq!(leadership.proclaim("x").await, Err(Error::Lost(lost)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_postgres_lease_ends_the_work() {
    let server = Server::start();
    let leadership = win(&server.election("ours", LONG)).await;
    let (begun, begins) = tokio::sync::oneshot::channel();
    let work = async {
        begun.send(()).unwrap();
        std::future::pending::<()>().await;
    };
    let (lost, ()) = tokio::join!(soon(leadership.run(work)), async {
        begins.await.unwrap();
        assert_eq!(server.postgres.value("SELECT fencegate.release('e', 1)"), "t");
    });
    assert_eq!(lost, Err(Lost::Revoked));
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_and_candidate_survive_a_restart_within_the_ttl() {
    let mut server = Server::start();
    let leadership = win(&server.election("leader", 30)).await;
    let campaign = waits(&server, "candidate", 30).await;
    server.postgres.crash_restart();
    renewed(slice::from_ref(&leadership)).await;
    assert!(!campaign.is_finished());
    leadership.resign().await.unwrap();
    assert_eq!(soon(campaign).await.unwrap().unwrap().holder(), "candidate");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_ends_when_the_server_is_away_for_a_ttl() {
    let mut server = Server::start();
    let _holder = win(&server.election("holder", LONG)).await;
    let waiting = waits(&server, "waiting", 2).await;
    server.postgres.stop();
    for outcome in [soon(waiting).await.unwrap(), soon(server.election("new", 2).campaign()).await] {
        let unreachable = matches!(outcome, Err(Error::Unreachable { .. }));
        assert!(unreachable, "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_see_the_leader() {
    let server = Server::start();
    let mut observer = server.election("other", LONG).observe();
    assert_eq!(soon(observer.next()).await, Some(Ok(None)));
    let leadership = win(&server.election("ours", LONG)).await;
    let seen = soon(observer.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((seen.value.as_slice(), seen.token), (&b"ours"[..], leadership.token()));
    leadership.proclaim("http://here").await.unwrap();
    assert_eq!(soon(observer.next()).await.unwrap().unwrap().unwrap().value, b"http://here");
    leadership.resign().await.unwrap();
    assert_eq!(soon(observer.next()).await, Some(Ok(None)));
    // Expiry is not announced.
    server.postgres.sql("SELECT fencegate.acquire('e', 'theirs', '3 s')");
    assert_eq!(soon(observer.next()).await.unwrap().unwrap().unwrap().value, b"theirs");
    assert_eq!(soon(observer.next()).await, Some(Ok(None)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_lead_receives_the_reason() {
    let leases = Leases::new().await;
    let refused = async |user: &str, name: &str| {
        let client = fencegate_leader::Leases::new((leases.config(user), NoTls));
        match soon(election(client, name, "a", LONG).campaign()).await {
            Err(Error::Refused { reason }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let role = format!("{}_jobs", leases.database);
    leases.run(&format!("CREATE ROLE {role} LOGIN")).await;
    assert!(refused(&role, "e").await.contains("permission denied"));
    leases.may_lead(&role, "job/*").await;
    let reason = refused(&role, "e").await;
    assert!(
        reason.contains(&format!("role {role} may not lead election e; Grant it with `fencegate init")),
        "{reason}"
    );
    assert!(refused("no_such_role", "e").await.contains("no_such_role"));
    leases.run("DROP SCHEMA fencegate CASCADE").await;
    let reason = refused(&role, "e").await;
    assert!(reason.contains("run `fencegate init` in that database"), "{reason}");
}
