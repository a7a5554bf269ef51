//! Many elections in one process: a single statement renews all leases.

use super::leading::Server;
use super::{Leases, call_in};
use crate::election::{renewed, silence_ends, soon};
use crate::support::{Stalls, until};
use fencegate_leader::{Election, Leadership, LeaseSession, Lost};
use std::time::Duration;

fn session(server: &Server, ttl: u64) -> LeaseSession {
    Election::on(server.client("ours")).ttl(Duration::from_secs(ttl)).session().unwrap()
}

fn shard(session: &LeaseSession, number: usize) -> Election {
    session.election(format!("shard/{number}")).unwrap()
}

async fn win_shards(session: &LeaseSession, count: usize) -> Vec<Leadership> {
    let mut won = Vec::new();
    for number in 0..count {
        won.push(soon(shard(session, number).campaign()).await.unwrap());
    }
    won
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_leases_are_renewed_by_one_statement() {
    let server = Server::start();
    let won = win_shards(&session(&server, 10), 300).await;
    let times = "SELECT count(DISTINCT renewed) FROM fencegate_state.lease";
    until("all are renewed at once", async || server.postgres.value(times) == "1").await;
    renewed(&won).await;
    assert_eq!(server.postgres.value(times), "1");
    assert!(won.iter().all(|leadership| leadership.check().is_ok()));
    // A connection that answered too late is replaced. The old one remains for a moment.
    until("it is one connection", async || server.connections("ours") == "1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_resigned_lease_keeps_the_others() {
    let server = Server::start();
    let session = session(&server, 6);
    let won = win_shards(&session, 4).await;
    assert_eq!(server.postgres.value("SELECT fencegate.release('shard/0', 1)"), "t");
    assert_eq!(soon(won[0].lost()).await, Lost::Revoked);
    won[1].resign().await.unwrap();
    assert_eq!(server.postgres.value("SELECT count(*) FROM fencegate.leases()"), "2");
    renewed(&won[2..]).await;
    renewed(&won[2..]).await;
    let again = soon(shard(&session, 0).campaign()).await.unwrap();
    assert!(again.token() > won[3].token());
    assert!(won[2..].iter().all(|leadership| leadership.check().is_ok()));
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_all_leaderships_with_a_reason() {
    let server = Server::start();
    let won = win_shards(&session(&server, 9), 20).await;
    let stalls = Stalls::watch();
    server.silence();
    silence_ends(&won, stalls).await;
}

/// The transaction stays open after it has renewed one lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_lease_does_not_block_the_others() {
    let leases = Leases::new().await;
    let (app, holder) = (leases.session().await, leases.session().await);
    for election in ["a", "b", "c", "d"] {
        call_in(&app, &format!("acquire('{election}', 'ours', '1 min')")).await;
    }
    assert_eq!(call_in(&app, "release('c', 3)").await, "t");
    holder.batch_execute("BEGIN").await.unwrap();
    call_in(&holder, "renew('d', 4, '1 min')").await;
    let renew = "SELECT string_agg(election || ' ' || (expires IS NOT NULL), ', ' ORDER BY election) \
        FROM fencegate.renew_all('{a,b,c,d,none}', '{1,99,3,4,5}', '2 min')";
    let renewed: String = app.query_one(renew, &[]).await.unwrap().get(0);
    assert_eq!(renewed, "a true, b false, c false", "each lease under its own token");
    let later = "SELECT string_agg(election, ',') FROM fencegate.leases() WHERE expires > now() + interval '90 s'";
    assert_eq!(app.query_one(later, &[]).await.unwrap().get::<_, &str>(0), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_cannot_renew_a_lease_that_it_may_not_lead() {
    let leases = Leases::new().await;
    let role = format!("{}_jobs", leases.database);
    leases.run(&format!("CREATE ROLE {role} LOGIN")).await;
    leases.may_lead(&role, "job/*").await;
    leases.call("acquire('job/1', 'a', '1 min')").await;
    leases.call("acquire('cron', 'a', '1 min')").await;
    let session = crate::fence::server::connect(&leases.config(&role)).await;
    let renew = "SELECT string_agg(election, ',') FROM fencegate.renew_all('{job/1,cron}', '{1,2}', '1 min')";
    assert_eq!(session.query_one(renew, &[]).await.unwrap().get::<_, &str>(0), "job/1");
}
