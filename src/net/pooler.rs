//! Poolers between clients and the proxy, and between the proxy and the server.
//!
//! A pooler behind the proxy may run each transaction of a session in another server process. An admission names one
//! process, so such a session must never be admitted. It is admitted only if the server's end of the connection is the
//! proxy's own, or if the process reaches the idle session with a notification: a pooler in transaction mode has
//! assigned the idle process to no client.
//!
//! Unless documented otherwise, functions are not cancel-safe: dropping a login ends only its own session.

use super::identify::Identified;
use super::login::{CHANNEL, Reported, next};
use super::peer::Peer;
use super::refused::{Refused, refuse};
use super::stream::Ends;
use crate::state::context::Context;
use crate::state::lifecycle::CANNOT_CONNECT_NOW;
use fencegate_fence::session::{Identity, IdentityError};
use fencegate_fence::store::process_payload;
use fencegate_wire::error::ErrorText;
use fencegate_wire::frame::body;
use fencegate_wire::message;
use fencegate_wire::tag::backend;
use parking_lot::Mutex;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Time limit for the notification. It arrives within milliseconds unless something drops it.
const LIMIT: Duration = Duration::from_secs(5);
/// Time limit for the whole check, with LISTEN and UNLISTEN.
const WHOLE_LIMIT: Duration = Duration::from_secs(15);
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// Replaces the identity with an error unless the session is known to keep its server process.
///
/// # Errors
/// The connection to the server fails or hangs, or the client disconnects.
pub async fn prove(
    client: &mut Peer,
    server: &mut Peer,
    ends: Ends,
    identified: &mut Identified,
    reported: &mut Reported,
    context: &Context,
) -> Result<(), Refused> {
    let Ok(identity) = &identified.identity else { return Ok(()) };
    if is_direct(ends, &identified.ends, identity.pid) {
        return Ok(());
    }
    let reached = reach_when_idle(client, server, identity, identified.in_recovery, reported, context);
    match timeout(WHOLE_LIMIT, reached).await {
        Ok(reached) => identified.identity = reached?.map(|()| identity.clone()),
        Err(_) => return refuse(client, unfinished()).await,
    }
    Ok(())
}

/// True if both sides see the same connection. For a Unix socket: if the process that listens is the parent of the server
/// process.
fn is_direct(ends: Ends, seen: &[Option<String>; 4], pid: i32) -> bool {
    match ends {
        Ends::Tcp { local, peer } => {
            let [client, client_port, server, server_port] = seen;
            is_address(local, client, client_port) && is_address(peer, server, server_port)
        }
        Ends::Unix { listener } => seen.iter().all(Option::is_none) && parent(pid) == Some(listener),
        Ends::Unknown => false,
    }
}

fn is_address(own: SocketAddr, address: &Option<String>, port: &Option<String>) -> bool {
    let address = address.as_deref().and_then(|it| it.split('/').next()?.parse::<IpAddr>().ok());
    address == Some(own.ip()) && port.as_deref().and_then(|it| it.parse().ok()) == Some(own.port())
}

/// The parent of a process of this machine. None if it is of another one.
fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may have spaces.
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(1)?.parse().ok()
}

/// Lets a control connection notify the idle session. Inner error: the notification did not arrive.
async fn reach_when_idle(
    client: &mut Peer,
    server: &mut Peer,
    identity: &Identity,
    in_recovery: bool,
    reported: &mut Reported,
    context: &Context,
) -> Result<Result<(), IdentityError>, Refused> {
    let unproved = |why: &str| Ok(Err(IdentityError::Unproved(why.to_owned())));
    let database = context.shared_database();
    if in_recovery {
        return unproved("a server in recovery notifies no session");
    }
    if !context.is_fenced() || database.is_unconcerned() {
        return unproved("no table of its database was fenced when the session began");
    }
    if !run(client, server, "LISTEN fencegate", reported).await? {
        return unproved("the session cannot listen for a notification");
    }
    let (fence, identity, payload) = (database.fence.clone(), identity.clone(), process_payload(identity));
    let failure = Arc::new(Mutex::new(Some("no control connection has answered".to_owned())));
    let last_failure = failure.clone();
    // A control connection may be reconnecting to another server.
    let notifying = context.shared().background.spawn(async move {
        let notify = async {
            loop {
                let notified = fence.notify_process(&identity).await;
                *last_failure.lock() = notified.err().map(|error| error.to_string());
                sleep(PAUSE).await;
            }
        };
        // The session may have ended.
        timeout(LIMIT, notify).await.unwrap_or(())
    });
    let arrived = timeout(LIMIT, arrive(client, server, payload.as_bytes(), reported)).await;
    notifying.abort();
    let arrived = match (arrived, failure.lock().take()) {
        (Ok(arrived), _) => Ok(arrived?),
        (Err(_), None) => Err(IdentityError::NotNotified),
        (Err(_), Some(error)) => {
            Err(IdentityError::Unproved(format!("no control connection could notify the session: {error}")))
        }
    };
    match run(client, server, "SET LOCAL statement_timeout = 0; UNLISTEN fencegate", reported).await? {
        true => Ok(arrived),
        // The client would receive the proxies' notifications.
        false => refuse(client, unfinished()).await,
    }
}

