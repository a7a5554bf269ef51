//! Connections to the members of etcd, and requests to them in turn.
//!
//! Owns all time limits. Must never wait for one member while another could answer: the client's own balancing keeps
//! sending to a silent member.

use super::{EtcdPassword, EtcdSettings, EtcdSettingsError};
use crate::Patience;
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use std::fmt::Debug;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// HTTP/2 keepalive: the client pings a member that has been silent for this long, and closes the connection if the
/// member does not answer in time. Otherwise a watch on a paused member would never end. The interval must not be below
/// etcd's --grpc-keepalive-min-time (5 s): at the third early ping, etcd closes the connection and all its watches.
const PING: Duration = Duration::from_secs(6);
const PONG: Duration = Duration::from_secs(1);
/// Time limit for connecting to one member.
const CONNECT: Duration = Duration::from_secs(2);
/// Pause before retrying a failed member.
const PAUSE: Duration = Duration::from_millis(100);

/// Message of an etcd error without its own code in some versions (3.4 returns code 2, unknown).
const OLD_REVISION: &str = "etcdserver: revision of auth store is old";
const INVALID_TOKEN: &str = "etcdserver: invalid auth token";
/// Message for a request without a token: authentication was enabled after the login.
const NO_USER: &str = "etcdserver: user name is empty";
const NO_USERS_ENABLED: &str = "etcdserver: authentication is not enabled";

/// Why an etcd request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// A TLS file cannot be read.
    #[error("{}: cannot read the file: {}", .0.display(), .1)]
    File(PathBuf, std::io::Error),
    /// The settings cannot be used.
    #[error("invalid etcd settings: {0}")]
    Settings(#[from] EtcdSettingsError),
    /// No member answered in time. Whether the request took effect is unknown.
    #[error("etcd did not answer within {limit:?}: {reason}")]
    Unreachable {
        /// The time limit.
        limit: Duration,
        /// The last failure, if any member failed instead of staying silent.
        reason: String,
    },
    /// etcd refused the request.
    #[error("etcd refused: {}", text(.0))]
    Refused(Error),
}

impl EtcdError {
    /// True if the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, EtcdError::Unreachable { .. }) || !is_final(self)
    }

    /// etcd's message if the user lacks a permission. (gRPC status code 7: permission denied.)
    pub fn denial(&self) -> Option<&str> {
        match self {
            EtcdError::Refused(Error::GRpcStatus(status)) if status.code() as i32 == 7 => Some(status.message()),
            _ => None,
        }
    }
}

/// An etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    members: watch::Sender<EtcdMembers>,
    /// The member that answered last is queried first.
    preferred: AtomicUsize,
}

/// The members of a cluster, with TLS files that have been read. Not connected yet.
#[derive(Clone, Debug)]
pub struct EtcdMembers {
    list: Arc<[Arc<Member>]>,
    source: Arc<Source>,
}

/// Settings and the files that they name.
#[derive(PartialEq, Eq)]
struct Source {
    settings: EtcdSettings,
    files: Vec<Vec<u8>>,
}

impl Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Source")
    }
}

struct Member {
    url: String,
    options: ConnectOptions,
    credentials: Option<(String, EtcdPassword)>,
    client: OnceCell<Client>,
    /// Number of logins. Locked during a login, so that requests with the same expired token log in only once.
    logins: Mutex<u64>,
}

impl Debug for Member {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.url)
    }
}

impl Member {
    /// Sends the request. If etcd reports that the login is outdated, logs in and sends the request once more.
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

