//! The sockets that a successor takes over, binds itself or ignores, and those of systemd.

use super::Site;
use crate::support::fenced::value;
use crate::support::guardian::{Port, Program};
use crate::support::{Address, DEADLINE, Wire, wait_until};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

pub fn page(port: &Port, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port.number())).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_files_of_unix_sockets_stay() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let inodes = || [site.socket(), site.path()].map(|path| path.metadata().unwrap().ino());
    let before = inodes();
    assert_eq!(site.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for _ in 0..2 {
        let new = site.upgrade(&mut old, &[]);
        assert_eq!(std::mem::replace(&mut old, new).program.wait(), 0);
        assert_eq!(inodes(), before, "the same sockets");
        let mut wire = Wire::login(&Address::Unix(site.socket()), "postgres", "postgres");
        assert_eq!(value(&mut wire, "SELECT 1").as_deref(), Some("1"));
        assert!(page(&site.http, "/readyz").contains("200 OK"), "{}", old.log());
    }
    old.program.signal("TERM");
    assert_eq!(old.program.wait(), 0);
    assert!(!site.socket().exists() && !site.path().exists());
}

#[test]
fn the_settings_of_the_successor_apply() {
    let site = Site::new();
    let mut old = site.first(&[]);
    let (kept, other) = (format!("127.0.0.1:{}", site.port.number()), Port::claim());
    let mut new = site.start_with(&["--listen", &kept, "--listen", &format!("127.0.0.1:{}", other.number())]);
    new.wait_for("sockets_taken_over");
    assert_eq!(old.program.wait(), 0);
    wait_until("the unused socket file is gone", DEADLINE, || !site.socket().exists());
    assert!(TcpStream::connect(("127.0.0.1", site.http.number())).is_err());
    for number in [site.port.number(), other.number()] {
        let address = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, number)));
        assert_eq!(value(&mut Wire::login(&address, "postgres", "postgres"), "SELECT 1").as_deref(), Some("1"));
    }
    assert_eq!(new.log().matches("socket_not_used").count(), 2, "{}", new.log());
    drop(new);
    // The next proxy starts despite the files that the killed proxy left.
    site.first(&[]);
}

/// systemd keeps its sockets open, so clients wait while no proxy runs instead of being refused.
#[test]
fn sockets_of_systemd_are_used() {
    let site = Site::new();
    let (listen, socket) = (format!("127.0.0.1:{}", site.port.number()), site.socket().display().to_string());
    let mut command = vec!["systemd-socket-activate".to_owned(), "-l".into(), listen.clone(), "-l".into(), socket];
    command.extend(site.command(&["--listen", &listen, "--listen", &site.folder.join("socket").display().to_string()]));
    let log = site.folder.join("log");
    let mut program = Program::start(&command, &log, "KILL");
    // The first connection starts the proxy, which then serves it.
    wait_until("it listens", DEADLINE, || site.socket().exists());
    for address in [Address::Unix(site.socket()), site.address()] {
        assert_eq!(value(&mut Wire::login(&address, "postgres", "postgres"), "SELECT 1").as_deref(), Some("1"));
    }
    program.signal("TERM");
    assert_eq!(program.wait(), 0, "{}", std::fs::read_to_string(log).unwrap());
    assert!(site.socket().exists(), "systemd owns the file");
}

/// Starts two proxies with the sockets of systemd, the second when the file `upgrade` exists.
const TWICE: &str = r#"
folder=$1; shift
start() { sh -c 'export LISTEN_PID=$$; exec "$@"' sh "$@" & }
trap 'kill -KILL $old $new' TERM
start "$@" 2>"$folder/old"; old=$!
until [ -e "$folder/upgrade" ]; do sleep 0.01; done
start "$@" 2>"$folder/new"; new=$!
wait $old && kill -TERM $new && wait $new
"#;

/// Two services use the `Sockets=` of one unit. The successor receives the sockets twice: from systemd and from its
/// predecessor.
#[test]
fn a_successor_of_systemd_takes_over() {
    let site = Site::new();
    let (listen, socket) = (format!("127.0.0.1:{}", site.port.number()), site.socket().display().to_string());
    let mut command = vec!["systemd-socket-activate".to_owned(), "-l".into(), listen.clone(), "-l".into(), socket];
    command.extend(["sh", "-c", TWICE, "sh", &site.folder.path().display().to_string()].map(str::to_owned));
    command.extend(site.command(&["--listen", &listen, "--listen", &site.folder.join("socket").display().to_string()]));
    let mut program = Program::start(&command, &site.folder.join("log"), "TERM");
    wait_until("it listens", DEADLINE, || site.socket().exists());
    let mut session = Wire::login(&Address::Unix(site.socket()), "postgres", "postgres");
    std::fs::write(site.folder.join("upgrade"), "").unwrap();
    let log = |name: &str| std::fs::read_to_string(site.folder.join(name)).unwrap_or_default();
    wait_until("the successor has the sockets", DEADLINE, || log("new").contains("sockets_taken_over"));
    for address in [Address::Unix(site.socket()), site.address()] {
        assert_eq!(value(&mut Wire::login(&address, "postgres", "postgres"), "SELECT 1").as_deref(), Some("1"));
    }
    assert_eq!(value(&mut session, "SELECT 1").as_deref(), Some("1"), "the predecessor serves its sessions");
    assert!(!log("new").contains("socket_not_used"), "{}", log("new"));
    drop(session);
    assert_eq!(program.wait(), 0, "{}{}", log("old"), log("new"));
    assert!(site.socket().exists() && !site.path().exists(), "systemd owns only the file of the clients' socket");
}

/// The successor has no sockets from systemd, like a program that was started by hand.
#[test]
fn the_sockets_of_systemd_are_handed_over() {
    let site = Site::new();
    let (listen, folder) =
        (format!("127.0.0.1:{}", site.port.number()), site.folder.join("socket").display().to_string());
    let mut command = vec!["systemd-socket-activate".to_owned(), "-l".into(), listen.clone(), "-l".into()];
    command.push(site.socket().display().to_string());
    let addresses = ["--listen", &listen, "--listen", &folder];
    command.extend(site.command(&addresses));
    let mut old = Program::start(&command, &site.folder.join("log"), "KILL");
    wait_until("it listens", DEADLINE, || site.socket().exists());
    drop(Wire::login(&Address::Unix(site.socket()), "postgres", "postgres"));
    let mut new = site.start_with(&addresses);
    new.wait_for("sockets_taken_over");
    assert_eq!(old.wait(), 0);
    for address in [Address::Unix(site.socket()), site.address()] {
        assert_eq!(value(&mut Wire::login(&address, "postgres", "postgres"), "SELECT 1").as_deref(), Some("1"));
    }
    assert!(!new.log().contains("socket_not_used"), "{}", new.log());
    new.program.signal("TERM");
    assert_eq!(new.program.wait(), 0);
    assert!(site.socket().exists(), "systemd owns the file");
}
