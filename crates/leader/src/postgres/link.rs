//! The connection that all elections of a process use to query PostgreSQL and to receive notifications.
//!
//! Owns opening and replacing it, and all time limits. Must never wait for a silent connection while a new one could
//! answer.

use crate::coordinator::PAUSE;
use crate::{Error, Patience};
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, broadcast};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::error::DbError;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};

/// Time limit for opening a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// A receiver that has missed more changes than this reads again unconditionally.
const MOST_CHANGES: usize = 256;
/// Overrides the role's defaults. A standby refuses LISTEN, and therefore the connection.
const SETTINGS: &str = "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; \
    LISTEN fencegate_lease";

/// An election that has changed; None: it may be any.
type Change = Option<Arc<str>>;

/// Receiver of changes in elections.
#[derive(Debug)]
pub(super) struct Changes(broadcast::Receiver<Change>);

impl Changes {
    /// Returns when the election has changed, or may have. Cancel-safe.
    pub(super) async fn of(&mut self, election: &str) {
        loop {
            match self.0.recv().await {
                Ok(Some(changed)) if *changed != *election => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                _ => return,
            }
        }
    }
}

/// An open connection, and the task that drives it.
pub(super) struct Open {
    pub(super) client: Client,
    driver: AbortHandle,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

enum Failure {
    Postgres(tokio_postgres::Error),
    Silence,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Postgres(error) => formatter.write_str(&text(error)),
            Failure::Silence => write!(formatter, "no connection within {CONNECT:?}"),
        }
    }
}

pub(super) struct Link<C> {
    connect: C,
    open: Mutex<Option<Arc<Open>>>,
    changes: broadcast::Sender<Change>,
    /// Number of answered queries.
    answers: AtomicU64,
}

impl<C: Connect> Link<C> {
    pub(super) fn new(connect: C) -> Arc<Self> {
        let (changes, _) = broadcast::channel(MOST_CHANGES);
        Arc::new(Link { connect, open: Mutex::default(), changes, answers: AtomicU64::new(0) })
    }

    /// Subscribes to later changes.
    pub(super) fn changes(&self) -> Changes {
        Changes(self.changes.subscribe())
    }

    /// Sends a query until it is answered, on a new connection if the current one fails or stays silent. The query may
    /// run several times, so it must be repeatable.
    ///
    /// Cancel-safe for this process; the query may take effect.
    pub(super) async fn ask<T, Q, F>(self: &Arc<Self>, patience: Patience, question: Q) -> Result<T, Error>
    where
        T: Send + 'static,
        Q: Fn(Arc<Open>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
    {
        let deadline = Instant::now() + patience.limit;
        let mut attempts = JoinSet::new();
        let mut reason = "no answer".to_owned();
        let mut next = Some(Duration::ZERO);
        let mut answered = self.answers.load(Ordering::Relaxed);
        loop {
            if let Some(pause) = next.take() {
                let (link, question) = (self.clone(), question.clone());
                attempts.spawn(async move {
                    sleep(pause).await;
                    question(link.open().await?).await.map_err(Failure::Postgres)
                });
            }
            tokio::select! {
                biased;
                Some(answer) = attempts.join_next() => match answer {
                    Ok(Ok(answer)) => {
                        self.answers.fetch_add(1, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Ok(Err(failure)) => {
                        if let Failure::Postgres(error) = &failure && let Some(refusal) = error.as_db_error() {
                            refused(refusal)?;
                            self.replace();
                        }
                        (reason, next) = (failure.to_string(), Some(PAUSE));
                    }
                    Err(error) => (reason, next) = (error.to_string(), Some(PAUSE)),
                },
                () = sleep_until(deadline) => return Err(Error::Unreachable { limit: patience.limit, reason }),
                () = sleep(patience.member) => {
                    // If other queries are answered meanwhile, the connection works and this query is slow.
                    let now = self.answers.load(Ordering::Relaxed);
                    if std::mem::replace(&mut answered, now) == now {
                        self.replace();
                        next = Some(Duration::ZERO);
                    }
                }
            }
        }
    }

    /// The next query opens a new connection. Earlier queries on this one may still be answered.
    fn replace(&self) {
        // If it is locked, a new connection is already being opened.
        if let Ok(mut open) = self.open.try_lock() {
            *open = None;
        }
    }

    async fn open(&self) -> Result<Arc<Open>, Failure> {
        let mut open = self.open.lock().await;
        if let Some(open) = open.as_ref().filter(|open| !open.client.is_closed()) {
            return Ok(open.clone());
        }
        let opened = timeout(CONNECT, self.connect()).await.map_err(|_| Failure::Silence)?;
        Ok(open.insert(Arc::new(opened.map_err(Failure::Postgres)?)).clone())
    }

    async fn connect(&self) -> Result<Open, tokio_postgres::Error> {
        let (client, connection) = self.connect.connect().await?;
        let driver = tokio::spawn(drive(connection, self.changes.clone())).abort_handle();
        let open = Open { client, driver };
        open.client.batch_execute(SETTINGS).await?;
        // Earlier changes were missed.
        let _ = self.changes.send(None);
        Ok(open)
    }
}

/// Runs until the connection ends.
async fn drive<S>(mut connection: Connection<Socket, S>, changes: broadcast::Sender<Change>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(note) = message {
            let _ = changes.send(Some(note.payload().into()));
        }
    }
    // The next query opens a new connection.
    let _ = changes.send(None);
}

/// True if a retry may succeed. (Classes of SQLSTATE that are worth a retry: 08 connection, 25 and 40 transaction, 53
/// resources, 55 object state, 57 operator intervention, 58 and XX server.)
pub(crate) fn is_transient(refusal: &DbError) -> bool {
    let code = refusal.code().code();
    ["08", "25", "40", "53", "55", "57", "58", "XX"].iter().any(|class| code.starts_with(class))
}

/// Err if a retry would fail in the same way.
fn refused(refusal: &DbError) -> Result<(), Error> {
    let code = refusal.code().code();
    if code == "LF001" {
        return Err(Error::Gone);
    }
    if is_transient(refusal) {
        return Ok(());
    }
    // An unknown function or schema.
    let remedy = if ["42883", "3F000"].contains(&code) { Some("run `fencegate init` in that database") } else { None };
    let more = remedy.or(refusal.hint()).map(|hint| format!("; {hint}")).unwrap_or_default();
    Err(Error::Refused { reason: format!("{}{more}", refusal.message()) })
}

/// tokio-postgres reports only "db error"; the message is in the source.
fn text(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(refusal), _) => refusal.message().to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// Opens connections to the database with the leases.
pub trait Connect: Send + Sync + 'static {
    /// The stream of an encrypted connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Opens a connection. Cancel-safe: a half-open connection is closed.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    fn connect(
        &self,
    ) -> impl Future<Output = Result<(Client, Connection<Socket, Self::Stream>), tokio_postgres::Error>> + Send;
}

/// Address, and encryption; `NoTls` for none.
impl<T> Connect for (Config, T)
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    type Stream = T::Stream;

    async fn connect(&self) -> Result<(Client, Connection<Socket, T::Stream>), tokio_postgres::Error> {
        let (config, tls) = self;
        config.connect(tls.clone()).await
    }
}
