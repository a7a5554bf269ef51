//! A coordinator, a folder, and leaders that run scripts in it.

use crate::support::guardian::{Folder, Program};
use crate::support::link::{Fault, Link};
use crate::support::programs::run;
use crate::support::proxy::BINARY;
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Etcd, Options, Postgres, fenced, ticks, wait_until};
use std::fs;
use std::time::SystemTime;

pub const ELECTION: &str = "/test/leader";
/// In seconds. Long enough that no test waits for its end.
pub const ENDLESS: u32 = 600;

/// Writes its process ID to a file, counts SIGTERMs in another, and never ends by itself.
pub const STUBBORN: &str = r#"trap 'echo >>"$1/term"' TERM; echo $$ >"$1/stubborn"; while :; do sleep 0.02; done"#;
/// The same as a child of a process that SIGTERM ends.
pub const STUBBORN_CHILD: &str = r#"
    echo 'trap "" TERM INT HUP; echo $$ >"$1/stubborn.new"; mv "$1/stubborn.new" "$1/stubborn"
          while :; do sleep 0.02; done' >"$1/child.sh"
    sh "$1/child.sh" "$1" &
    while [ ! -e "$1/stubborn" ]; do sleep 0.02; done
    echo $$ >"$1/command"
    "#;

enum Coordinator {
    Etcd(Etcd),
    /// The leaders connect through the link.
    Leases(Postgres, Link),
}

/// Generates two tests from each function that takes a stage: one with etcd, one with leases in PostgreSQL.
#[macro_export]
macro_rules! on_both {
    ($($test:ident),+ $(,)?) => {
        mod on_etcd {
            $(#[test]
            fn $test() {
                super::$test($crate::lead::stage::Stage::new());
            })+
        }
        mod on_leases {
            $(#[test]
            fn $test() {
                super::$test($crate::lead::stage::Stage::of_leases());
            })+
        }
    };
}

pub struct Stage {
    coordinator: Coordinator,
    pub folder: Folder,
}

impl Stage {
    pub fn new() -> Self {
        Self { coordinator: Coordinator::Etcd(Etcd::start()), folder: Folder::new("lead") }
    }

    pub fn of_leases() -> Self {
        let postgres = Postgres::start(Options::default());
        fenced::init(&postgres, "postgres");
        ticks::may_lead(&postgres, "postgres", "*");
        let link = Link::to(postgres.port());
        Self { coordinator: Coordinator::Leases(postgres, link), folder: Folder::new("lead") }
    }

    pub fn etcd(&mut self) -> &mut Etcd {
        match &mut self.coordinator {
            Coordinator::Etcd(etcd) => etcd,
            Coordinator::Leases(..) => panic!("this stage has no etcd"),
        }
    }

    /// The coordinator no longer answers.
    pub fn silence(&mut self) {
        match &mut self.coordinator {
            Coordinator::Etcd(etcd) => etcd.pause(),
            Coordinator::Leases(_, link) => link.suffer(Fault::Silent),
        }
    }

    /// The flags that give the coordinator's address.
    pub fn flags(&self) -> [String; 2] {
        match &self.coordinator {
            Coordinator::Etcd(etcd) => ["--etcd".into(), etcd.url()],
            Coordinator::Leases(_, link) => {
                ["--coordinator".into(), format!("postgres://postgres@127.0.0.1:{}/postgres", link.port())]
            }
        }
    }

    /// The command line of a leader that runs a script, with the folder as `$1`.
    pub fn command(&self, ttl: u32, arguments: &[&str], script: &str) -> Vec<String> {
        let ttl = ttl.to_string();
        let mut command = vec![BINARY, "lead", "--election", ELECTION, "--ttl", &ttl];
        command.extend(arguments);
        let (flags, folder) = (self.flags(), self.folder.path().display().to_string());
        command.extend(flags.iter().map(String::as_str));
        command.extend(["--", "sh", "-c", script, "sh", &folder]);
        command.into_iter().map(str::to_owned).collect()
    }

    pub fn lead(&self, ttl: u32, arguments: &[&str], script: &str) -> Program {
        self.run(&self.command(ttl, arguments, script))
    }

    pub fn run(&self, command: &[String]) -> Program {
        // A shell ignores SIGINT and SIGQUIT for programs that it starts in the background, such as the tests, and
        // nohup(1) ignores SIGHUP. The leader neither handles nor forwards ignored signals.
        let mut program = ["env", "--default-signal=HUP,INT,QUIT"].map(str::to_owned).to_vec();
        program.extend_from_slice(command);
        Program::start(&program, &self.folder.join("log"), "KILL")
    }

    /// The content of the file, once it ends in a newline.
    pub fn wait_for(&self, file: &str) -> String {
        let what = format!("there is a file {file}; the log says\n{}", self.log());
        wait_for(&what, DEADLINE, || self.read(file).filter(|text| text.ends_with('\n')))
    }

    /// Process ID in the file.
    pub fn process(&self, file: &str) -> u32 {
        self.wait_for(file).trim().parse().unwrap()
    }

    pub fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }

    pub fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    pub fn written_at(&self, file: &str) -> SystemTime {
        fs::metadata(self.folder.join(file)).unwrap().modified().unwrap()
    }

    pub fn log(&self) -> String {
        self.read("log").unwrap_or_default()
    }

    /// The keys of all candidates, unordered. With leases, only the leader.
    pub fn candidates(&self) -> Vec<String> {
        match &self.coordinator {
            Coordinator::Etcd(etcd) => {
                let output = run(&mut etcd.etcdctl(&["get", "--prefix", "--keys-only", ELECTION]));
                String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
            }
            Coordinator::Leases(postgres, _) => {
                let leader = postgres.sql(&format!("SELECT holder FROM fencegate.leader('{ELECTION}')"));
                leader.into_iter().flatten().flatten().collect()
            }
        }
    }

    /// Ends the lease of the only candidate.
    pub fn revoke(&self) {
        let candidates = self.candidates();
        assert_eq!(candidates.len(), 1, "{candidates:?}");
        match &self.coordinator {
            Coordinator::Etcd(etcd) => {
                let (_, lease) = candidates[0].rsplit_once('/').unwrap();
                run(&mut etcd.etcdctl(&["lease", "revoke", lease]));
            }
            Coordinator::Leases(postgres, _) => {
                let release = "SELECT fencegate.release(election, token) FROM fencegate_state.lease";
                assert_eq!(postgres.value(release), "t");
            }
        }
    }
}

/// The process state in /proc (R, S, T …). None for a process that has ended, reaped or not.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (state != 'Z').then_some(state)
}

pub fn wait_until_dead(pid: u32) {
    wait_until(format!("process {pid} is dead"), DEADLINE, || state(pid).is_none());
}

/// Sends a signal by its kill(1) name.
pub fn kill(signal: &str, pid: u32) {
    run(std::process::Command::new("sh").args(["-c", &format!("kill -s {signal} {pid}")]));
}

/// Sends SIGSTOP and returns when the process has stopped.
pub fn stop(pid: u32) {
    kill("STOP", pid);
    wait_until("it has stopped", DEADLINE, || state(pid) == Some('T'));
}

/// The guard process of this leader.
pub fn guard_of(lead: u32) -> u32 {
    let is_guard = |pid: &u32| {
        let read = |file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let parent = read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent == Some(lead) && read("cmdline").contains("lead-guard")
    };
    let processes = std::fs::read_dir("/proc").unwrap();
    let mut pids = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.find(is_guard).expect("there is a guard")
}
