//! The exchange between a proxy and its successor. Failures harm no client.

use super::{Generation, Site};
use crate::support::fenced::{ok, value};
use crate::support::{Address, DEADLINE, Wire, wait_until};
use nix::unistd::geteuid;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

const REQUEST: &[u8] = b"fencegate take-over 1\n";

fn connect(site: &Site) -> UnixStream {
    let stream = UnixStream::connect(site.path()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends a request and reads the first byte of the answer. The kernel closes the descriptors that are not received.
fn request(site: &Site) -> (UnixStream, u8) {
    let mut stream = connect(site);
    stream.write_all(REQUEST).unwrap();
    let mut answer = [0; 1024];
    let length = stream.read(&mut answer).unwrap();
    assert!(length > 0);
    (stream, answer[0])
}

/// Asserts that the proxy serves clients on both addresses and can still hand over its sockets.
#[track_caller]
fn assert_continues(site: &Site, old: &mut Generation) {
    for address in [Address::Unix(site.socket()), site.address()] {
        assert_eq!(value(&mut Wire::login(&address, "postgres", "postgres"), "SELECT 1").as_deref(), Some("1"));
    }
    assert!(!old.log().contains("sockets_handed_over"), "{}", old.log());
    let mut new = site.upgrade(old, &[]);
    for address in [Address::Unix(site.socket()), site.address()] {
        assert_eq!(value(&mut Wire::login(&address, "postgres", "postgres"), "SELECT 1").as_deref(), Some("1"));
    }
    assert_eq!(old.program.wait(), 0, "{}", old.log());
    std::mem::swap(old, &mut new);
}

#[test]
fn a_successor_that_ends_before_its_acknowledgment_changes_nothing() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let (stream, answer) = request(&site);
    assert_eq!(answer, b'S');
    drop(stream);
    assert_continues(&site, &mut old);
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (listen, other) = (format!("127.0.0.1:{}", site.port.number()), taken.local_addr().unwrap().to_string());
    let socket = site.folder.join("socket").display().to_string();
    let unreachable = ["--listen", &listen, "--listen", &socket, "--upstream", "postgres://127.0.0.1:1"];
    for (arguments, reason) in [
        (&["--listen", &listen, "--listen", &socket, "--listen", &other][..], "Address already in use"),
        (&unreachable, "this proxy is not ready for clients"),
    ] {
        let mut new = site.start_with(arguments);
        assert_eq!(new.program.wait(), 1);
        assert!(new.log().contains(reason), "{}", new.log());
    }
    assert_continues(&site, &mut old);
}

#[test]
fn a_peer_that_stalls_does_not_keep_the_successor_out() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let (mut stalled, _) = request(&site);
    assert_continues(&site, &mut old);
    let mut rest = Vec::new();
    stalled.read_to_end(&mut rest).unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("released"));
}

#[test]
fn an_unexpected_message_is_refused() {
    let site = Site::new();
    let mut old = site.first(&[]);
    for message in [&b"fencegate take-over 2\n"[..], &[0; 100_000]] {
        let mut stream = connect(&site);
        stream.write_all(message).ok();
        let mut answer = [0; 1024];
        let length = stream.read(&mut answer).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&answer[..length]),
            "Ethe successor uses another version of the take-over protocol"
        );
    }
    // The message claims to use more descriptors than were sent.
    let (mut stream, _) = request(&site);
    stream.write_all(&[b"R", &[1; 200][..]].concat()).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).ok();
    assert!(!String::from_utf8_lossy(&rest).contains("released"));
    assert_continues(&site, &mut old);
}

#[test]
fn only_the_same_system_user_and_root_may_connect() {
    // Only root can act as another user.
    if !geteuid().is_root() {
        return;
    }
    const OTHER: u32 = 65_534;
    let site = Site::new();
    let mut old = site.first(&[]);
    let command = site.command(&["--listen", &format!("127.0.0.1:{}", site.port.number())]);
    let takes_over = || {
        let mut program = Command::new(&command[0]);
        let output = program.args(&command[1..]).uid(OTHER).gid(OTHER).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = takes_over();
    assert!(said.contains("Permission denied"), "{said}");
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let said = takes_over();
    assert!(said.contains("the other process closed the connection"), "{said}");
    old.wait_for("another system user (uid 65534)");
    assert_continues(&site, &mut old);
}

#[test]
fn a_proxy_with_a_paused_database_refuses() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let mut console = Wire::login(&site.address(), "postgres", "fencegate");
    ok(&mut console, "PAUSE postgres");
    let mut new = site.start(&[]);
    assert_eq!(new.program.wait(), 1);
    assert!(new.log().contains("is paused"), "{}", new.log());
    ok(&mut console, "RESUME postgres");
    drop(console);
    assert_continues(&site, &mut old);
}

/// Otherwise both would accept the same connections.
#[test]
fn the_socket_of_another_program_is_left_alone() {
    let site = Site::new();
    let other = std::os::unix::net::UnixListener::bind(site.path()).unwrap();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"hello").unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    let mut new = site.start(&[]);
    assert_eq!(new.program.wait(), 1);
    assert!(new.log().contains("unexpected message"), "{}", new.log());
    answer.join().unwrap();
    wait_until("the file is still there", DEADLINE, || site.path().exists());
}
