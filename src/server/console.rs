//! A client of the console: the server authenticates it under its role, then the proxy answers its commands. While the
//! server is unavailable, `outage` admits clients.
//!
//! Owns the client's socket and the length of its messages. Must never answer a client whose role is not in
//! `admin_roles`.

use super::{outage, reload};
use crate::config;
use crate::config::Settings;
use crate::metrics::WriteCount;
use crate::net::handshake::IncomingClient;
use crate::net::peer::{Peer, Reader};
use crate::net::refused::{Refused, refuse};
use crate::net::stream::WriteHalf;
use crate::net::upstream::{LoggedIn, Route, log_in};
use crate::operate::console;
use crate::operate::console::{
    Console, OpenSession, PreparedCommand, Rejected, ReloadedItem, ServerRow, error_info, frontend, refusal,
};
use crate::state::connections::Seat;
use crate::state::lifecycle::session_ends;
use crate::state::server_table::{ServerRole, ServerState};
use crate::state::sessions::SessionRecord;
use crate::state::shared::Shared;
use async_trait::async_trait;
use bytes::{Buf, Bytes};
use fencegate_fence::store::StoreError;
use fencegate_fence::{Database, Leaders, Need};
use fencegate_policy::PolicySet;
use fencegate_session::{ClientFault, End};
use fencegate_wire::error::{ErrorText, Severity};
use fencegate_wire::frame::{Header, body};
use fencegate_wire::{message, tag};
use futures_util::SinkExt;
use pgwire::api::{ClientInfo, DefaultClient, NoopHandler, PgWireConnectionState};
use pgwire::error::PgWireError;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::ReadyForQuery;
use pgwire::tokio::server::{PgWireMessageServerCodec, process_message};
use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::io::{Empty, Join};
use tokio::time::timeout;
use tokio_util::codec::Framed;

/// Time limit for listing the server's databases.
const LISTING_LIMIT: Duration = Duration::from_secs(5);
/// Maximum length of a message, in bytes.
const LARGEST_MESSAGE: usize = 64 * 1024;

/// A client that may use the console.
pub struct ConsoleSession {
    client: Peer,
    role: String,
    server_version: String,
}

impl ConsoleSession {
    /// Lets the server authenticate the client, in a session that is closed immediately.
    /// Not cancel-safe: dropping it closes the sockets.
    ///
    /// # Errors
    /// There is no session. The client has been told the reason if possible.
    pub async fn open(shared: Arc<Shared>, caller: IncomingClient, seat: &mut Seat) -> Result<Self, Refused> {
        let IncomingClient { mut client, startup, deadline } = caller;
        let packet = startup.for_database(shared.settings().control_database());
        if outage::admits(&shared, &client, startup.user(), &packet).await {
            seat.keep_place();
            let role = startup.user().to_owned();
            tracing::warn!(session = seat.number(), role, "console_without_server");
            outage::put_greeting(&mut client.writer.output);
            client.writer.flush().await?;
            return Ok(ConsoleSession { client, role, server_version: String::new() });
        }
        let LoggedIn { mut server, authenticated, .. } =
            log_in(&shared, &mut client, seat, Route::Console, &packet, deadline).await?;
        seat.keep_place();
        message::put_terminate(&mut server.writer.output);
        // Ignore errors: the session is no longer needed.
        server.writer.flush().await.ok();
        let role = startup.user().to_owned();
        if !shared.settings().admin_roles.contains(&role) {
            let text = ErrorText::new("42501", format!("role \"{role}\" may not use fencegate's console"))
                .hint("Connect as a role in the proxy's setting admin_roles.");
            return refuse(&mut client, text).await;
        }
        client.writer.output.extend_from_slice(&authenticated.ready);
        client.writer.flush().await?;
        Ok(ConsoleSession { client, role, server_version: authenticated.reported.server_version })
    }

    /// The client's role.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Answers commands until the session ends, and returns why it ended. Not cancel-safe: a command may be half done.
    pub async fn run(self, shared: Arc<Shared>) -> End {
        self.answer(shared).await.unwrap_or_else(End::ClientLost)
    }

