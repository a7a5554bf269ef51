//! The faults, and their repair. One fault follows another, and several last at the same time.

use super::world::{Gate, World, policies};
use crate::support::cluster::Replication;
use crate::support::link::Fault as LinkFault;
use crate::support::programs;
use crate::support::proxy::BINARY;
use crate::support::{Address, DEADLINE, EtcdCluster, wait_until};
use fencegate_testing::dice::Dice;
use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    LeaderPaused,
    LeaderKilled,
    /// A signal to one process of a leader: the program that leads, its guard, or its command.
    LeaderHurt,
    ProxyPaused,
    ProxyKilled,
    ProcessPaused,
    ProcessKilled,
    ProcessTerminated,
    ServerRestarted,
    MemberPaused,
    MemberKilled,
    ServerLink,
    ClientLink,
    Reload,
    Reset,
    Definition,
    Guard,
    Promotion,
}

/// State of the old primary after a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OldPrimary {
    Killed,
    /// The server runs, but its commits wait for the lost standby.
    Runs,
    /// The server is cut off, no longer waits for a standby, and returns. A write that it acknowledges would be lost.
    CutOff,
}

const OLD_PRIMARIES: [OldPrimary; 3] = [OldPrimary::Runs, OldPrimary::CutOff, OldPrimary::Killed];

/// Weight of each fault. Faults that stop everything are rare.
const FAULTS: [(Fault, usize); 17] = [
    (Fault::LeaderPaused, 40),
    (Fault::LeaderKilled, 4),
    (Fault::LeaderHurt, 6),
    (Fault::ProxyPaused, 5),
    (Fault::ProxyKilled, 4),
    (Fault::ProcessPaused, 10),
    (Fault::ProcessKilled, 2),
    (Fault::ProcessTerminated, 8),
    (Fault::ServerRestarted, 1),
    (Fault::MemberPaused, 4),
    (Fault::MemberKilled, 2),
    (Fault::ServerLink, 5),
    (Fault::ClientLink, 5),
    (Fault::Reload, 4),
    (Fault::Reset, 3),
    (Fault::Definition, 4),
    (Fault::Guard, 3),
];

/// Weight of the promotion of a standby.
const PROMOTION: usize = 16;
/// Longer than a control connection waits for a reply.
const SEEN_LIMIT: Duration = Duration::from_secs(30);

/// The end of a fault.
enum Mend {
    ResumeLeader(usize),
    ResumeProxy(usize),
    ResumeProcess(String),
    ResumeMember(usize),
    StartMember(usize),
    ServerLink(usize),
    ClientLink(usize),
    /// The old primary becomes a standby.
    Rewind(usize),
}

pub struct Faults {
    choices: Vec<Fault>,
    open: Vec<(Instant, Mend)>,
    counts: BTreeMap<Fault, usize>,
    has_guard: bool,
    has_election: bool,
}

impl Default for Faults {
    fn default() -> Self {
        let choices = FAULTS.iter().flat_map(|(fault, weight)| std::iter::repeat_n(*fault, *weight)).collect();
        Self { choices, open: Vec::new(), counts: BTreeMap::new(), has_guard: false, has_election: true }
    }
}

impl Faults {
    pub fn of_leaders() -> Self {
        Self { choices: vec![Fault::LeaderPaused], ..Self::default() }
    }

    /// All faults, including promotions of the standby.
    pub fn with_promotions() -> Self {
        let mut faults = Self::default();
        faults.choices.extend([Fault::Promotion; PROMOTION]);
        faults
    }

