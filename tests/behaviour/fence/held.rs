//! A connection that delays one message, as a network may. The sender closes the connection, and the message arrives
//! later.

use crate::fence::server::{World, control_config};
use fencegate_postgres::tls::ControlConfig;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Part of the proxy's request to terminate the process of an abandoned connection. It never arrives while a message is
/// held.
const END_PROCESS: &[u8] = b"pg_terminate_backend(s.pid) FROM pg_catalog.";

pub struct Held {
    directory: PathBuf,
    accepting: AbortHandle,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Text of the message to hold.
    wanted: Mutex<Option<&'static [u8]>>,
    is_holding: Notify,
    let_go: Notify,
    /// The server's reply to the held message.
    answer: Mutex<Vec<u8>>,
    is_answered: Notify,
}

impl Held {
    pub fn new(world: &World) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("fencegate-held-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let (listener, shared) =
            (UnixListener::bind(directory.join(".s.PGSQL.5432")).unwrap(), Arc::<Shared>::default());
        let (server, passing) = (world.server.socket(), shared.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.unwrap();
                tokio::spawn(pass(client, server, passing.clone()));
            }
        });
        Self { directory, accepting: accepting.abort_handle(), shared }
    }

    /// Settings for control connections through this connection.
    pub fn control_config(&self, world: &World) -> ControlConfig {
        let mut config = tokio_postgres::Config::new();
        config.host_path(&self.directory).dbname(&world.database).user(world.control());
        control_config(config)
    }

    /// Holds the next message with this text.
    pub fn hold(&self, text: &'static str) {
        *self.shared.wanted.lock().unwrap() = Some(text.as_bytes());
    }

    /// Returns when the message is held.
    pub async fn is_holding(&self) {
        self.shared.is_holding.notified().await;
    }

    /// Delivers the message, and returns when the server has replied. The reply must contain this command tag.
    pub async fn arrives(&self, tag: &str) {
        self.shared.let_go.notify_one();
        self.shared.is_answered.notified().await;
        let answer = self.shared.answer.lock().unwrap();
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains(tag), "{text}");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.accepting.abort();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Forwards bytes in both directions, and to the server message by message.
async fn pass(client: UnixStream, server: UnixStream, shared: Arc<Shared>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut chunk, mut sent, mut answer) = (vec![0; 1 << 16], Vec::new(), vec![0; 1 << 16]);
    let mut held: Option<Vec<u8>> = None;
    loop {
        tokio::select! {
            // Replies to earlier messages arrive even while a message is held.
            read = from_server.read(&mut answer) => match read {
                Ok(0) | Err(_) => return,
                // A write fails after the program has closed the connection, which the other half detects.
                Ok(read) => drop(to_client.write_all(&answer[..read]).await),
            },
            read = from_client.read(&mut chunk) => {
                let bytes = &chunk[..read.unwrap_or(0)];
                match &mut held {
                    // Wait until the program has closed the connection.
                    Some(held) if bytes.is_empty() => break arrive(held, to_server, from_server, &shared).await,
                    Some(held) => held.extend_from_slice(bytes),
                    None if bytes.is_empty() => return,
                    None => sent.extend_from_slice(bytes),
                }
                while held.is_none() && let Some(message) = take_message(&mut sent) {
                    if contains(&message, END_PROCESS) {
                        return;
                    }
                    if shared.wanted.lock().unwrap().take_if(|text| contains(&message, text)).is_some() {
                        held = Some([message, std::mem::take(&mut sent)].concat());
                        shared.is_holding.notify_one();
                    } else if to_server.write_all(&message).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Sends the held bytes when requested, and stores the server's reply.
async fn arrive(held: &[u8], mut to_server: OwnedWriteHalf, mut from_server: OwnedReadHalf, shared: &Shared) {
    shared.let_go.notified().await;
    to_server.write_all(held).await.unwrap();
    to_server.shutdown().await.unwrap();
    let mut answered = Vec::new();
    let _ = from_server.read_to_end(&mut answered).await;
    *shared.answer.lock().unwrap() = answered;
    shared.is_answered.notify_one();
}

/// The first message, if it is complete. Messages that open a connection have no tag, and start with their length and
/// therefore with 0.
fn take_message(sent: &mut Vec<u8>) -> Option<Vec<u8>> {
    let tag = usize::from(*sent.first()? != 0);
    let length = sent.get(tag..tag + 4)?;
    let end = tag + u32::from_be_bytes(length.try_into().unwrap()) as usize;
    (sent.len() >= end).then(|| sent.drain(..end).collect())
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