    /// Logs in unless another request has done so since the login `outdated`. Returns the number of the login.
    async fn log_in(&self, client: &Client, outdated: u64) -> Result<u64, EtcdError> {
        let mut logins = self.logins.lock().await;
        if *logins == outdated {
            if let Some((user, password)) = &self.credentials {
                let password = password.read().map_err(|(path, error)| EtcdError::File(path, error))?;
                // All clones share the token.
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

impl EtcdMembers {
    /// Reads the TLS files. Blocks on the file system.
    ///
    /// # Errors
    /// The settings or a file cannot be used.
    pub fn read(settings: &EtcdSettings) -> Result<Self, EtcdError> {
        settings.check()?;
        let (options, files) = options(settings)?;
        let member = |url: &String| {
            Arc::new(Member {
                url: url.clone(),
                options: options.clone(),
                credentials: settings.credentials.clone(),
                client: OnceCell::new(),
                logins: Mutex::default(),
            })
        };
        let source = Arc::new(Source { settings: settings.clone(), files });
        Ok(EtcdMembers { list: settings.members.iter().map(member).collect(), source })
    }
}

impl Etcd {
    /// Reads the TLS files. Does not connect yet.
    pub fn new(settings: &EtcdSettings) -> Result<Arc<Self>, EtcdError> {
        EtcdMembers::read(settings).map(Etcd::with)
    }

    /// Sends requests to these members. Does not connect yet.
    pub fn with(members: EtcdMembers) -> Arc<Self> {
        Arc::new(Etcd { members: watch::Sender::new(members), preferred: AtomicUsize::new(0) })
    }

    /// Sends requests to these members from now on. Requests and watches under way continue. Keeps the connections if neither
    /// the settings nor the files have changed.
    pub fn replace(&self, members: EtcdMembers) {
        self.members.send_if_modified(|now| {
            let differs = now.source != members.source;
            if differs {
                *now = members;
            }
            differs
        });
    }

    /// Queries the members in turn until one answers. If a member fails or stays silent, the next one is queried.
    /// Several members may receive the request, so it must be repeatable.
    ///
    /// Cancel-safe for this process; the request may take effect.
    pub async fn ask<T, C, F>(&self, patience: Patience, request: C) -> Result<T, EtcdError>
    where
        T: Send + 'static,
        C: Fn(Client) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let members = self.members.borrow().list.clone();
        let count = members.len();
        let deadline = Instant::now() + patience.limit;
        let mut next = self.preferred.load(Ordering::Relaxed);
        let mut asked = vec![false; count];
        let mut attempts = JoinSet::new();
        let mut started = 0;
        let mut reason = "no answer".to_owned();
        loop {
            if let Some(index) = (next..next + count).map(|index| index % count).find(|index| !asked[*index]) {
                let (member, request) = (members[index].clone(), request.clone());
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
                    reason = format!("{}: {why}", members[index].url);
                }
                Err(error) => reason = error.to_string(),
            }
        }
        Err(EtcdError::Unreachable { limit: patience.limit, reason })
    }
}

/// Also returns the files.
fn options(settings: &EtcdSettings) -> Result<(ConnectOptions, Vec<Vec<u8>>), EtcdError> {
    let mut options =
        ConnectOptions::new().with_keep_alive(PING, PONG).with_connect_timeout(CONNECT).with_require_leader(true);
    let mut files = Vec::new();
    let mut read = |file: &Path| {
        let content = fs::read(file).map_err(|error| EtcdError::File(file.to_owned(), error))?;
        files.push(content.clone());
        Ok::<_, EtcdError>(content)
    };
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
    Ok((options, files))
}

/// True if no member, including this one, would answer a retry differently. (gRPC status codes 1 canceled, 2 unknown, 4
/// deadline exceeded, 8 resource exhausted, 10 aborted, 13 internal and 14 unavailable say nothing about the request.
/// 12 unimplemented means that the server is not etcd.)
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

/// True if users or roles have changed since the login, or the login has expired. (Status code 16: unauthenticated.)
/// With a client certificate instead of a password, the request itself may predate the change.
fn is_outdated(error: &Error) -> bool {
    let is_unauthenticated = matches!(error, Error::GRpcStatus(status) if status.code() as i32 == 16);
    is_unauthenticated || [OLD_REVISION, INVALID_TOKEN, NO_USER].iter().any(|message| has_message(error, message))
}

fn has_message(error: &Error, message: &str) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message() == message)
}

/// Message of a status and its cause, without the code and the metadata that `Display` adds.
fn text(error: &Error) -> String {
    let Error::GRpcStatus(status) = error else { return error.to_string() };
    let source = std::error::Error::source(status).map(|source| format!(": {source}")).unwrap_or_default();
    format!("{}{source}", status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_kept_unless_a_setting_has_changed() {
        let members = |password: &str| {
            let credentials = Some(("gate".to_owned(), EtcdPassword::Given(password.to_owned())));
            let members = vec!["http://127.0.0.1:1".to_owned()];
            EtcdSettings { members, credentials, ..EtcdSettings::default() }
        };
        let etcd = Etcd::new(&members("a")).unwrap();
        let list = || etcd.members.borrow().list.clone();
        let first = list();
        for (password, is_kept) in [("a", true), ("b", false)] {
            etcd.replace(EtcdMembers::read(&members(password)).unwrap());
            assert_eq!(Arc::ptr_eq(&first, &list()), is_kept, "{password}");
        }
    }
}
