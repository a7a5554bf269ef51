//! The probers: one task for each host of a list of servers, with a control connection to it.
//!
//! Owns these connections, and what the proxy does when the primary changes. Must never choose the primary: `state::servers`
//! does.

use crate::config::{Address, Settings};
use crate::state::look::{Look, LookError, ServerReport};
use crate::state::server_table::{ServerChange, ServerTable};
use crate::state::shared::Shared;
use fencegate_fence::supervise::supervise;
use fencegate_postgres::sql::{column, is_true, message, number, query_rows, text};
use fencegate_postgres::tls::ControlConfig;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, SimpleQueryRow};

/// Interval between looks at a server.
const INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval: any client can request a look by an error.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for the answer to a look.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for connecting to the server of a new control connection.
const CONTROL_LIMIT: Duration = Duration::from_secs(5);
/// Time after the start for which the choice of the primary waits for servers that do not answer.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);

/// Starts the probers while there are several servers to choose from.
pub(super) fn start(shared: &Arc<Shared>) {
    let followed = shared.clone();
    supervise(&shared.background, "follow_servers", move || follow_servers(followed.clone()));
    if !shared.servers.is_probed() {
        return;
    }
    let settled = shared.clone();
    shared.background.spawn(async move {
        sleep(SETTLE_LIMIT).await;
        settled.servers.settle(|table, change| settled.act(table, change));
    });
}

async fn follow_servers(shared: Arc<Shared>) {
    loop {
        follow_list(&shared);
        shared.servers.reloaded.notified().await;
    }
}

/// Starts the probers of new hosts, and ends those of hosts that are no longer in the list.
fn follow_list(shared: &Arc<Shared>) {
    let listed = shared.servers.probed();
    let mut probers = shared.servers.probers.lock();
    probers.retain(|address, prober| {
        let stays = listed.contains(address);
        if !stays {
            prober.abort();
        }
        stays
    });
    for address in listed {
        probers.entry(address.clone()).or_insert_with(|| {
            let probed = shared.clone();
            supervise(&shared.background, "probe_server", move || probe(probed.clone(), address.clone()))
        });
    }
}

/// Looks at each host of these settings once. Cancel-safe.
pub(super) async fn look_once(control: &ControlConfig, settings: &Settings) -> Vec<Look> {
    let look = async |address: &Address| {
        let result = match connect(control, settings, address).await {
            Ok((client, _)) => look(&client).await,
            Err(error) => Err(error),
        };
        Look { address: address.clone(), result }
    };
    futures_util::future::join_all(settings.upstream.hosts.iter().map(look)).await
}

/// Looks at the server to which a control connection leads. Cancel-safe.
pub(super) async fn look_at_control(control: &ControlConfig) -> Result<ServerReport, LookError> {
    let (client, _) = open(control, CONTROL_LIMIT).await?;
    look(&client).await
}

/// Looks at one host, for as long as it is in the list.
async fn probe(shared: Arc<Shared>, address: Address) {
    let mut requests = shared.servers.requests();
    let mut last = None;
    loop {
        let number = *requests.borrow_and_update();
        let settings = shared.settings();
        let control = shared.control_for(settings.control_database());
        let (client, mut connection) = match connect(&control, &settings, &address).await {
            Ok(connected) => connected,
            Err(error) => {
                shared.report(&address, number, Err(error), &mut last);
                wait(&mut requests).await;
                continue;
            }
        };
        loop {
            let number = *requests.borrow_and_update();
            let report = look(&client).await;
            // The connection broke, or must not stay open.
            let is_lost = report.is_err() || shared.servers.is_released();
            shared.report(&address, number, report, &mut last);
            if is_lost {
                drop(client);
                wait(&mut requests).await;
                break;
            }
            tokio::select! {
                () = wait(&mut requests) => {}
                // Look at once: the server may have stopped.
                _ = &mut connection => break,
            }
        }
        connection.abort();
    }
}

/// Waits until the next look is due or requested.
async fn wait(requests: &mut watch::Receiver<u64>) {
    sleep(SHORTEST_INTERVAL).await;
    // The proxy owns the sender, so the channel stays open.
    timeout(INTERVAL - SHORTEST_INTERVAL, requests.changed()).await.ok();
}

/// Connects to a host with the user, password, encryption and database of the control connection. Cancel-safe: the connection
/// is closed.
async fn connect(
    control: &ControlConfig,
    settings: &Settings,
    address: &Address,
) -> Result<(Client, JoinHandle<()>), LookError> {
    let (host, port) = match address {
        Address::Tcp { host, port } => (Host::Tcp(host.clone()), *port),
        Address::Unix { directory, port } => (Host::Unix(directory.clone()), *port),
    };
    let connect_timeout = settings.upstream.connect_timeout;
    open(&control.with_host(&host, port, connect_timeout), connect_timeout + LOOK_LIMIT).await
}

