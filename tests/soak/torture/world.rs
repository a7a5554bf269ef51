//! The programs of a run: the server, three members of etcd, proxies, leaders, and the links between them.

use super::history::Write;
use super::{ELECTION, Way, leader};
use crate::support::cluster::{Cluster, Replication};
use crate::support::commit_order::take_inserted;
use crate::support::guardian::{Folder, Program};
use crate::support::link::Fault as LinkFault;
use crate::support::link::Link;
use crate::support::postgres::SUPERUSER;
use crate::support::programs::{postgres_program, python, run};
use crate::support::proxy::{BINARY, fencegate};
use crate::support::{EtcdCluster, Postgres, Proxy, ProxyOptions, seed};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const SLOT: &str = "torture";
const PROXIES: usize = 3;

const SCHEMA: &str = "CREATE TABLE ticks (id bigint GENERATED ALWAYS AS IDENTITY, token bigint, note text); \
     CREATE TABLE progress (writes bigint); INSERT INTO progress VALUES (0); \
     CREATE VIEW ticks_view AS SELECT token, note FROM ticks";

/// The kinds of leaders. Some use the library, others psql or psycopg under `fencegate lead`.
const LEADERS: [Kind; 8] =
    [Kind::Library, Kind::Library, Kind::Library, Kind::Psql, Kind::Psql, Kind::Psql, Kind::Psycopg, Kind::Psycopg];

#[derive(Clone, Copy)]
enum Kind {
    Library,
    Psql,
    Psycopg,
}

/// A proxy with its links.
pub struct Gate {
    pub proxy: Proxy,
    pub clients: Link,
    /// A link to each server.
    servers: Vec<Link>,
    options: ProxyOptions,
}

pub struct Leader {
    name: String,
    command: Vec<String>,
    program: Program,
}

pub struct World {
    // Before what they need: fields are dropped in this order.
    pub leaders: Vec<Leader>,
    pub gates: Vec<Gate>,
    pub etcd: EtcdCluster,
    pub cluster: Cluster,
    folder: Folder,
}

impl World {
    /// Starts the servers, with or without a synchronous standby.
    pub fn start(way: Way, has_standby: bool) -> Self {
        let replication = if has_standby { Replication::Synchronous } else { Replication::Asynchronous };
        let cluster = Cluster::start(usize::from(has_standby), replication, |primary| {
            primary.sql(SCHEMA);
            run(fencegate().args(["init", "--control", &(primary.control_url() + "postgres")]));
        });
        if !has_standby {
            cluster[0].sql(&format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'test_decoding')"));
        }
        let etcd = EtcdCluster::start();
        let gates: Vec<Gate> = match way {
            Way::Fenced => (0..PROXIES).map(|_| Gate::start(&cluster, 1 + usize::from(has_standby), &etcd)).collect(),
            Way::Direct | Way::Checked => Vec::new(),
        };
        let doors: Vec<u16> = match way {
            Way::Fenced => gates.iter().map(|gate| gate.clients.port()).collect(),
            Way::Direct | Way::Checked => vec![cluster[0].port()],
        };
        let folder = Folder::new("torture");
        let kinds = if way == Way::Fenced { &LEADERS[..] } else { &LEADERS[..3] };
        let leader = |(number, kind): (usize, &Kind)| {
            let name = format!("{number}");
            let command = command(*kind, &name, way, &etcd, &doors, &folder);
            let program = Program::start(&command, &folder.join("log"), "KILL");
            Leader { name, command, program }
        };
        let leaders = kinds.iter().enumerate().map(leader).collect();
        Self { leaders, gates, etcd, cluster, folder }
    }

    /// Tokens and notes of the rows that were committed since the last call, in the order of their commits.
    pub fn take_inserted(&self) -> Vec<(i64, String)> {
        let rows = take_inserted(self.primary(), "postgres", SLOT, "public.ticks").into_iter();
        rows.map(|mut row| (row.number("token"), row.columns.remove("note").unwrap().unwrap())).collect()
    }

    /// Tokens and notes of all surviving rows, in the order of commits. A promoted server has no replication slot, so
    /// this uses commit times: a later token begins after the last commit of an earlier one.
    pub fn surviving_rows(&self) -> Vec<(i64, String)> {
        let rows = self.primary().sql("SELECT token, note FROM ticks ORDER BY pg_xact_commit_timestamp(xmin), id");
        rows.into_iter().map(|mut row| (row[0].take().unwrap().parse().unwrap(), row[1].take().unwrap())).collect()
    }

    pub fn primary(&self) -> &Postgres {
        &self.cluster[self.cluster.primary()]
    }

    /// The leader with the newest entry in its diary.
    pub fn last_writer(&self) -> Option<usize> {
        let written = |leader: &Leader| fs::metadata(self.diary(leader)).and_then(|file| file.modified()).ok();
        (0..self.leaders.len()).max_by_key(|&number| written(&self.leaders[number]))
    }

    fn diary(&self, leader: &Leader) -> PathBuf {
        self.folder.join(&format!("diary-{}", leader.name))
    }

