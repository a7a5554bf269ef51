//! A server that breaks the protocol toward one role, and forwards all other clients to a real server.
//!
//! Sessions of the role [`VICTIM`] run the test's script.

use super::guardian::Port;
use super::message::{ssl_request, tagged};
use super::wait::{DEADLINE, wait_until};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

pub const VICTIM: &str = "victim";

/// The server's behavior toward a victim. It receives the connection after the startup packet.
type Script = dyn Fn(&mut Victim) -> io::Result<()> + Send + Sync;

/// The connection of a victim.
pub struct Victim<'a> {
    stream: TcpStream,
    victims: &'a Victims,
}

pub struct Malicious {
    port: Port,
    victims: Arc<Victims>,
}

#[derive(Default)]
pub struct Victims {
    /// Number of connected victims.
    open: AtomicUsize,
    /// Number of victims so far.
    served: AtomicUsize,
    /// Bytes sent by all floods.
    sent: AtomicU64,
}

impl Malicious {
    /// Starts in front of the server that listens on this port.
    pub fn before(server: u16, script: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let port = Port::claim();
        let listener = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
        let victims = Arc::new(Victims::default());
        let (script, counter): (Arc<Script>, _) = (Arc::new(script), victims.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, script, victims) = (client.unwrap(), script.clone(), counter.clone());
                thread::spawn(move || serve(client, server, &*script, &victims));
            }
        });
        Self { port, victims }
    }

    pub fn url(&self) -> String {
        format!("postgres://127.0.0.1:{}", self.port.number())
    }

    pub fn open(&self) -> usize {
        self.victims.open.load(Ordering::SeqCst)
    }

    pub fn served(&self) -> usize {
        self.victims.served.load(Ordering::SeqCst)
    }

    /// Returns when this many victims have connected and no flood has sent anything for a while, or when floods have
    /// sent more than any client should accept.
    pub fn wait_until_stuck(&self, victims: usize) {
        const LOOKS: usize = 20;
        const ENOUGH: u64 = 64 << 20;
        let (start, mut last, mut still) = (self.sent(), u64::MAX, 0);
        wait_until("the flood is stuck", DEADLINE, || {
            let sent = self.sent();
            still = if sent == last { still + 1 } else { 0 };
            last = sent;
            self.served() >= victims && still >= LOOKS || sent > start + ENOUGH
        });
    }

    /// Bytes sent by all floods.
    pub fn sent(&self) -> u64 {
        self.victims.sent.load(Ordering::SeqCst)
    }
}

fn serve(mut client: TcpStream, server: u16, script: &Script, victims: &Victims) {
    let Ok(mut packet) = read_startup(&mut client) else { return };
    if packet == ssl_request() {
        // No TLS.
        let _ = client.write_all(b"N");
        packet = match read_startup(&mut client) {
            Ok(packet) => packet,
            Err(_) => return,
        };
    }
    if packet.windows(VICTIM.len()).any(|window| window == VICTIM.as_bytes()) {
        victims.open.fetch_add(1, Ordering::SeqCst);
        victims.served.fetch_add(1, Ordering::SeqCst);
        // A disconnect of the other side is not a failure of the script.
        let _ = script(&mut Victim { stream: client, victims });
        victims.open.fetch_sub(1, Ordering::SeqCst);
        return;
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)) else { return };
    let _ = server.write_all(&packet);
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Both);
}

fn read_startup(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    client.read_exact(&mut length)?;
    let mut packet = vec![0; u32::from_be_bytes(length) as usize];
    packet[..4].copy_from_slice(&length);
    client.read_exact(&mut packet[4..])?;
    Ok(packet)
}

impl Victim<'_> {
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Returns the tag of the next message, and discards its body.
    pub fn next_message(&mut self) -> io::Result<u8> {
        let mut header = [0; 5];
        self.stream.read_exact(&mut header)?;
        let length = u64::from(u32::from_be_bytes([header[1], header[2], header[3], header[4]]));
        io::copy(&mut (&mut self.stream).take(length - 4), &mut io::sink())?;
        Ok(header[0])
    }

    /// Waits until the other side closes.
    pub fn hold(&mut self) -> io::Result<()> {
        io::copy(&mut self.stream, &mut io::sink()).map(drop)
    }

    /// Sends the bytes repeatedly until the other side closes.
    pub fn flood(&mut self, bytes: &[u8]) -> io::Result<()> {
        loop {
            self.send(bytes)?;
            self.victims.sent.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        }
    }
}

/// AuthenticationOk, the initial parameters of a session, and ReadyForQuery.
pub fn greeting() -> Vec<u8> {
    let mut greeting = tagged(b'R', &[0; 4]);
    for setting in ["server_version\x0015.0\0", "client_encoding\0UTF8\0", "standard_conforming_strings\0on\0"] {
        greeting.extend(tagged(b'S', setting.as_bytes()));
    }
    greeting.extend(tagged(b'K', &[0, 0, 0, 42, 1, 2, 3, 4]));
    greeting.extend(ready());
    greeting
}

pub fn ready() -> Vec<u8> {
    tagged(b'Z', b"I")
}

/// The reply to the identity query.
pub fn identity() -> Vec<u8> {
    let mut row = vec![0, 5];
    for column in ["42", "1700000000", "7", "1700000000"] {
        row.extend(u32::try_from(column.len()).unwrap().to_be_bytes());
        row.extend(column.as_bytes());
    }
    row.extend([0xff; 4]);
    [tagged(b'D', &row), tagged(b'C', b"SELECT 1\0"), ready()].concat()
}
