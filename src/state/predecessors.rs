//! Earlier proxies that still serve sessions after this proxy has taken over their sockets.
//!
//! Owns the connections to them. They carry cancel requests: clients send these to the address on which this proxy
//! listens now. Must never wait for a predecessor.

use parking_lot::Mutex;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

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
            // It does not read as fast as requests arrive. Clients repeat those that have no effect.
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
