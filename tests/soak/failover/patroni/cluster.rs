//! Two servers under Patroni, with etcd.

use crate::support::Etcd;
use crate::support::guardian::{Folder, Port, Program};
use crate::support::postgres::{Rows, give_to_server, server_command};
use crate::support::programs::{made_once, postgres_program, run};
use crate::support::{Address, DEADLINE, Wire, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGES: [&str; 2] = ["patroni[etcd3]==4.1.5", "psycopg==3.2.13"];

/// Patroni's own minimum for the time after which a dead leader is replaced, in seconds.
pub const TTL: u32 = 20;

pub struct Patroni {
    // Before etcd: fields are dropped in this order.
    nodes: Vec<Node>,
    etcd: Etcd,
    /// The folder of Patroni's Python packages.
    packages: PathBuf,
    folder: Folder,
}

struct Node {
    name: &'static str,
    agent: Option<Program>,
    port: Port,
    rest: Port,
    data: PathBuf,
}

impl Drop for Node {
    /// The server outlives its Patroni.
    fn drop(&mut self) {
        self.agent = None;
        self.signal_server(Signal::SIGQUIT);
    }
}

impl Node {
    fn signal_server(&self, signal: Signal) {
        let file = fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
        if let Some(pid) = file.lines().next().and_then(|line| line.parse().ok()) {
            // The process may have ended.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

impl Patroni {
    /// The first one becomes the primary.
    pub fn start() -> Self {
        let installed = made_once("patroni", &PACKAGES, |folder| {
            run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")));
            let mut pip = Command::new(folder.join("venv/bin/pip"));
            run(pip.args(["install", "--quiet", "--target"]).arg(folder.join("lib")).args(PACKAGES));
        });
        let folder = Folder::new("patroni");
        // The server's user cannot read the build folder.
        let packages = folder.join("lib");
        run(Command::new("cp").arg("-a").args([&installed.join("lib"), &packages]));
        give_to_server(folder.path());
        let etcd = Etcd::start();
        let mut patroni = Self { nodes: Vec::new(), etcd, packages, folder };
        for name in ["a", "b"] {
            let data = patroni.folder.join(name);
            let (port, rest) = (Port::claim(), Port::claim());
            patroni.nodes.push(Node { name, agent: None, port, rest, data });
            let node = patroni.nodes.len() - 1;
            patroni.start_agent(node);
            let expected = if node == 0 { "primary" } else { "replica" };
            wait_until(format!("{name} is {expected}"), DEADLINE, || patroni.role(node) == expected);
        }
        patroni
    }

    fn start_agent(&mut self, node: usize) {
        let Node { name, port, rest, data, .. } = &self.nodes[node];
        let binaries = postgres_program("postgres").parent().unwrap().display().to_string();
        let folder = self.folder.path().display();
        let configuration = format!(
            "scope: test
name: {name}
restapi: {{listen: '127.0.0.1:{rest}', connect_address: '127.0.0.1:{rest}'}}
etcd3: {{host: '{etcd}'}}
bootstrap:
  dcs:
    ttl: {TTL}
    loop_wait: 1
    retry_timeout: 3
    primary_start_timeout: 0
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters: {{track_commit_timestamp: 'on', wal_log_hints: 'on', max_connections: 200}}
  initdb: [{{encoding: UTF8}}, {{locale: C}}, no-sync]
postgresql:
  listen: '127.0.0.1:{port}'
  connect_address: '127.0.0.1:{port}'
  data_dir: {data}
  bin_dir: '{binaries}'
  pgpass: {folder}/{name}.pgpass
  authentication:
    superuser: {{username: postgres, password: secret}}
    replication: {{username: replicator, password: secret}}
  pg_hba: ['host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust', 'local all all trust']
  parameters: {{unix_socket_directories: {folder}, fsync: 'off', shared_buffers: 32MB}}
",
            rest = rest.number(),
            port = port.number(),
            etcd = self.etcd.url().trim_start_matches("http://"),
            data = data.display(),
        );
        let file = self.folder.join(&format!("{name}.yaml"));
        fs::write(&file, configuration).unwrap();
        let mut command = server_command(Path::new("env"));
        let python = if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" };
        let path = format!("PYTHONPATH={}", self.packages.display());
        command.extend([path, python.to_owned(), "-m".into(), "patroni".into(), file.display().to_string()]);
        self.nodes[node].agent = Some(Program::start(&command, &self.folder.join(&format!("{name}.log")), "KILL"));
    }

    /// The server's port.
    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port.number()
    }

    pub fn hosts(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port.number())).collect();
        hosts.join(",")
    }

    pub fn sql(&self, node: usize, query: &str) -> Rows {
        let address = Address::Tcp(([127, 0, 0, 1], self.port(node)).into());
        Wire::login(&address, "postgres", "postgres").rows(query).unwrap()
    }

    /// The role that Patroni reports: primary, replica, or empty while the node has neither role.
    pub fn role(&self, node: usize) -> String {
        let status = self.request(node, "GET", "/patroni", "").unwrap_or_default();
        let field = |name: &str| Some(status.split_once(&format!("\"{name}\": \""))?.1.split('"').next()?.to_owned());
        match field("state").as_deref() {
            Some("running" | "streaming") => field("role").unwrap_or_default(),
            _ => String::new(),
        }
    }

    /// True once the standby is synchronous: Patroni then accepts a switchover to it.
    pub fn is_synchronous(&self, standby: usize) -> bool {
        self.request(standby, "GET", "/sync", "").is_some_and(|answer| answer.starts_with("HTTP/1.0 200"))
    }

    /// Makes Patroni switch over to `to`. Returns when `to` is the primary.
    pub fn switch_over(&self, from: usize, to: usize) {
        wait_until("the standby is synchronous", DEADLINE, || self.is_synchronous(to));
        let body = format!(r#"{{"leader": "{}", "candidate": "{}"}}"#, self.nodes[from].name, self.nodes[to].name);
        let answer = self.request(from, "POST", "/switchover", &body).unwrap_or_default();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}\n{}", self.log(to));
    }

    pub fn set_pause(&self, node: usize, paused: bool) {
        let answer = self.request(node, "PATCH", "/config", &format!(r#"{{"pause": {paused}}}"#)).unwrap_or_default();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        for node in 0..self.nodes.len() {
            wait_until("Patroni knows of the pause", DEADLINE, || {
                let status = self.request(node, "GET", "/patroni", "").unwrap_or_default();
                status.contains("\"pause\": true") == paused
            });
        }
    }

    /// Kills the server but not its Patroni.
    pub fn kill_server(&self, node: usize) {
        self.nodes[node].signal_server(Signal::SIGKILL);
    }

    /// Kills the server and its Patroni, like the loss of a machine.
    pub fn kill_node(&mut self, node: usize) {
        self.nodes[node].agent = None;
        self.kill_server(node);
    }

    /// Restarts a killed node.
    pub fn start_again(&mut self, node: usize) {
        self.start_agent(node);
    }

    pub fn log(&self, node: usize) -> String {
        fs::read_to_string(self.folder.join(&format!("{}.log", self.nodes[node].name))).unwrap_or_default()
    }

    /// The answer of a node's Patroni.
    fn request(&self, node: usize, method: &str, path: &str, body: &str) -> Option<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.nodes[node].rest.number())).ok()?;
        let length = body.len();
        let request = format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
        socket.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}