    /// Waits for a moment, ends the faults that are due, and begins another.
    pub fn next(&mut self, world: &mut World, dice: &mut Dice) {
        thread::sleep(Duration::from_millis(dice.between(50, 1_000) as u64));
        let now = Instant::now();
        let (due, open) = std::mem::take(&mut self.open).into_iter().partition(|(end, _)| *end <= now);
        self.open = open;
        let due: Vec<(Instant, Mend)> = due;
        // Pauses that are due end before a server is rewound, and then all others.
        let (rewinds, others): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(_, mend)| matches!(mend, Mend::Rewind(_)));
        others.into_iter().for_each(|(_, mend)| mend.apply(world));
        if !rewinds.is_empty() {
            self.resume_all(world);
        }
        rewinds.into_iter().for_each(|(_, mend)| mend.apply(world));
        let fault = *dice.pick(&self.choices);
        // Every second pause of a leader outlasts its lease.
        let lasts = match fault {
            Fault::LeaderPaused if dice.chance(50) => dice.between(2_500, 6_000),
            // Long enough for a proxy to use the wrong server.
            Fault::Promotion => dice.between(2_000, 5_000),
            _ if dice.chance(20) => dice.between(50, 6_000),
            _ => dice.between(50, 1_500),
        };
        let lasts = Duration::from_millis(lasts as u64);
        if fault == Fault::Promotion && self.has_two_primaries() {
            return;
        }
        *self.counts.entry(fault).or_default() += 1;
        let mend = self.begin(fault, world, dice);
        self.open.extend(mend.map(|mend| (now + lasts, mend)));
    }

    pub fn end_all(&mut self, world: &mut World) {
        self.resume_all(world);
        self.open.drain(..).for_each(|(_, mend)| mend.apply(world));
        (0..EtcdCluster::MEMBERS).for_each(|index| world.etcd.wait_for(index));
        wait_until("the server answers", DEADLINE, || ask_server(world, "SELECT 1").is_some());
    }

    /// Returns true from a promotion until the old primary is a standby.
    fn has_two_primaries(&self) -> bool {
        self.open.iter().any(|(_, mend)| matches!(mend, Mend::Rewind(_)))
    }

    /// Ends the pauses of proxies and server processes. A paused server process may hold a lock that the test needs,
    /// and a paused proxy cannot notice a promotion.
    fn resume_all(&mut self, world: &mut World) {
        let is_pause =
            |mend: &Mend| matches!(mend, Mend::ResumeProxy(_) | Mend::ResumeProcess(_) | Mend::ServerLink(_));
        let (pauses, open) = std::mem::take(&mut self.open).into_iter().partition(|(_, mend)| is_pause(mend));
        self.open = open;
        let pauses: Vec<(Instant, Mend)> = pauses;
        pauses.into_iter().for_each(|(_, mend)| mend.apply(world));
        wait_until("the server answers", DEADLINE, || ask_server(world, "SELECT 1").is_some());
    }

    /// The standby becomes the primary.
    fn promote(&mut self, world: &mut World, old_primary: OldPrimary) -> Mend {
        self.resume_all(world);
        let old = world.cluster.primary();
        match old_primary {
            OldPrimary::Killed => world.cluster[old].kill9(),
            OldPrimary::Runs => {}
            OldPrimary::CutOff => world.gates.iter().for_each(|gate| gate.suffer_at(old, LinkFault::Cut)),
        }
        world.cluster.promote(1 - old);
        // The new primary has no standby.
        world.cluster.set_replication(Replication::Asynchronous);
        if old_primary == OldPrimary::CutOff {
            // A proxy that has not found the new primary would still use the old one.
            wait_until("each proxy uses the new primary", SEEN_LIMIT, || {
                let shown = |gate: &Gate| ask(&gate.proxy.address(), "fencegate", "SHOW SERVERS").unwrap_or_default();
                world.gates.iter().all(|gate| {
                    let row = format!("127.0.0.1:{}|t|primary|", gate.server_port(1 - old));
                    shown(gate).contains(&row)
                })
            });
            world.cluster[old].sql("ALTER SYSTEM SET synchronous_standby_names = ''");
            world.cluster[old].sql("SELECT pg_reload_conf()");
            world.gates.iter().for_each(|gate| gate.suffer_at(old, LinkFault::None));
        }
        Mend::Rewind(old)
    }

    fn is_open(&self, wanted: usize) -> bool {
        self.open.iter().any(
            |(_, mend)| matches!(mend, Mend::ResumeMember(member) | Mend::StartMember(member) if *member == wanted),
        )
    }

    fn begin(&mut self, fault: Fault, world: &mut World, dice: &mut Dice) -> Option<Mend> {
        let some_leader = dice.below(world.leaders.len());
        // Usually the current leader.
        let leader = world.last_writer().filter(|_| dice.chance(70)).unwrap_or(some_leader);
        let gate = dice.below(world.gates.len());
        let member = dice.below(EtcdCluster::MEMBERS);
        match fault {
            Fault::LeaderPaused => {
                world.leaders[leader].signal("STOP");
                Some(Mend::ResumeLeader(leader))
            }
            Fault::LeaderKilled => {
                world.leaders[leader].signal("KILL");
                None
            }
            Fault::LeaderHurt => {
                let signal = *dice.pick(&["KILL", "STOP", "TERM"]);
                world.leaders[leader].signal_one(signal, dice.below(4));
                Some(Mend::ResumeLeader(leader))
            }
            Fault::ProxyPaused => {
                world.gates[gate].proxy.signal("STOP");
                Some(Mend::ResumeProxy(gate))
            }
            // A new proxy might reach only the old primary.
            Fault::ProxyKilled if self.has_two_primaries() => None,
            Fault::ProxyKilled => {
                world.gates[gate].proxy.kill9();
                world.gates[gate].start_again(&world.cluster);
                None
            }
            Fault::ProcessPaused => {
                let pid = server_process(world, dice)?;
                kill("STOP", &pid);
                Some(Mend::ResumeProcess(pid))
            }
            Fault::ProcessKilled => {
                kill("KILL", &server_process(world, dice)?);
                None
            }
            Fault::ProcessTerminated => {
                let pid = server_process(world, dice)?;
                ask_server(world, &format!("SELECT pg_terminate_backend({pid})"));
                None
            }
            Fault::ServerRestarted => {
                let primary = world.cluster.primary();
                world.cluster[primary].crash_restart();
                None
            }
            // Skip a member that is dead or paused.
            Fault::MemberPaused | Fault::MemberKilled if self.is_open(member) => None,
            Fault::MemberPaused => {
                world.etcd.pause(member);
                Some(Mend::ResumeMember(member))
            }
            Fault::MemberKilled => {
                world.etcd.kill9(member);
                Some(Mend::StartMember(member))
            }
            Fault::ServerLink => {
                world.gates[gate].suffer(link_fault(dice));
                Some(Mend::ServerLink(gate))
            }
            Fault::ClientLink => {
                world.gates[gate].clients.suffer(link_fault(dice));
                Some(Mend::ClientLink(gate))
            }
            Fault::Reload => {
                self.has_election = !self.has_election;
                for gate in &mut world.gates {
                    gate.reload(&policies(self.has_election));
                }
                None
            }
            Fault::Reset => {
                reset(world, gate);
                None
            }
            Fault::Definition => {
                let definition = dice.pick(&[
                    "CREATE OR REPLACE VIEW ticks_view AS SELECT token, note FROM ticks",
                    "DROP VIEW IF EXISTS ticks_view",
                    "CREATE INDEX IF NOT EXISTS ticks_note ON ticks (note)",
                    "DROP INDEX IF EXISTS ticks_note",
                ]);
                ask_server(world, &format!("SET lock_timeout = '500ms'; {definition}"));
                None
            }
            Fault::Guard => {
                self.has_guard = !self.has_guard;
                guard(world, self.has_guard);
                None
            }
            Fault::Promotion => {
                // In turn, so that a short run includes all of them.
                let number = self.counts[&Fault::Promotion] % OLD_PRIMARIES.len();
                Some(self.promote(world, OLD_PRIMARIES[number]))
            }
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.counts.iter().map(|(fault, count)| format!("{count} {fault:?}")).collect();
        write!(formatter, "faults: {}", counts.join(", "))
    }
}

