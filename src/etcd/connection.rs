//! A connection to each member of etcd, and asking them in turn.
//!
//! Owns every limit on waiting. Must never wait for one member while another could answer: the
//! client's own balancing goes on sending to a member that has fallen silent.

use super::settings::{EtcdPassword, EtcdSettings, EtcdSettingsError};
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use std::fmt::Debug;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// HTTP/2 pings: a member that has been silent for this long, and then does not answer one in time, is given up. Without
/// them a watch of a paused member never ends. Not more often than etcd's --grpc-keepalive-min-time (5 s) allows: at the
/// third ping that comes too soon it ends the connection, and all watches with it.
const PING: Duration = Duration::from_secs(6);
const PONG: Duration = Duration::from_secs(1);
/// Connecting to one member takes at most this long.
const CONNECT: Duration = Duration::from_secs(2);
/// Before a member that has just failed is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// etcd's errors that have no code of their own, or not in all versions (3.4 has code 2, unknown, for the first).
const OLD_REVISION: &str = "etcdserver: revision of auth store is old";
const INVALID_TOKEN: &str = "etcdserver: invalid auth token";
/// The request had no token: users were enabled after the login.
const NO_USER: &str = "etcdserver: user name is empty";
const NO_USERS_ENABLED: &str = "etcdserver: authentication is not enabled";

/// Why etcd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A TLS file cannot be read.
    #[error("{}: cannot read the file: {}", .0.display(), .1)]
    File(PathBuf, std::io::Error),
    /// The settings cannot be used.
    #[error("the settings for etcd cannot be used: {0}")]
    Settings(#[from] EtcdSettingsError),
    /// No member answered in time. Whether the request took effect is unknown.
    #[error("etcd did not answer within {limit:?}: {reason}")]
    Unreachable {
        /// How long was waited.
        limit: Duration,
        /// The last failure, if any member has failed rather than been silent.
        reason: String,
    },
    /// etcd answered, and refused.
    #[error("etcd refused: {}", text(.0))]
    Refused(Error),
}

impl EtcdError {
    /// What etcd says where the user may not do what was asked. (gRPC status code 7: permission denied.)
    pub fn denial(&self) -> Option<&str> {
        match self {
            EtcdError::Refused(Error::GRpcStatus(status)) if status.code() as i32 == 7 => Some(status.message()),
            _ => None,
        }
    }
}

/// How long to wait for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// In all.
    pub limit: Duration,
    /// For one member, before another is asked as well. The first one's answer still counts.
    pub member: Duration,
}

impl Patience {
    /// For what nothing but a person or a session waits for: 5 s in all.
    pub const USUAL: Patience = Patience { limit: Duration::from_secs(5), member: Duration::from_secs(1) };
}

/// A cluster of etcd.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Arc<Member>>,
    /// The member that answered last is asked first.
    preferred: AtomicUsize,
}

struct Member {
    url: String,
    options: ConnectOptions,
    credentials: Option<(String, EtcdPassword)>,
    client: OnceCell<Client>,
    /// How often we have logged in. Held meanwhile, so that all requests whose token is refused log in once.
    logins: Mutex<u64>,
}

impl Debug for Member {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.url)
    }
}

impl Member {
    /// Sends the request. Logs in anew, and sends it once more, where etcd takes our login for outdated.
    async fn ask<T, F>(&self, request: impl Fn(Client) -> F) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connect = || Client::connect([&self.url], Some(self.options.clone()));
        let client = self.client.get_or_try_init(connect).await.map_err(EtcdError::Refused)?;
        let mut login = *self.logins.lock().await;
        if login == 0 {
            login = self.log_in(client, login).await?;
        }
        match request(client.clone()).await {
            Err(error) if is_outdated(&error) => {
                self.log_in(client, login).await?;
                request(client.clone()).await
            }
            answer => answer,
        }
        .map_err(EtcdError::Refused)
    }

    /// Logs in, unless that was done after the login `outdated`. Returns the number of the login.
    async fn log_in(&self, client: &Client, outdated: u64) -> Result<u64, EtcdError> {
        let mut logins = self.logins.lock().await;
        if *logins == outdated {
            if let Some((user, password)) = &self.credentials {
                let password = password.read().map_err(|(path, error)| EtcdError::File(path, error))?;
                // The token is that of all clones.
                match client.clone().update_user(Some((user.clone(), password))).await {
                    Err(error) if !has_message(&error, NO_USERS_ENABLED) => return Err(EtcdError::Refused(error)),
                    _ => {}
                }
            }
            *logins += 1;
        }
        Ok(*logins)
    }
}

