//! A failed start is reported in one line, and systemd is notified of the proxy's state.

use crate::support::guardian::{Folder, Port};
use crate::support::proxy::{NO_POLICIES, fencegate};
use crate::support::{Address, DEADLINE, Options, Postgres, Proxy, ProxyOptions};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

/// Runs a proxy that fails to start; returns its exit code and output.
fn fails(folder: &Folder, arguments: &[&str]) -> (Option<i32>, String) {
    let policies = folder.join("policies");
    fs::create_dir_all(&policies).unwrap();
    fs::write(policies.join("p.yaml"), NO_POLICIES).unwrap();
    let mut command = fencegate();
    command.args(["proxy", "--upstream", "postgres://127.0.0.1:1", "--control", "postgres://u@127.0.0.1:1/"]);
    command.args(["--policies", &policies.display().to_string()]).args(arguments);
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_unknown_setting_is_reported_with_its_position() {
    let folder = Folder::new("start");
    let file = folder.join("f.yaml");
    fs::write(&file, "listen: 127.0.0.1:1\nmax_conections: 3\n").unwrap();
    let (code, said) = fails(&folder, &["--config", &file.display().to_string()]);
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("f.yaml:2:1: unknown key `max_conections`"), "{said}");
}

/// A misspelled variable would have no effect. For TLS, clients could then connect without it.
#[test]
fn an_unknown_variable_is_reported() {
    const KUBERNETES: [&str; 6] = [
        "FENCEGATE_SERVICE_HOST",
        "FENCEGATE_SERVICE_PORT_HTTP",
        "FENCEGATE_PORT",
        "FENCEGATE_PORT_6432_TCP_ADDR",
        "FENCEGATE_ETCD_SERVICE_HOST",
        "FENCEGATE_ETCD_PORT",
    ];
    let known = ["FENCEGATE_CONTROL", "FENCEGATE_LOG_FORMAT", "FENCEGATE_CONFIG", "FENCEGATE_KILL_AFTER"];
    let mut command = fencegate();
    command.args(["policy", "check", "examples"]).env_clear();
    command.envs(known.map(|name| (name, ""))).env("FENCEGATE_LOG_FORMAT", "json");
    command.envs(KUBERNETES.map(|name| (name, "10.0.0.1")));
    command.env("FENCEGATE_TLS_CLIENT_CERTIFICATE", "required").env("FENCEGATE_PORT_NUMBER_OF_MINE", "1");
    let output = command.env("FENCEGATE_LISTEN_PORT", "1").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let warned: Vec<&str> = said.lines().filter(|line| line.contains("variable_ignored")).collect();
    assert_eq!(warned.len(), 2, "{said}");
    assert!(warned[0].contains("FENCEGATE_LISTEN_PORT"), "{said}");
    let slip = r#""variable":"FENCEGATE_TLS_CLIENT_CERTIFICATE","nearest":"FENCEGATE_TLS_CLIENT_CERTIFICATES""#;
    assert!(warned[1].contains(slip), "{said}");
}

#[test]
fn a_failed_listen_address_is_reported() {
    let folder = Folder::new("start");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let sockets = folder.join("sockets");
    fs::create_dir(&sockets).unwrap();
    let _other = UnixListener::bind(sockets.join(".s.PGSQL.6432")).unwrap();
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    let text = |path: &Path| path.display().to_string();
    for (address, why) in [
        (port.clone(), "Address already in use"),
        (text(&sockets), "address in use"),
        (text(&folder.join("missing")), "No such file or directory"),
        (text(&file), "Not a directory"),
    ] {
        let (code, said) = fails(&folder, &["--listen", &address]);
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains(&format!("cannot listen on {address}")) && said.contains(why), "{said}");
    }
    assert!(sockets.join(".s.PGSQL.6432").exists(), "the other proxy's socket remains");
}

#[test]
fn overlapping_listen_addresses_are_reported() {
    let folder = Folder::new("start");
    let port = Port::claim();
    let [v4, v6] = [format!("0.0.0.0:{}", port.number()), format!("[::]:{}", port.number())];
    for (first, second) in [(&v4, &v6), (&v6, &v4)] {
        let (code, said) = fails(&folder, &["--listen", first, "--listen", second]);
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
        assert!(
            said.contains(&format!(
                "cannot listen on {second}: Address already in use (os error 98); {v6} includes the"
            )),
            "{said}"
        );
    }
}

#[test]
fn a_unix_socket_is_for_every_user() {
    let postgres = Postgres::start(Options::default());
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().umask("077"));
    let Address::Unix(socket) = proxy.socket() else { unreachable!() };
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o777);
}

#[test]
fn systemd_is_notified() {
    let folder = Folder::new("notify");
    let path = folder.join("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(DEADLINE)).unwrap();
    let told = || {
        let mut buffer = [0; 256];
        // A signal may interrupt the read, for example SIGCHLD from another test's program.
        let is_interrupted =
            |read: &io::Result<usize>| read.as_ref().is_err_and(|it| it.kind() == ErrorKind::Interrupted);
        let mut reads = std::iter::repeat_with(|| systemd.recv(&mut buffer)).skip_while(is_interrupted);
        let length = reads.next().unwrap().expect("a message arrives");
        drop(reads);
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let postgres = Postgres::start(Options::default());
    let options = ProxyOptions::default().variable("NOTIFY_SOCKET", &path.display().to_string());
    let mut proxy = Proxy::start_with(&postgres, &options);
    assert!(told().starts_with("READY=1\n"));
    proxy.sighup();
    let reloading = told();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    // After a takeover, the status would be that of the predecessor.
    assert!(!reloading.contains("STATUS"), "{reloading}");
    assert_eq!(told(), "READY=1");
    proxy.signal("TERM");
    assert!(told().starts_with("STOPPING=1\n"));
    assert_eq!(proxy.wait(), 0);
}