    async fn answer(self, shared: Arc<Shared>) -> io::Result<End> {
        let Peer { mut reader, writer, .. } = self.client;
        let mut answers = Answers::new(writer.into_parts().0.into_half());
        let console = Arc::new(Console::new(shared.clone(), self.role, self.server_version));
        loop {
            let next = tokio::select! {
                next = next_message(&mut reader) => next?,
                () = shared.stopping() => return answers.end(session_ends(), End::Shutdown).await,
            };
            match next {
                Next::End | Next::Message(tag::frontend::TERMINATE, _) => return Ok(End::Client),
                Next::Message(tag, frame) => {
                    let mut answer = pin!(answers.answer(&console, tag, body(&frame)));
                    tokio::select! {
                        biased;
                        answered = &mut answer => answered?,
                        () = left(&mut reader) => {
                            // Ends commands that only wait. The others complete.
                            console.client_left();
                            answer.await?;
                        }
                    }
                }
                Next::TooLong(tag, bytes) => answers.refuse(tag, too_long(bytes)).await?,
                Next::Broken(why) => {
                    return answers.end(ErrorText::new("08P01", why.to_string()), End::ClientFault(why)).await;
                }
            }
        }
    }
}

/// The client's next message.
enum Next {
    /// A tag and a frame.
    Message(u8, Bytes),
    /// A tag and the length. The message was skipped.
    TooLong(u8, usize),
    /// The start of the next message cannot be determined.
    Broken(ClientFault),
    /// The client has disconnected.
    End,
}

/// Not cancel-safe: the rest of a long message would be read as another message.
async fn next_message(reader: &mut Reader) -> io::Result<Next> {
    loop {
        match Header::from_client(&reader.input) {
            Err(error) => return Ok(Next::Broken(error.into())),
            Ok(Some(header)) if !is_known(header.tag) => {
                return Ok(Next::Broken(ClientFault::Unknown(header.tag)));
            }
            Ok(Some(header)) if header.body > LARGEST_MESSAGE => {
                let passed = pass_over(reader, header.frame()).await?;
                return Ok(if passed { Next::TooLong(header.tag, header.body) } else { Next::End });
            }
            Ok(Some(header)) if reader.input.len() >= header.frame() => {
                return Ok(Next::Message(header.tag, reader.input.split_to(header.frame()).freeze()));
            }
            Ok(_) if reader.ended => return Ok(Next::End),
            Ok(_) => reader.fill().await?,
        }
    }
}

/// Returns when the client has disconnected. Never returns if the client has sent more than the buffer holds.
/// Cancel-safe.
async fn left(reader: &mut Reader) {
    while !reader.ended && reader.input.len() < LARGEST_MESSAGE {
        if reader.fill().await.is_err() {
            return;
        }
    }
    if !reader.ended {
        pending().await
    }
}

/// Discards this many bytes as they arrive. False: the client disconnected before.
async fn pass_over(reader: &mut Reader, bytes: usize) -> io::Result<bool> {
    let mut left = bytes;
    loop {
        let there = left.min(reader.input.len());
        reader.input.advance(there);
        left -= there;
        if left == 0 || reader.ended {
            return Ok(left == 0);
        }
        reader.fill().await?;
    }
}

/// True for messages that a client may send after authentication.
fn is_known(tag: u8) -> bool {
    b"QPBDECHSFXdcf".contains(&tag)
}

fn too_long(bytes: usize) -> ErrorText {
    let message = format!("the command has {bytes} bytes; the console accepts at most {LARGEST_MESSAGE}");
    ErrorText::new("54000", message)
}

/// pgwire's view of the client's socket. pgwire does not read from it, so the proxy can check the length and framing of
/// each message first.
struct Answers {
    socket: Framed<Join<Empty, WriteHalf>, PgWireMessageServerCodec<PreparedCommand>>,
}

