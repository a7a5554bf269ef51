//! A TCP connection between a program under test and a server, with the faults of a network.

use super::guardian::Port;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// How the link treats bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Delays each piece by this time.
    Slow(Duration),
    /// Sends each byte by itself.
    SingleBytes,
    /// Holds the bytes, and notifies neither end.
    Silent,
    /// Ends connections, and closes new ones.
    Cut,
}

/// Relays bytes in both directions, subject to its fault.
pub struct Link {
    port: Port,
    line: Arc<Line>,
}

struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    server: u16,
    fault: Fault,
    open: Vec<TcpStream>,
}

impl Link {
    pub fn to(server: u16) -> Self {
        let port = Port::claim();
        let listener = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
        let state = State { server, fault: Fault::None, open: Vec::new() };
        let line = Arc::new(Line { state: Mutex::new(state), changed: Condvar::new() });
        let shared = line.clone();
        thread::spawn(move || listener.incoming().for_each(|client| shared.accept(client.unwrap())));
        Self { port, line }
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Closes all connections, and rejects new ones.
    pub fn cut(&self) {
        self.suffer(Fault::Cut);
    }

    pub fn mend(&self) {
        self.suffer(Fault::None);
    }

    pub fn suffer(&self, fault: Fault) {
        let mut state = self.line.state();
        state.fault = fault;
        if fault == Fault::Cut {
            state.end();
        }
        self.line.changed.notify_all();
    }

    /// Leads new connections to another server, and closes existing connections.
    pub fn lead_to(&self, server: u16) {
        let mut state = self.line.state();
        state.server = server;
        state.end();
        self.line.changed.notify_all();
    }
}

impl State {
    fn end(&mut self) {
        self.open.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn accept(self: &Arc<Self>, client: TcpStream) {
        let mut state = self.state();
        // Returning closes the connection.
        if state.fault == Fault::Cut {
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", state.server)) else { return };
        for (from, to) in [(&client, &server), (&server, &client)] {
            let _ = from.set_nodelay(true);
            let (line, from, to) = (self.clone(), from.try_clone().unwrap(), to.try_clone().unwrap());
            thread::spawn(move || {
                line.pass(&from, &to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        state.open.retain(|stream| stream.peer_addr().is_ok());
        state.open.extend([client, server]);
    }

    /// Forwards bytes until the connection ends.
    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut bytes = [0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let state = self.changed.wait_while(self.state(), |state| state.fault == Fault::Silent).unwrap();
            let fault = state.fault;
            drop(state);
            if let Fault::Slow(delay) = fault {
                thread::sleep(delay);
            }
            let most = if fault == Fault::SingleBytes { 1 } else { length };
            if bytes[..length].chunks(most).any(|piece| to.write_all(piece).is_err()) {
                return;
            }
        }
    }
}
