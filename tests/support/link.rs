//! A TCP connection that can be cut: between a program under test and a server that goes on.

use super::guardian::Port;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes bytes on both ways, while it is whole.
pub struct Link {
    port: Port,
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Link {
    pub fn to(server: u16) -> Self {
        let port = Port::claim();
        let listener = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let shared = open.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, mut open) = (client.unwrap(), shared.lock().unwrap());
                // Cut: it is closed as soon as it is accepted.
                let Some(open) = open.as_mut() else { continue };
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                open.extend([client, server]);
            }
        });
        Self { port, open }
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Ends what is connected, and lets nothing through.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap().take().into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        *self.open.lock().unwrap() = Some(Vec::new());
    }
}