    /// The entries of all leaders' diaries.
    pub fn diaries(&self) -> Vec<Write> {
        let files = self.leaders.iter().map(|leader| self.diary(leader));
        let texts: String = files.map(|file| fs::read_to_string(file).unwrap_or_default()).collect();
        texts.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Restarts leaders that were killed, or have ended because `fencegate lead` leads only once.
    pub fn start_ended_leaders(&mut self) {
        for leader in &mut self.leaders {
            if leader.program.exit_status().is_some() {
                leader.program = Program::start(&leader.command, &self.folder.join("log"), "KILL");
            }
        }
    }

    pub fn stop_leaders(&mut self) {
        for leader in &mut self.leaders {
            leader.signal("KILL");
            leader.program.signal("KILL");
            leader.program.wait();
        }
    }
}

impl Gate {
    /// Gives other policies to the proxy and its replacements.
    pub fn reload(&mut self, policies: &str) {
        self.options = self.options.clone().policies(policies);
        self.proxy.write_policies(policies);
        self.proxy.sighup();
    }

    fn start(cluster: &Cluster, servers: usize, etcd: &EtcdCluster) -> Self {
        let servers: Vec<_> = (0..servers).map(|node| Link::to(cluster[node].port())).collect();
        let hosts: Vec<_> = servers.iter().map(|link| format!("127.0.0.1:{}", link.port())).collect();
        let (hosts, target) = (hosts.join(","), if servers.len() > 1 { "?target_session_attrs=primary" } else { "" });
        let options = ProxyOptions::default()
            .policies(&policies(true))
            .upstream(&format!("postgres://{hosts}{target}"))
            .control(&format!("postgres://{SUPERUSER}@{hosts}/{target}"))
            .arguments(&["--etcd", &etcd.urls().join(",")]);
        let proxy = Proxy::start_with(&cluster[0], &options);
        let clients = Link::to(port(&proxy));
        Self { proxy, clients, servers, options }
    }

    /// Starts a new proxy in place of a killed one.
    pub fn start_again(&mut self, cluster: &Cluster) {
        self.proxy = Proxy::start_with(&cluster[0], &self.options);
        self.clients.lead_to(port(&self.proxy));
    }

    /// The port of the proxy's link to a server.
    pub fn server_port(&self, node: usize) -> u16 {
        self.servers[node].port()
    }

    /// Applies the fault to the proxy's links to all servers.
    pub fn suffer(&self, fault: LinkFault) {
        self.servers.iter().for_each(|link| link.suffer(fault));
    }

    /// Applies the fault to the proxy's link to one server.
    pub fn suffer_at(&self, node: usize, fault: LinkFault) {
        self.servers[node].suffer(fault);
    }
}

fn port(proxy: &Proxy) -> u16 {
    proxy.address().host_and_port().1.parse().unwrap()
}

/// With an election, the proxies verify tokens with etcd.
pub fn policies(with_election: bool) -> String {
    let election = if with_election { format!("\n    election: {ELECTION}") } else { String::new() };
    format!("version: 1\nresources:\n  - name: scheduler\n    tables: [public.ticks, public.progress]{election}\n")
}

impl Leader {
    /// Signals all processes of the leader at once, as if the machine had stalled.
    pub fn signal(&self, name: &str) {
        let pids = self.processes();
        if !pids.is_empty() {
            // Some processes may have ended.
            let _ = Command::new("kill").args(["-s", name]).args(&pids).output();
        }
    }

    /// Signals one process of the leader, chosen by `number`.
    pub fn signal_one(&self, name: &str, number: usize) {
        let pids = self.processes();
        if let Some(pid) = pids.get(number % pids.len().max(1)) {
            let _ = Command::new("kill").args(["-s", name, pid]).output();
        }
    }

    /// The processes with the name of the leader in their environment, except for the guardian of the tests.
    fn processes(&self) -> Vec<String> {
        let wanted = format!("TORTURE_NAME={}", self.name);
        let is_ours = |pid: &String| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let folder = self.command.iter().any(|word| {
                word.starts_with("TORTURE_DIARY=")
                    && environment.split(|byte| *byte == 0).any(|entry| entry == word.as_bytes())
            });
            folder && environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
        };
        let entries = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        entries.filter(|name| name.parse::<u32>().is_ok()).filter(is_ours).collect()
    }
}

fn command(kind: Kind, name: &str, way: Way, etcd: &EtcdCluster, doors: &[u16], folder: &Folder) -> Vec<String> {
    let doors: Vec<String> = doors.iter().map(u16::to_string).collect();
    let path = |file: &str| format!("{}/tests/soak/torture/{file}", env!("CARGO_MANIFEST_DIR"));
    let mut command = vec![
        // Otherwise the leader would inherit ignored signals from the tests, for example under nohup(1).
        "env".to_owned(),
        "--default-signal=HUP,INT,QUIT".into(),
        format!("TORTURE_NAME={name}"),
        format!("TORTURE_ETCD={}", etcd.urls().join(",")),
        format!("TORTURE_DOORS={}", doors.join(",")),
        format!("TORTURE_WAY={way:?}"),
        format!("TORTURE_SEED={}", seed()),
        format!("TORTURE_DIARY={}", folder.join(&format!("diary-{name}")).display()),
        format!("PSQL={}", postgres_program("psql").display()),
    ];
    let program = match kind {
        Kind::Library => {
            let tests = std::env::current_exe().unwrap().display().to_string();
            let alone = ["--ignored", "--exact", "torture::leader::leads", "--nocapture"].map(str::to_owned);
            command.extend([tests].into_iter().chain(alone));
            return command;
        }
        Kind::Psql => vec!["sh".into(), path("leader.sh")],
        Kind::Psycopg => vec![python().display().to_string(), path("leader.py")],
    };
    let ttl = leader::TTL.as_secs().to_string();
    let lead =
        [BINARY, "lead", "--etcd", &etcd.urls().join(","), "--election", ELECTION, "--ttl", &ttl, "--id", name, "--"];
    command.extend(lead.map(str::to_owned));
    command.extend(program);
    command
}
