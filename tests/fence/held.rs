//! A way to the server on which one message is held up, as a network may do it: the program that has sent it gives the
//! connection up, and it arrives later.

use crate::server::World;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// What a proxy sends to end the process of a connection that it has given up: it never arrives while a message is held.
const END_PROCESS: &[u8] = b"pg_terminate_backend(s.pid) FROM pg_catalog.";

pub struct Held {
    directory: PathBuf,
    accepting: AbortHandle,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The message that has this in it is to be held.
    wanted: Mutex<Option<&'static [u8]>>,
    is_holding: Notify,
    let_go: Notify,
    /// What the server has answered to it.
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

    /// Where control connections find it.
    pub fn directory(&self) -> &PathBuf {
        &self.directory
    }

    /// The next message with this text is held.
    pub fn hold(&self, text: &'static str) {
        *self.shared.wanted.lock().unwrap() = Some(text.as_bytes());
    }

    /// Returns when it is.
    pub async fn is_holding(&self) {
        self.shared.is_holding.notified().await;
    }

    /// Lets it arrive, and returns when the server has answered: with this command tag, first of all.
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

/// Passes bytes on both ways.
async fn pass(client: UnixStream, server: UnixStream, shared: Arc<Shared>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut request, mut answer) = (vec![0; 1 << 20], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = from_server.read(&mut answer) => match read {
                Ok(0) | Err(_) => return,
                // Where nobody reads, the program has given the connection up, which its own half tells.
                Ok(read) => drop(to_client.write_all(&answer[..read]).await),
            },
            read = from_client.read(&mut request) => {
                let bytes = &request[..read.unwrap_or(0)];
                if bytes.is_empty() || contains(bytes, END_PROCESS) {
                    return;
                }
                let is_wanted = shared.wanted.lock().unwrap().take_if(|text| contains(bytes, text)).is_some();
                if is_wanted {
                    let mut held = bytes.to_vec();
                    shared.is_holding.notify_one();
                    // Up to the end of the connection, which the program gives up.
                    let _ = from_client.read_to_end(&mut held).await;
                    shared.let_go.notified().await;
                    to_server.write_all(&held).await.unwrap();
                    to_server.shutdown().await.unwrap();
                    let mut answered = Vec::new();
                    let _ = from_server.read_to_end(&mut answered).await;
                    *shared.answer.lock().unwrap() = answered;
                    return shared.is_answered.notify_one();
                }
                if to_server.write_all(bytes).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