impl Answers {
    fn new(output: WriteHalf) -> Self {
        // The address is not used.
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let codec = PgWireMessageServerCodec::new(DefaultClient::new(nowhere, false));
        let mut socket = Framed::new(tokio::io::join(tokio::io::empty(), output), codec);
        // The server has completed the previous states.
        socket.set_state(PgWireConnectionState::ReadyForQuery);
        Answers { socket }
    }

    /// Not cancel-safe: a command may be half done.
    async fn answer(&mut self, console: &Arc<Console>, tag: u8, body: &[u8]) -> io::Result<()> {
        // Ignores the rest of a COPY that was never started, as the server does.
        if self.skips(tag) || b"dcf".contains(&tag) {
            return Ok(());
        }
        let message = match frontend::message(tag, body) {
            Ok(message) => message,
            Err(text) => return self.refuse(tag, text).await,
        };
        let none = Arc::new(NoopHandler);
        let (simple, extended) = (console.clone(), console.clone());
        let answered =
            process_message(message, &mut self.socket, none.clone(), simple, extended, none.clone(), none).await;
        match answered {
            Ok(()) => Ok(()),
            Err(error) => self.fail(tag, error).await,
        }
    }

    /// Not cancel-safe: the client may have received a part of it.
    async fn refuse(&mut self, tag: u8, text: ErrorText) -> io::Result<()> {
        if self.skips(tag) {
            return Ok(());
        }
        self.fail(tag, refusal(text, Severity::Error)).await
    }

    /// Sends an error. The transaction continues: there is nothing to roll back, and psql's own completion queries are
    /// errors here. Not cancel-safe: the client may have received a part of it.
    async fn fail(&mut self, tag: u8, error: PgWireError) -> io::Result<()> {
        self.socket.feed(PgWireBackendMessage::ErrorResponse(error_info(error).into())).await?;
        if frontend::is_extended(tag) {
            self.socket.set_state(PgWireConnectionState::AwaitingSync);
        } else {
            self.socket.set_state(PgWireConnectionState::ReadyForQuery);
            let ready = ReadyForQuery::new(self.socket.transaction_status());
            self.socket.feed(PgWireBackendMessage::ReadyForQuery(ready)).await?;
        }
        self.socket.flush().await
    }

    /// Sends the reason for the session's end. Not cancel-safe: the client may have received a part of it.
    async fn end(&mut self, text: ErrorText, end: End) -> io::Result<End> {
        let error = error_info(refusal(text, Severity::Fatal));
        self.socket.send(PgWireBackendMessage::ErrorResponse(error.into())).await?;
        self.socket.close().await?;
        Ok(end)
    }

    /// After an error in the extended protocol, everything up to Sync is skipped.
    fn skips(&self, tag: u8) -> bool {
        tag != tag::frontend::SYNC && matches!(self.socket.state(), PgWireConnectionState::AwaitingSync)
    }
}

#[async_trait]
impl console::Proxy for Shared {
    fn settings(&self) -> Arc<Settings> {
        self.settings()
    }

    fn policies(&self) -> Arc<PolicySet> {
        self.policies.borrow().clone()
    }

    fn leaders(&self) -> Leaders {
        self.leaders()
    }

    fn databases(&self) -> Vec<Arc<Database>> {
        self.shared_databases().iter().map(|database| database.fence.clone()).collect()
    }

    async fn database(&self, name: &str) -> Option<Arc<Database>> {
        Some(self.find_shared_database(name).await?.fence.clone())
    }

    async fn prepared_databases(&self) -> Result<Vec<String>, StoreError> {
        let named = self.policies.borrow().databases.clone();
        let control = self.control_for(self.settings().control_database());
        let all = match named {
            Some(named) => named,
            None => {
                let listed = timeout(LISTING_LIMIT, fencegate_fence::databases(&control)).await;
                listed.unwrap_or(Err(StoreError::TimedOut(LISTING_LIMIT)))?
            }
        };
        let mut prepared = Vec::new();
        for name in all {
            if self.can_control(&name, Need::Schema).await.is_ok() {
                prepared.push(name);
            }
        }
        Ok(prepared)
    }

    fn sessions(&self) -> Vec<OpenSession> {
        self.sessions.list().iter().map(|session| open_session(session)).collect()
    }

