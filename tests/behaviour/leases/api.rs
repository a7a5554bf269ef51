//! Results of each lease function. Each call uses its own connection.

use super::{Leases, call_in};
use crate::support::{DEADLINE, until};
use std::future::poll_fn;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, NoTls};

#[tokio::test]
async fn one_holder_has_the_lease_until_it_is_released() {
    let leases = Leases::new().await;
    assert_eq!(leases.call("leader('e')").await, "");
    assert_eq!(leases.call("acquire('e', 'a', '1 min')").await, "1");
    assert_eq!(leases.call("leader('e')").await, "a");
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "");
    assert_eq!(leases.call("acquire('e', 'a', '1 min')").await, "1", "the same holder gets its token again");
    assert_eq!(leases.call("release('e', 2)").await, "f");
    assert_eq!(leases.call("release('e', 1)").await, "t");
    assert_eq!(leases.call("release('e', 1)").await, "f");
    assert_eq!(leases.call("leader('e')").await, "");
    assert_eq!(leases.call("renew('e', 1, '1 min')").await, "LF001");
    assert_eq!(leases.call("acquire('e', 'a', '1 min')").await, "2", "a new lease has a higher token");
    assert_eq!(leases.call("renew('e', 1, '1 min')").await, "LF001");
    assert_eq!(leases.call("release('e', 1)").await, "f");
    assert_eq!(leases.call("leader('e')").await, "a");
    assert_eq!(leases.call("acquire('other', 'b', '1 min')").await, "3", "elections are independent");
    assert_eq!(leases.history("e").await, "1 a _app released");
}

#[tokio::test]
async fn an_expired_lease_has_no_holder() {
    let leases = Leases::new().await;
    assert_eq!(leases.call("acquire('e', 'a', '100 ms')").await, "1");
    until("it runs out by itself", async || leases.call("leader('e')").await.is_empty()).await;
    assert_eq!(leases.call("renew('e', 1, '1 min')").await, "LF001", "even without a successor");
    assert_eq!(leases.call("release('e', 1)").await, "f");
    assert_eq!(leases.call("proclaim('e', 1, 'x')").await, "f");
    assert_eq!(leases.call("acquire('e', 'a', '1 min')").await, "2");
    leases.age("e", "1 min").await;
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "3");
    assert_eq!(leases.history("e").await, "1 a _app expired, 2 a _app overtaken");
}

#[tokio::test]
async fn a_granted_expiry_is_never_shortened() {
    let leases = Leases::new().await;
    let session = leases.session().await;
    let expires = "SELECT round(extract(epoch FROM expires - clock_timestamp()) / 60) FROM fencegate_state.lease";
    for (call, minutes) in [
        ("acquire('e', 'a', '10 min')", "10"),
        ("acquire('e', 'a', '1 min')", "10"),
        ("renew('e', 1, '1 min')", "10"),
        ("renew('e', 1, '20 min')", "20"),
        ("acquire('e', 'a', '30 min')", "30"),
    ] {
        assert!(!call_in(&session, call).await.is_empty());
        assert_eq!(leases.ask(expires).await, minutes, "{call}");
    }
}

/// Setting the clock back does not restore a released lease.
#[tokio::test]
async fn a_released_lease_stays_released() {
    let leases = Leases::new().await;
    assert_eq!(leases.call("acquire('e', 'a', '1 min')").await, "1");
    assert_eq!(leases.call("release('e', 1)").await, "t");
    leases.age("e", "-1 hour").await;
    assert_eq!(leases.call("leader('e')").await, "");
    assert_eq!(leases.call("renew('e', 1, '1 min')").await, "LF001");
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "2");
}

#[tokio::test]
async fn the_error_reports_the_state_of_the_lease() {
    let leases = Leases::new().await;
    let session = leases.session().await;
    let told = async |token: &str| {
        let call = format!("SELECT fencegate.renew('e', {token}, '1 min')");
        let error = session.simple_query(&call).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        (error.message().to_owned(), error.detail().unwrap().to_owned())
    };
    assert!(told("1").await.0.ends_with("there is no such lease"));
    call_in(&session, "acquire('e', 'a', '1 min')").await;
    assert!(told("2").await.0.ends_with("there is no such lease"));
    leases.age("e", "1 hour").await;
    assert!(told("1").await.0.contains("its lease expired at"));
    call_in(&session, "acquire('e', 'a', '1 min')").await;
    let (message, detail) = told("1").await;
    assert_eq!(message, "fencing token 1 of election e is stale: the highest is 2");
    assert_eq!(detail, "election=e presented=1 highest=2");
    call_in(&session, "release('e', 2)").await;
    assert!(told("2").await.0.ends_with("its lease was released"));
}

#[tokio::test]
async fn waiters_are_woken() {
    let leases = Leases::new().await;
    let (client, mut connection) = leases.config(&leases.app()).connect(NoTls).await.unwrap();
    let (sender, mut notes) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(note) = message {
                let _ = sender.send(format!("{} {}", note.channel(), note.payload()));
            }
        }
    });
    client.batch_execute("LISTEN fencegate_lease").await.unwrap();
    let mut heard = async || timeout(DEADLINE, notes.recv()).await.expect("a notification arrives").unwrap();
    leases.call("acquire('e', 'a', '1 min')").await;
    assert_eq!(heard().await, "fencegate_lease e");
    // Neither of these changes who leads.
    leases.call("renew('e', 1, '1 min')").await;
    leases.call("acquire('e', 'b', '1 min')").await;
    leases.call("proclaim('e', 1, 'http://here')").await;
    assert_eq!(leases.call("leader('e')").await, "http://here");
    assert_eq!(heard().await, "fencegate_lease e");
    leases.call("release('e', 1)").await;
    assert_eq!(heard().await, "fencegate_lease e");
    assert!(notes.try_recv().is_err());
}

/// A holder that proclaims another name stays the holder. The proclaimed name does not become one.
#[tokio::test]
async fn a_proclaimed_name_does_not_make_a_holder() {
    let leases = Leases::new().await;
    leases.call("acquire('e', 'a', '1 min')").await;
    assert_eq!(leases.call("proclaim('e', 1, 'b')").await, "t");
    assert_eq!(leases.call("acquire('e', 'b', '1 min')").await, "");
    assert_eq!(leases.call("acquire('e', 'a', '1 min')").await, "1");
    assert_eq!(leases.call("proclaim('e', 2, 'c')").await, "f");
    assert_eq!(leases.call("leader('e')").await, "b");
}

/// A fence without a proxy: until the transaction ends, no other candidate can lead, even if the lease has expired.
#[tokio::test]
async fn a_transaction_that_renews_first_ends_before_its_successor_leads() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let leases = Leases::new().await;
        let (writer, other) = (leases.session().await, leases.session().await);
        assert_eq!(leases.call("acquire('e', 'a', '5 s')").await, "1");
        writer.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
        assert_ne!(call_in(&writer, "renew('e', 1, '100 ms')").await, "LF001");
        until("it has run out", async || call_in(&other, "leader('e')").await.is_empty()).await;
        assert_eq!(call_in(&other, "acquire('e', 'b', '1 min')").await, "", "the transaction is still open");
        writer.batch_execute("INSERT INTO ticks VALUES (1); COMMIT").await.unwrap();
        assert_eq!(call_in(&other, "acquire('e', 'b', '1 min')").await, "2");
        writer.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
        assert_eq!(call_in(&writer, "renew('e', 1, '1 min')").await, "LF001");
    }
}