fn unfinished() -> ErrorText {
    ErrorText::new(CANNOT_CONNECT_NOW, "the server did not answer the proxy's queries during login")
        .hint("Retry, or connect to another host.")
}

/// Runs a statement of the proxy. Returns false if the server reports an error.
async fn run(client: &mut Peer, server: &mut Peer, statement: &str, reported: &mut Reported) -> Result<bool, Refused> {
    message::put_query(&mut server.writer.output, &[statement.as_bytes()]);
    server.writer.flush().await.map_err(Refused::Upstream)?;
    let (mut succeeds, mut deadline) = (true, None);
    loop {
        match next(client, server, reported, &mut deadline).await? {
            (backend::READY, _) => return Ok(succeeds),
            (backend::ERROR, _) => succeeds = false,
            _ => {}
        }
    }
}

/// Waits for the notification.
async fn arrive(client: &mut Peer, server: &mut Peer, payload: &[u8], reported: &mut Reported) -> Result<(), Refused> {
    let mut deadline = None;
    loop {
        let (tag, frame) = next(client, server, reported, &mut deadline).await?;
        if tag == backend::NOTIFICATION && message::notification(body(&frame)) == Some((CHANNEL, payload)) {
            return Ok(());
        }
    }
}

/// Logs that a pooler was found, once for each place and database.
pub fn report(context: &Context, identity: &Result<Identity, IdentityError>, application_name: &str) {
    let behind = match identity {
        Err(why @ (IdentityError::OtherProcess | IdentityError::NotNotified)) => Some(why.to_string()),
        _ => None,
    };
    let before = names_its_client(application_name)
        .then(|| format!("application_name {application_name:?} contains a client's address, as PgBouncer adds it: the pooler must be in session mode"));
    let [before_reported, behind_reported] = &context.shared_database().poolers_reported;
    for (place, reason, reported) in [("before", before, before_reported), ("behind", behind, behind_reported)] {
        if let Some(reason) = reason
            && context.is_fenced()
            && !reported.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(database = context.database().name(), place, reason, "pooler_found");
        }
    }
}

/// True for the names that PgBouncer's `application_name_add_host` makes: `app - 10.0.0.1:5000`, `app - unix(4711):5000`.
fn names_its_client(application_name: &str) -> bool {
    let Some((_, client)) = application_name.rsplit_once(" - ") else { return false };
    let is_unix = || client.strip_prefix("unix(").is_some_and(|rest| rest.contains("):"));
    client.parse::<SocketAddr>().is_ok() || is_unix()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_direct_if_both_sides_see_the_same_addresses() {
        let ends = Ends::Tcp { local: ([10, 0, 0, 1], 5000).into(), peer: ([10, 0, 0, 2], 5432).into() };
        let seen = |it: [&str; 4]| it.map(|it| Some(it.to_owned()));
        assert!(is_direct(ends, &seen(["10.0.0.1", "5000", "10.0.0.2", "5432"]), 1));
        assert!(is_direct(ends, &seen(["10.0.0.1/32", "5000", "10.0.0.2/32", "5432"]), 1));
        assert!(!is_direct(ends, &seen(["10.0.0.3", "5000", "10.0.0.2", "5432"]), 1));
        assert!(!is_direct(ends, &seen(["10.0.0.1", "5001", "10.0.0.2", "5432"]), 1));
        assert!(!is_direct(ends, &seen(["10.0.0.1", "5000", "10.0.0.3", "5432"]), 1));
        assert!(!is_direct(ends, &seen(["10.0.0.1", "5000", "10.0.0.2", "6432"]), 1));
        // A pooler that uses the server's Unix socket.
        let none = [const { None }; 4];
        assert!(!is_direct(ends, &none, 1));
        assert!(!is_direct(Ends::Unknown, &none, 1));
        let own = std::process::id() as i32;
        let listener = std::os::unix::process::parent_id() as i32;
        assert!(is_direct(Ends::Unix { listener }, &none, own));
        assert!(!is_direct(Ends::Unix { listener: own }, &none, own));
        assert!(!is_direct(Ends::Unix { listener }, &seen(["10.0.0.1", "5000", "10.0.0.2", "5432"]), own));
    }

    #[test]
    fn names_of_pgbouncer() {
        for name in ["app - 10.0.0.1:5000", "app - [::1]:5000", "a - b - 10.0.0.1:5000", "psql - unix(4711):6432"] {
            assert!(names_its_client(name), "{name}");
        }
        for name in ["", "app", "app - 1", "10.0.0.1:5000", "app - unix"] {
            assert!(!names_its_client(name), "{name}");
        }
    }
}