async fn open(control: &ControlConfig, limit: Duration) -> Result<(Client, JoinHandle<()>), LookError> {
    let connected = timeout(limit, control.connect()).await;
    let (client, connection) = connected.map_err(|_| LookError::NoAnswer(limit))?.map_err(|error| failed(&error))?;
    let driver = tokio::spawn(async move {
        // Ends when the client is dropped, or the server ends the connection.
        connection.await.ok();
    });
    Ok((client, driver))
}

fn failed(error: &tokio_postgres::Error) -> LookError {
    // Class 28: invalid authorization specification.
    match error.code() {
        Some(code) if code.code().starts_with("28") => LookError::LoginRefused(message(error)),
        _ => LookError::Failed(message(error)),
    }
}

/// Reads the role and the timeline of a server.
async fn look(client: &Client) -> Result<ServerReport, LookError> {
    let rows = timeout(LOOK_LIMIT, query_rows(client, include_str!("probe.sql"))).await;
    let rows = rows.map_err(|_| LookError::NoAnswer(LOOK_LIMIT))?.map_err(|error| failed(&error))?;
    rows.first().and_then(report).ok_or(LookError::UnknownForm)
}

fn report(row: &SimpleQueryRow) -> Option<ServerReport> {
    let written = column(row, "wal").map(|wal| u32::from_str_radix(wal.get(..8)?, 16).ok());
    let timeline = match written {
        Some(written) => written?,
        None => ["received", "replayed"].into_iter().filter_map(|name| number(row, name)).max()?,
    };
    Some(ServerReport {
        in_recovery: is_true(row, "in_recovery"),
        system_identifier: text(row, "system_identifier")?,
        postmaster_start: text(row, "postmaster_start")?,
        timeline,
    })
}

impl Shared {
    /// Records the result of a look. Logs a failure once.
    fn report(
        &self,
        address: &Address,
        number: u64,
        result: Result<ServerReport, LookError>,
        last: &mut Option<LookError>,
    ) {
        let failure = result.as_ref().err().cloned();
        if let Some(error) = failure.as_ref().filter(|_| failure != *last) {
            tracing::warn!(host = %address, %error, "server_unknown");
        }
        *last = failure;
        let look = Look { address: address.clone(), result };
        self.servers.report(number, look, |table, change| self.act(table, change));
    }

    /// Puts the servers of a reload in force. Ends the sessions on servers that are no longer in the list.
    pub(super) fn reload_servers(&self, looks: Vec<Look>) {
        self.servers.reload(&self.settings().upstream, looks, |table, change| self.act(table, change));
        self.end_replaced_sessions();
    }

    /// Acts on a change. The table is in force already, so that no new session and no new control connection uses the old
    /// primary.
    fn act(&self, table: &ServerTable, change: ServerChange) {
        let host = |place: usize| table.hosts().get(place).map(|host| host.address.to_string());
        match change {
            ServerChange::Primary { old, new } => {
                // First: no new session may wait for a connection to the old primary.
                self.outdate_control_connections();
                let timeline = table.primary().map(|(_, report)| report.timeline);
                let ended = self.end_replaced_sessions();
                tracing::info!(old = old.and_then(host), new = host(new), timeline, ended, "upstream_changed");
                self.move_control_connections();
            }
            ServerChange::NoPrimary => tracing::error!(error = table.summary(true), "upstream_without_primary"),
            ServerChange::Superseded(place) => {
                let report = table.hosts().get(place).and_then(|host| host.report.as_ref());
                let (timeline, highest) = (report.map(|it| it.timeline), report.map(|it| table.highest(it)));
                let ended = self.end_replaced_sessions();
                let cluster = report.map(|it| it.system_identifier.as_str());
                tracing::error!(host = host(place), cluster, timeline, highest, ended, "upstream_superseded");
            }
        }
    }

    /// Ends the sessions whose server is neither the primary nor a standby. Returns their number.
    fn end_replaced_sessions(&self) -> usize {
        let mut sessions = self.sessions.list();
        sessions.retain(|session| !self.servers.keeps(&session.server, session.fence.identity.as_ref().ok()));
        sessions.iter().for_each(|session| session.replace());
        sessions.len()
    }

    /// Closes the control connections to the old primary. The next operation opens them to the new one.
    fn move_control_connections(&self) {
        for database in self.shared_databases() {
            // The new primary may lack the last changes of the old one.
            database.forget_catalog();
            database.fence.close_outdated();
            self.background.spawn(async move { database.prepare().await });
        }
    }
}
