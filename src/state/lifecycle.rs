//! Phases of the proxy's life, their signals to sessions, and the connections to earlier proxies, which still serve
//! sessions after this proxy has taken over their sockets.
//!
//! These connections carry cancel requests: clients send them to the address on which this proxy listens now. Must
//! never wait for a predecessor.

use fencegate_wire::error::ErrorText;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The SQLSTATE of every refusal that means "try elsewhere, or later". pg_isready counts the server as not accepting
/// connections, and libpq tries the next host of its list, for this one only.
pub const CANNOT_CONNECT_NOW: &str = "57P03";

/// Time for an ended session to send its last messages to both sides.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// A phase of the proxy's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Normal operation.
    #[default]
    Running,
    /// Sessions end as soon as they are idle outside of a transaction.
    Draining,
    /// Sessions end.
    Ending,
}

/// The orders to running sessions.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The phase.
    pub phase: Phase,
    /// Maximum idle time outside a transaction.
    pub idle_timeout: Option<Duration>,
    /// The databases whose sessions are held as soon as they are idle outside of a transaction.
    pub paused: Arc<BTreeSet<String>>,
}

/// The error for a client that connects during shutdown. This and the following errors use the server's words.
pub fn too_late() -> ErrorText {
    ErrorText::new(CANNOT_CONNECT_NOW, "the database system is shutting down")
        .hint("The proxy is shutting down: connect again.")
}

/// The error for a client whose session ends with the proxy.
pub fn session_ends() -> ErrorText {
    ended_by_command().hint("The proxy is shutting down: connect again.")
}

/// The error for a client whose session an operator ends.
pub fn session_killed() -> ErrorText {
    ended_by_command().hint("An operator ended this session with KILL in the proxy's console.")
}

/// The error for a client whose server is not the primary anymore.
pub fn session_replaced() -> ErrorText {
    ended_by_command().hint("Another server is the primary now: connect again.")
}

fn ended_by_command() -> ErrorText {
    ErrorText::new("57P01", "terminating connection due to administrator command")
}

/// The error for a client whose login has waited for too long.
pub fn paused(database: &str) -> ErrorText {
    ErrorText::new(CANNOT_CONNECT_NOW, format!("database \"{database}\" is paused"))
        .hint("An operator paused it in the proxy's console. RESUME ends the pause.")
}

/// Maximum number of predecessors that receive cancel requests.
pub const MOST_PREDECESSORS: usize = 64;

/// Connections to predecessors, oldest first.
#[derive(Debug, Default)]
pub struct Predecessors(Mutex<Vec<UnixStream>>);

impl Predecessors {
    /// Adds a predecessor. The oldest one receives no more requests if there are too many.
    ///
    /// # Errors
    /// The system's error.
    pub fn add(&self, connection: OwnedFd) -> io::Result<()> {
        let connection = UnixStream::from(connection);
        connection.set_nonblocking(true)?;
        let mut all = self.0.lock();
        if all.len() >= MOST_PREDECESSORS {
            all.remove(0);
        }
        all.push(connection);
        Ok(())
    }

    /// Passes on a cancel request, because one of them may have its session. Forgets those that have ended. Returns
    /// false if there is none.
    pub fn forward(&self, packet: &[u8]) -> bool {
        let mut all = self.0.lock();
        all.retain_mut(|it| match it.write(packet) {
            Ok(written) => written == packet.len(),
            // The predecessor reads more slowly than requests arrive. Clients repeat requests that have no effect.
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
        !all.is_empty()
    }

    /// Duplicates of the connections, for the successor.
    ///
    /// # Errors
    /// The system's error.
    pub fn duplicates(&self) -> io::Result<Vec<OwnedFd>> {
        self.0.lock().iter().map(|it| it.try_clone().map(OwnedFd::from)).collect()
    }

    /// Leaves the predecessors to the successor.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn requests_reach_living_predecessors_without_waiting() {
        let predecessors = Predecessors::default();
        assert!(!predecessors.forward(b"request"));
        let [(gone, gone_reads), (living, mut reads)] = [const { UnixStream::pair }; 2].map(|pair| pair().unwrap());
        predecessors.add(gone.into()).unwrap();
        predecessors.add(living.into()).unwrap();
        drop(gone_reads);
        assert!(predecessors.forward(b"request"));
        let mut request = [0; 7];
        reads.read_exact(&mut request).unwrap();
        assert_eq!((&request, predecessors.0.lock().len()), (b"request", 1));
        // Far more than the queue holds.
        assert!((0..100_000).all(|_| predecessors.forward(b"request")));
        drop(reads);
        assert!(!predecessors.forward(b"request"));
    }
}