impl Etcd {
    /// Reads the TLS files; connects to nothing yet.
    pub fn new(settings: &EtcdSettings) -> Result<Arc<Self>, EtcdError> {
        settings.check()?;
        let options = options(settings)?;
        let member = |url: &String| {
            Arc::new(Member {
                url: url.clone(),
                options: options.clone(),
                credentials: settings.credentials.clone(),
                client: OnceCell::new(),
                logins: Mutex::default(),
            })
        };
        Ok(Arc::new(Etcd { members: settings.members.iter().map(member).collect(), preferred: AtomicUsize::new(0) }))
    }

    /// Asks the members in turn until one answers: one that fails or keeps silent does not keep the others from
    /// being asked. The request may reach several members, and must be one that can be repeated.
    ///
    /// Cancel-safe in that nothing of ours is lost; the request may take effect.
    pub async fn ask<T, C, F>(&self, patience: Patience, request: C) -> Result<T, EtcdError>
    where
        T: Send + 'static,
        C: Fn(Client) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let count = self.members.len();
        let deadline = Instant::now() + patience.limit;
        let mut next = self.preferred.load(Ordering::Relaxed);
        let mut asked = vec![false; count];
        let mut attempts = JoinSet::new();
        let mut started = 0;
        let mut reason = "no answer".to_owned();
        loop {
            if let Some(index) = (next..next + count).map(|index| index % count).find(|index| !asked[*index]) {
                let (member, request) = (self.members[index].clone(), request.clone());
                let pause = if started < count { Duration::ZERO } else { PAUSE };
                attempts.spawn(async move {
                    sleep(pause).await;
                    (index, member.ask(request).await)
                });
                asked[index] = true;
                started += 1;
                next = index + 1;
            }
            let answer = tokio::select! {
                biased;
                Some(answer) = attempts.join_next() => answer,
                () = sleep_until(deadline) => break,
                () = sleep(patience.member) => continue,
            };
            match answer {
                Ok((index, Ok(answer))) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok((_, Err(error))) if is_final(&error) => return Err(error),
                Ok((index, Err(error))) => {
                    asked[index] = false;
                    let why = match &error {
                        EtcdError::Refused(error) => text(error),
                        error => error.to_string(),
                    };
                    reason = format!("{}: {why}", self.members[index].url);
                }
                Err(error) => reason = error.to_string(),
            }
        }
        Err(EtcdError::Unreachable { limit: patience.limit, reason })
    }
}

fn options(settings: &EtcdSettings) -> Result<ConnectOptions, EtcdError> {
    let mut options =
        ConnectOptions::new().with_keep_alive(PING, PONG).with_connect_timeout(CONNECT).with_require_leader(true);
    if settings.members.iter().any(|url| url.starts_with("https://")) {
        let mut tls = TlsOptions::new();
        tls = match &settings.ca {
            Some(file) => tls.ca_certificate(Certificate::from_pem(read(file)?)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &settings.identity {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        options = options.with_tls(tls);
    }
    Ok(options)
}

fn read(file: &Path) -> Result<Vec<u8>, EtcdError> {
    fs::read(file).map_err(|error| EtcdError::File(file.to_owned(), error))
}

/// Another member would say the same, and this one if it were asked again. (gRPC status codes: 1 cancelled, 2 unknown,
/// 4 deadline exceeded, 8 resource exhausted, 10 aborted, 13 internal, 14 unavailable say nothing about the request;
/// 12 unimplemented says that there is no etcd.)
fn is_final(error: &EtcdError) -> bool {
    match error {
        // Users or roles have changed again since the login.
        EtcdError::Refused(error) if has_message(error, OLD_REVISION) => false,
        EtcdError::Refused(Error::GRpcStatus(status)) => {
            !matches!(status.code() as i32, 1 | 2 | 4 | 8 | 10 | 12 | 13 | 14)
        }
        EtcdError::Refused(Error::LeaseKeepAliveError(_) | Error::InvalidArgs(_) | Error::InvalidUri(_)) => true,
        EtcdError::Refused(_) => false,
        EtcdError::File(..) | EtcdError::Settings(_) | EtcdError::Unreachable { .. } => true,
    }
}

/// Our login is of before a change of users or roles, or has expired. (Status code 16: unauthenticated.) With a certificate
/// in place of a password, the request itself may have come before the change.
fn is_outdated(error: &Error) -> bool {
    let is_unauthenticated = matches!(error, Error::GRpcStatus(status) if status.code() as i32 == 16);
    is_unauthenticated || [OLD_REVISION, INVALID_TOKEN, NO_USER].iter().any(|message| has_message(error, message))
}

fn has_message(error: &Error, message: &str) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message() == message)
}

/// The message of a status and its cause, without the code and the metadata that `Display` adds.
fn text(error: &Error) -> String {
    let Error::GRpcStatus(status) = error else { return error.to_string() };
    let source = std::error::Error::source(status).map(|source| format!(": {source}")).unwrap_or_default();
    format!("{}{source}", status.message())
}
