//! A pooler in transaction mode that shows clients the process id of a real server process, as pgagroal does.
//! (PgBouncer invents one.) Supports neither Flush nor COPY, and only servers that trust all users.

use super::guardian::Port;
use super::message::ssl_request;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub struct TransactionPooler {
    port: Port,
}

/// Idle connections to the server, by startup packet. The connection that has been idle longest is used next.
#[derive(Default)]
struct Pool(Mutex<HashMap<Vec<u8>, VecDeque<ServerConnection>>>);

struct ServerConnection {
    stream: TcpStream,
    /// The server's messages at login.
    greeting: Vec<u8>,
}

impl TransactionPooler {
    /// Starts in front of the server that listens on this port.
    pub fn before(server: u16) -> Self {
        let port = Port::claim();
        let listener = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
        let pool = Arc::new(Pool::default());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, pool) = (client.unwrap(), pool.clone());
                // An error means that one side has disconnected.
                thread::spawn(move || serve(client, server, &pool));
            }
        });
        Self { port }
    }

    pub fn url(&self) -> String {
        format!("postgres://127.0.0.1:{}", self.port.number())
    }
}

impl Pool {
    fn take(&self, server: u16, packet: &[u8]) -> io::Result<ServerConnection> {
        let idle = self.0.lock().unwrap().get_mut(packet).and_then(VecDeque::pop_front);
        idle.map_or_else(|| log_in(server, packet), Ok)
    }

    fn give_back(&self, packet: &[u8], server: ServerConnection) {
        self.0.lock().unwrap().entry(packet.to_owned()).or_default().push_back(server);
    }
}

fn log_in(server: u16, packet: &[u8]) -> io::Result<ServerConnection> {
    let mut stream = TcpStream::connect(("127.0.0.1", server))?;
    stream.write_all(packet)?;
    let mut greeting = Vec::new();
    loop {
        let (tag, message) = read_message(&mut stream)?;
        greeting.extend(message);
        if tag == b'Z' {
            return Ok(ServerConnection { stream, greeting });
        }
    }
}

fn serve(mut client: TcpStream, server: u16, pool: &Pool) -> io::Result<()> {
    let mut packet = read_body(&mut client, Vec::new())?;
    if packet == ssl_request() {
        client.write_all(b"N")?;
        packet = read_body(&mut client, Vec::new())?;
    }
    let first = pool.take(server, &packet)?;
    client.write_all(&first.greeting)?;
    pool.give_back(&packet, first);
    let mut linked: Option<ServerConnection> = None;
    loop {
        let (tag, message) = read_message(&mut client)?;
        if tag == b'X' {
            return Ok(());
        }
        let mut server = linked.take().map_or_else(|| pool.take(server, &packet), Ok)?;
        server.stream.write_all(&message)?;
        if !matches!(tag, b'Q' | b'S' | b'F') {
            // The reply arrives with the reply to Sync.
            linked = Some(server);
            continue;
        }
        let status = loop {
            let (tag, message) = read_message(&mut server.stream)?;
            client.write_all(&message)?;
            if tag == b'Z' {
                break message.last().copied();
            }
        };
        match status {
            Some(b'I') => pool.give_back(&packet, server),
            _ => linked = Some(server),
        }
    }
}

fn read_message(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut tag = [0];
    stream.read_exact(&mut tag)?;
    Ok((tag[0], read_body(stream, tag.to_vec())?))
}

/// Appends a length and a body of this length.
fn read_body(stream: &mut TcpStream, mut message: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    message.extend(length);
    stream.take(u64::from(u32::from_be_bytes(length)) - 4).read_to_end(&mut message)?;
    Ok(message)
}