    async fn servers(&self) -> Vec<ServerRow> {
        let is_up = if self.servers.is_probed() { None } else { Some(self.condition().await.upstream) };
        let sessions = self.sessions.list();
        // Only probers keep reports up to date.
        let report = |it: &ServerState| it.report.clone().filter(|_| is_up.is_none());
        let of = |it: &ServerState| ServerRow {
            host: it.address.to_string(),
            is_up: is_up.unwrap_or(it.role != ServerRole::Unknown),
            role: is_up.is_none().then(|| it.role.name()),
            timeline: report(it).map(|report| report.timeline.into()),
            system_identifier: report(it).map(|report| report.system_identifier.clone()),
            seen: report(it).and(it.seen),
            sessions: u64::try_from(sessions.iter().filter(|session| session.server == it.address).count())
                .unwrap_or(u64::MAX),
            error: it.failure.as_ref().map(ToString::to_string),
        };
        self.servers.table().hosts().iter().map(of).collect()
    }

    fn kill(&self, session: u64) -> bool {
        let session = self.sessions.with_number(session);
        session.is_some_and(|session| {
            session.kill.cancel();
            true
        })
    }

    async fn pause(&self, database: &str) -> bool {
        self.set_paused(database, true);
        let mut orders = self.orders.subscribe();
        tokio::select! {
            biased;
            // This process owns the sender, so the channel stays open.
            _ = orders.wait_for(|orders| !orders.paused.contains(database)) => false,
            () = self.sessions.all_held(database) => true,
        }
    }

    fn resume(&self, database: &str) -> bool {
        self.set_paused(database, false)
    }

    fn paused(&self) -> Arc<BTreeSet<String>> {
        self.orders.borrow().paused.clone()
    }

    fn rejections(&self) -> Vec<Arc<Rejected>> {
        self.recent.list()
    }

    fn writes(&self) -> Vec<WriteCount> {
        self.metrics.writes()
    }

    fn started(&self) -> SystemTime {
        self.started
    }

    /// Not cancel-safe: some databases may have the new policies and others not.
    async fn reload(&self) -> Result<Vec<ReloadedItem>, Vec<String>> {
        match reload::reload(self).await {
            Ok(reloaded) => Ok(changes(reloaded)),
            Err(error) => Err(error.faults.iter().map(ToString::to_string).collect()),
        }
    }
}

fn open_session(session: &SessionRecord) -> OpenSession {
    let (activity, since) = session.fence.activity_since();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    OpenSession {
        number: session.number,
        database: session.database.clone(),
        user: session.user.clone(),
        address: session.address.clone(),
        application_name: session.application_name(),
        pid: session.pid,
        started: session.started,
        state: (activity, SystemTime::now().checked_sub(since.elapsed()).unwrap_or(session.started)),
        is_held: session.is_held(),
        presented: session.presented(),
        admitted: session.fence.admissions(),
        queries: count(&session.passed.queries),
        received: count(&session.passed.received),
        sent: count(&session.passed.sent),
    }
}

fn changes(reloaded: reload::Reloaded) -> Vec<ReloadedItem> {
    let setting = |it: config::SettingChange| ReloadedItem {
        what: "setting",
        name: it.key.to_owned(),
        change: "value".to_owned(),
        before: Some(it.before).filter(|text| !text.is_empty()),
        after: Some(it.after).filter(|text| !text.is_empty()),
        in_force: it.applied,
    };
    let certificate = |name: String| ReloadedItem {
        what: "certificate",
        name,
        change: "content".to_owned(),
        before: None,
        after: None,
        in_force: true,
    };
    let policy = |it: fencegate_policy::PolicyChange| ReloadedItem {
        what: "policy",
        name: it.resource.unwrap_or_default(),
        change: it.what,
        before: it.before,
        after: it.after,
        in_force: true,
    };
    let settings = reloaded.settings.into_iter().map(setting);
    let certificates = reloaded.certificates.into_iter().map(certificate);
    settings.chain(certificates).chain(reloaded.policies.into_iter().map(policy)).collect()
}