impl Mend {
    fn apply(self, world: &mut World) {
        match self {
            Mend::ResumeLeader(leader) => world.leaders[leader].signal("CONT"),
            Mend::ResumeProxy(gate) => world.gates[gate].proxy.signal("CONT"),
            Mend::ResumeProcess(pid) => kill("CONT", &pid),
            Mend::ResumeMember(member) => world.etcd.resume(member),
            Mend::StartMember(member) => world.etcd.start_again(member),
            Mend::ServerLink(gate) => world.gates[gate].suffer(LinkFault::None),
            Mend::ClientLink(gate) => world.gates[gate].clients.suffer(LinkFault::None),
            Mend::Rewind(old) => {
                world.cluster.rewind(old);
                world.cluster.set_replication(Replication::Synchronous);
                world.cluster.catch_up(old);
            }
        }
    }
}

fn link_fault(dice: &mut Dice) -> LinkFault {
    let slow = LinkFault::Slow(Duration::from_millis(dice.between(5, 200) as u64));
    *dice.pick(&[LinkFault::Cut, LinkFault::Silent, slow])
}

/// Returns the output of psql; None if the server is unreachable, fails the query, or does not answer.
fn ask(address: &Address, database: &str, sql: &str) -> Option<String> {
    let mut command = programs::limited(5, &programs::psql(address, database));
    let output = command.args(["-qAt", "-c", sql]).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

fn ask_server(world: &World, sql: &str) -> Option<String> {
    ask(&world.primary().socket(), "postgres", sql)
}

/// A server process of a leader or of a proxy.
fn server_process(world: &World, dice: &mut Dice) -> Option<String> {
    let query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let pids = ask_server(world, query)?;
    let pids: Vec<&str> = pids.lines().collect();
    (!pids.is_empty()).then(|| (*dice.pick(&pids)).to_owned())
}

fn kill(signal: &str, pid: &str) {
    // The process may have ended.
    let _ = Command::new("kill").args(["-s", signal, pid]).output();
}

/// Resets the fence to the current token, so that all sessions need a new admission.
fn reset(world: &World, gate: usize) {
    let token = ask_server(world, "SELECT token FROM fencegate_state.epoch WHERE resource = 'scheduler'");
    if let Some(token) = token.filter(|token| !token.is_empty()) {
        let reset = format!("FENCE RESET scheduler TO {}", token.trim());
        ask(&world.gates[gate].proxy.address(), "fencegate", &reset);
    }
}

fn guard(world: &World, is_wanted: bool) {
    let control = world.primary().control_url() + "postgres";
    let mut guard = Command::new("timeout");
    programs::forget_settings(&mut guard);
    guard.args(["5", BINARY, "guard", if is_wanted { "install" } else { "remove" }, "--control", &control]);
    if is_wanted {
        guard.arg("--policies").arg(world.gates[0].proxy.policies());
    }
    // The command may fail: a leader may hold a lock, or the server may be down.
    let _ = guard.output().unwrap();
}
