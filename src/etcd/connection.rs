//! A connection to each member of etcd, and asking them in turn.
//!
//! Owns every limit on waiting. Must never wait for one member while another could answer: the
//! client's own balancing goes on sending to a member that has fallen silent.

use super::settings::EtcdSettings;
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use std::fmt::Debug;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::OnceCell;
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

/// Why etcd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A TLS file cannot be read.
    #[error("{}: cannot read the file: {}", .0.display(), .1)]
    File(PathBuf, std::io::Error),
    /// The settings cannot be used.
    #[error("the settings for etcd cannot be used: {0}")]
    Settings(Error),
    /// No member answered in time. Whether the request took effect is unknown.
    #[error("etcd did not answer within {limit:?}: {reason}")]
    Unreachable {
        /// How long was waited.
        limit: Duration,
        /// The last failure, if any member has failed rather than been silent.
        reason: String,
    },
    /// etcd answered, and refused.
    #[error("etcd refused: {0}")]
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
    client: OnceCell<Client>,
}

impl Debug for Member {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.url)
    }
}

impl Member {
    async fn client(&self) -> Result<Client, Error> {
        let connect = || Client::connect([&self.url], Some(self.options.clone()));
        self.client.get_or_try_init(connect).await.cloned()
    }
}

impl Etcd {
    /// Reads the TLS files; connects to nothing yet.
    pub fn new(settings: &EtcdSettings) -> Result<Arc<Self>, EtcdError> {
        settings.check().map_err(|message| EtcdError::Settings(Error::InvalidArgs(message)))?;
        let options = options(settings)?;
        let member =
            |url: &String| Arc::new(Member { url: url.clone(), options: options.clone(), client: OnceCell::new() });
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
                    let answer = async { request(member.client().await?).await };
                    (index, answer.await)
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
                Ok((_, Err(error))) if is_refusal(&error) => return Err(EtcdError::Refused(error)),
                Ok((index, Err(error))) => {
                    asked[index] = false;
                    reason = format!("{}: {}", self.members[index].url, text(&error));
                }
                Err(error) => reason = error.to_string(),
            }
        }
        Err(EtcdError::Unreachable { limit: patience.limit, reason })
    }
}

fn options(settings: &EtcdSettings) -> Result<ConnectOptions, EtcdError> {
    let mut options = ConnectOptions::new()
        .with_keep_alive(PING, PONG)
        .with_connect_timeout(CONNECT)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((user, password)) = &settings.credentials {
        options = options.with_user(user, password);
    }
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

/// Another member would say the same. (gRPC status codes: 1 cancelled, 2 unknown, 4 deadline exceeded, 8 resource
/// exhausted, 10 aborted, 13 internal, 14 unavailable say nothing about the request; 12 unimplemented says that there is
/// no etcd.)
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => !matches!(status.code() as i32, 1 | 2 | 4 | 8 | 10 | 12 | 13 | 14),
        Error::LeaseKeepAliveError(_) | Error::InvalidArgs(_) | Error::InvalidUri(_) => true,
        _ => false,
    }
}

/// What a status says, without the metadata that it prints.
fn text(error: &Error) -> String {
    let Error::GRpcStatus(status) = error else { return error.to_string() };
    let source = std::error::Error::source(status).map(|source| format!(": {source}")).unwrap_or_default();
    format!("{}{source}", status.message())
}
