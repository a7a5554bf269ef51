//! HAProxy in front of two proxies: its checks, the clients' addresses, and a proxy that leaves the rotation.

use crate::support::fenced::ok;
use crate::support::guardian::{Folder, Port, Program};
use crate::support::wire::error_in;
use crate::support::{Address, DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The sections of HAProxy's configuration: how each checks its servers, and the result of a check that succeeds.
const CHECKS: [(&str, &str, &str); 3] = [
    ("pgsql", "option pgsql-check user probe", "L7OK"),
    ("tcp", "option tcp-check", "L4OK"),
    ("http", "option httpchk GET /readyz", "L7OK"),
];
const CLIENT: [u8; 4] = [127, 0, 0, 2];

struct World {
    // Before the server: fields are dropped in this order.
    balancer: Balancer,
    proxies: Vec<Proxy>,
    _postgres: Postgres,
}

struct Balancer {
    _program: Program,
    ports: HashMap<&'static str, Port>,
    folder: Folder,
}

impl World {
    fn start() -> Self {
        // HAProxy announces loopback addresses, which the proxy never trusts.
        let options = Options::default().hba("host all ada,probe all scram-sha-256");
        let postgres = Postgres::start(options);
        postgres.sql("CREATE ROLE ada LOGIN PASSWORD 'secret'; CREATE ROLE probe LOGIN PASSWORD 'other'");
        postgres.sql("CREATE TABLE entries (id bigint GENERATED ALWAYS AS IDENTITY); GRANT ALL ON entries TO ada");
        let http: Vec<_> = (0..2).map(|_| Port::claim()).collect();
        let start = |port: &Port| {
            let address = format!("127.0.0.1:{}", port.number());
            let arguments = ["--proxy-protocol-from", "127.0.0.1", "--http", &address];
            Proxy::start_with(&postgres, &ProxyOptions::default().arguments(&arguments))
        };
        let proxies: Vec<Proxy> = http.iter().map(start).collect();
        let balancer = Balancer::start(&proxies, &http);
        Self { balancer, proxies, _postgres: postgres }
    }
}

impl Balancer {
    fn start(proxies: &[Proxy], http: &[Port]) -> Self {
        let folder = Folder::new("haproxy");
        let socket = folder.join("admin");
        let mut configuration = format!(
            "global\n  stats socket {} level admin\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 0\n  \
             timeout server 0\n  timeout check 30s\n  default-server inter 300ms\n",
            socket.display()
        );
        let ports: HashMap<_, _> = CHECKS.iter().map(|(name, ..)| (*name, Port::claim())).collect();
        for (name, option, _) in CHECKS {
            let bind = ports[name].number();
            configuration += &format!("listen {name}\n  bind 127.0.0.1:{bind}\n  {option}\n");
            for (number, (proxy, http)) in proxies.iter().zip(http).enumerate() {
                let (host, port) = proxy.address().host_and_port();
                let check = if name == "http" { format!("port {}", http.number()) } else { String::new() };
                configuration += &format!("  server proxy-{number} {host}:{port} send-proxy-v2 check {check}\n");
            }
        }
        let file = folder.join("haproxy.cfg");
        std::fs::write(&file, configuration).unwrap();
        let program = if PathBuf::from("/usr/sbin/haproxy").exists() { "/usr/sbin/haproxy" } else { "haproxy" };
        let log = folder.join("log");
        let program = Program::start(&[program, "-db", "-f", &file.display().to_string()], &log, "KILL");
        let balancer = Self { _program: program, ports, folder };
        wait_until("HAProxy answers", DEADLINE, || UnixStream::connect(&socket).is_ok());
        balancer
    }

    /// The answer to a command.
    fn command(&self, command: &str) -> String {
        let mut socket = UnixStream::connect(self.folder.join("admin")).unwrap();
        socket.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A column of HAProxy's statistics, by section, for one of the proxies.
    fn column(&self, proxy: usize, wanted: &str) -> HashMap<String, String> {
        let table = self.command("show stat");
        let mut rows = table.lines().map(|line| line.trim_start_matches("# ").split(',').collect::<Vec<_>>());
        let names = rows.next().unwrap();
        let column = names.iter().position(|name| *name == wanted).unwrap();
        let server = format!("proxy-{proxy}");
        let of_server = rows.filter(|row| row.get(1).is_some_and(|name| *name == server));
        of_server.map(|row| (row[0].to_owned(), row[column].to_owned())).collect()
    }

    fn address(&self, section: &str) -> Address {
        Address::Tcp(([127, 0, 0, 1], self.ports[section].number()).into())
    }

    /// A login as `ada` through a section, and the error, if any.
    fn login(&self, section: &str) -> Result<Wire, String> {
        let mut wire = Wire::connect_from(CLIENT.into(), &self.address(section)).map_err(|error| error.to_string())?;
        let frames = wire.start(&[("user", "ada"), ("database", "postgres")], "secret");
        match error_in(&frames) {
            Some(error) => Err(format!("{} {}", error.code(), error.message())),
            None if frames.last().is_some_and(|frame| frame.tag == b'Z') => Ok(wire),
            None => Err("connection closed".to_owned()),
        }
    }
}

/// The addresses of the sessions of a proxy.
fn sessions(proxy: &Proxy) -> Vec<String> {
    let mut console = Wire::login(&proxy.socket(), "postgres", "fencegate");
    ok(&mut console, "SHOW SESSIONS").into_iter().flatten().flatten().filter(|it| it.starts_with("127.0.0.")).collect()
}

#[test]
fn checks_succeed_and_leave_no_line_in_the_log() {
    let world = World::start();
    wait_until("each check has succeeded", DEADLINE, || {
        (0..2).all(|proxy| {
            let codes = world.balancer.column(proxy, "check_status");
            CHECKS.iter().all(|(name, _, expected)| codes[*name] == *expected)
        })
    });
    let client = world.balancer.login("pgsql").unwrap();
    let mut seen = Vec::new();
    wait_until("the session is shown", DEADLINE, || {
        seen = world.proxies.iter().flat_map(sessions).collect();
        !seen.is_empty()
    });
    assert_eq!(seen, [client.local_address()]);
    for proxy in &world.proxies {
        let log = proxy.log();
        assert!(!log.contains("session_refused") && !log.contains("probe"), "{log}");
        assert_eq!(log.matches("session_started").count(), usize::from(log.contains("user=\"ada\"")), "{log}");
    }
}

/// The order of `docs/run/upgrade-and-remove.md`: drain at the balancer, then SIGTERM.
#[test]
fn a_proxy_leaves_the_rotation_without_an_error() {
    const CLIENTS: usize = 8;
    const STATEMENTS: usize = 20;
    let mut world = World::start();
    let (stop, written, errors) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let write = |balancer: &Balancer| -> Result<(), String> {
        let mut wire = balancer.login("http")?;
        for _ in 0..STATEMENTS {
            wire.rows("INSERT INTO entries DEFAULT VALUES").map_err(|error| error.message().to_owned())?;
            written.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let World { balancer, proxies, .. } = &mut world;
    let balancer = &*balancer;
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    write(balancer).unwrap_or_else(|error| errors.lock().unwrap().push(error));
                }
            });
        }
        let progress = |rows: usize| {
            let begin = written.load(Ordering::Relaxed);
            wait_until("clients write", DEADLINE, || written.load(Ordering::Relaxed) > begin + rows);
        };
        progress(500);
        wait_until("both proxies serve clients", DEADLINE, || proxies.iter().all(|proxy| !sessions(proxy).is_empty()));
        assert_eq!(balancer.command("set server http/proxy-0 state drain").trim(), "");
        // The proxy does not show connections that have not logged in yet.
        wait_until("its clients have left", DEADLINE, || balancer.column(0, "scur")["http"] == "0");
        assert_eq!(proxies[0].terminate(), 0);
        wait_until("the check sees it", DEADLINE, || balancer.column(0, "status")["http"].starts_with("DOWN"));
        progress(500);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(errors.into_inner().unwrap(), Vec::<String>::new());
}
