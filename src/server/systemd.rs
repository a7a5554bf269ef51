//! Notifies systemd of the proxy's state if systemd requests it (`sd_notify(3)`).

use nix::time::{ClockId, clock_gettime};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Listening.
pub fn ready() {
    tell("READY=1\nSTATUS=Listening");
}

/// A reload has begun.
pub fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000);
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
}

/// A reload has ended. Leaves the status as it is: a predecessor reloads, too.
pub fn reloaded() {
    tell("READY=1");
}

/// The proxy is stopping.
pub fn stopping() {
    tell("STOPPING=1\nSTATUS=Waiting for open transactions");
}

/// A successor has the sockets.
pub fn taken_over() {
    tell("STATUS=Serving the remaining sessions. A successor has taken over");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(socket.as_bytes(), state) {
        tracing::warn!(%error, ?socket, "systemd_not_told");
    }
}

fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    let sender = UnixDatagram::unbound()?;
    // A manager that does not read must not block the proxy.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_supports_abstract_sockets_and_does_not_block() {
        let name = format!("fencegate-systemd-{}", std::process::id());
        let systemd = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        // Fills the manager's queue.
        while send(format!("@{name}").as_bytes(), "READY=1").is_ok() {}
        let mut message = [0; 16];
        let length = systemd.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
    }
}
