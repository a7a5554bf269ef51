//! The last scene: two `fencegate lead` programs compete in an etcd election, and the leader's machine pauses.
//! And the sessions of all scenes.
//!
//! Owns both programs and their processes. Must never stop or continue any other process. Must never retry or interpret a
//! response: the story shows responses unchanged.

use super::check::{DemoReply, Row};
use super::transcript::{DemoError, PATIENCE, Transcript, milliseconds, until};
use crate::stage::{Stage, forget_settings};
use fencegate_leader::command::processes::{self, Process};
use fencegate_leader::etcd::{Etcd, EtcdSettings, candidates};
use fencegate_leader::{ElectionName, Patience};
use fencegate_postgres::sql::{number, query_rows, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage, SimpleQueryRow};

/// Election in the demo's policies.
const ELECTION: &str = "/demo/leader";
/// Lease TTL in seconds: the shortest that etcd grants.
const TTL: &str = "2";
const SETUP: &str = "CREATE TABLE public.beats (id bigint GENERATED ALWAYS AS IDENTITY, run_by text, \
    token bigint DEFAULT fencegate.token('beats')); GRANT SELECT, INSERT ON public.beats TO scheduler";
/// Number of rows that show a working leader.
const SOME: usize = 5;
/// The worker. It knows nothing of elections except the token in PGOPTIONS.
const WORKER: &str = r#"while :; do
    psql -Xq -v VERBOSITY=verbose -c "INSERT INTO beats (run_by) VALUES ('$FENCE_HOLDER')"
    sleep 0.1
done"#;

/// A finished scene.
pub(super) struct Takeover {
    /// Failed expectations.
    pub(super) contradictions: Vec<String>,
    /// Time from the leader's pause to its successor's first write.
    pub(super) took: Duration,
    /// The log of both nodes.
    pub(super) log: String,
}

/// Runs the scene.
pub(super) async fn play(stage: &Stage, witness: &Participant, transcript: &Transcript) -> Result<Takeover, DemoError> {
    witness.must(SETUP).await?;
    let etcd = etcd_of(stage)?;
    let mut a = DemoNode::start("A", stage)?;
    transcript
        .event("A", &format!("fencegate lead --ttl {TTL} --election {ELECTION} -- sh -c 'while :; do psql ...; done'"));
    let old = beats_of("A", 1, witness).await?;
    transcript.event("A", &format!("leads under token {old}, and writes to beats every 100 ms"));
    let mut b = DemoNode::start("B", stage)?;
    until_candidates(&etcd, 2).await?;
    transcript.event("B", "the same; waits");
    beats_of("A", SOME, witness).await?;
    let stopped = a.processes()?;
    signal(&stopped.all, Signal::SIGSTOP);
    let start = Instant::now();
    transcript.event("A", "SIGSTOP to all of its processes: its machine freezes");
    let new = beats_of("B", 1, witness).await?;
    let took = start.elapsed();
    transcript
        .event("B", &format!("leads under token {new}: its first write was admitted after {}", milliseconds(took)));
    // Continue the command before its leader client, which would kill it immediately. The kernel does not guarantee
    // which one runs first.
    signal(&stopped.command, Signal::SIGCONT);
    transcript.event("A", "SIGCONT: its command runs again before its leader client does");
    let late = a.late_write().await?;
    transcript.statement("A", "INSERT INTO beats (run_by) VALUES ('A')", &late);
    beats_of("B", SOME, witness).await?;
    signal(&stopped.all, Signal::SIGCONT);
    let code = a.ended().await?;
    let shown = code.map_or("none".to_owned(), |code| code.to_string());
    transcript.event("A", &format!("its leader client runs again, and has lost: command killed, exit code {shown}"));
    b.stop().await?;
    let log = a.rest_of_log().await? + &b.rest_of_log().await?;
    let rows = witness.must("SELECT token FROM beats ORDER BY id").await?;
    Ok(Takeover { contradictions: contradictions(&late, code, &tokens(&rows), (old, new)), took, log })
}

/// Differences between the expectation and the evidence. Empty if the scene succeeded.
fn contradictions(late: &DemoReply, code: Option<i32>, tokens: &[i64], (old, new): (i64, i64)) -> Vec<String> {
    let mut found = Vec::new();
    if !matches!(late, DemoReply::Refused { severity, code, .. } if severity == "ERROR" && code == "LF001") {
        found.push(format!("the deposed leader received {late}"));
    }
    if code != Some(75) {
        found.push(format!("the deposed leader's client ended with {code:?}, not 75"));
    }
    if new <= old || !tokens.is_sorted() || !tokens.ends_with(&[new]) {
        found.push(format!("the table has tokens {tokens:?}, after leaders {old} and {new}"));
    }
    found
}

/// A `fencegate lead` with its command. Dropping it kills both.
struct DemoNode {
    child: Child,
    errors: Lines<BufReader<ChildStderr>>,
    /// Log lines read so far.
    log: String,
}

/// Processes of a node.
struct Processes {
    all: Vec<Pid>,
    /// Without the leader client itself.
    command: Vec<Pid>,
}

impl DemoNode {
    fn start(id: &str, stage: &Stage) -> Result<Self, DemoError> {
        let mut command = Command::new(std::env::current_exe()?);
        forget_settings(command.as_std_mut());
        command.args([
            "lead",
            "--log-format",
            "json",
            "--etcd",
            stage.etcd(),
            "--election",
            ELECTION,
            "--ttl",
            TTL,
            "--id",
            id,
        ]);
        command.args(["--", "sh", "-c", WORKER]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", stage.programs().display()));
        // The demo parses psql's messages, so they must be in English.
        command.env("PGHOST", stage.folder()).env("LC_ALL", "C");
        command.envs([("PGPORT", "6432"), ("PGUSER", "scheduler"), ("PGDATABASE", "app")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let errors = child.stderr.take().ok_or_else(|| DemoError::Story("a node has no standard error".into()))?;
        Ok(DemoNode { child, errors: BufReader::new(errors).lines(), log: String::new() })
    }

    fn pid(&self) -> Result<Pid, DemoError> {
        let ended = || DemoError::Story("a node has ended too early".into());
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or_else(ended)?;
        Ok(Pid::from_raw(pid))
    }

    /// The leader client, its guard, and the process group that the guard leads.
    fn processes(&self) -> Result<Processes, DemoError> {
        let own = self.pid()?;
        let processes = processes::all().map_err(std::io::Error::other)?;
        let is_guard = |it: &&Process| it.parent == own && it.pid == it.group;
        let guards: Vec<Pid> = processes.iter().filter(is_guard).map(|it| it.pid).collect();
        let group = processes.iter().filter(|it| guards.contains(&it.group)).map(|it| it.pid);
        let all: Vec<Pid> = group.chain([own]).collect();
        let command = all.iter().copied().filter(|pid| !guards.contains(pid) && *pid != own).collect();
        Ok(Processes { all, command })
    }

    /// Waits for the first refusal that keeps the session alive. The proxy may have terminated a session that was
    /// writing.
    async fn late_write(&mut self) -> Result<DemoReply, DemoError> {
        let refusal = timeout(PATIENCE, async {
            loop {
                let line = self.line().await?;
                let Some((code, message)) = line.strip_prefix("ERROR:  ").and_then(|rest| rest.split_once(": ")) else {
                    continue;
                };
                let detail = self.line().await?;
                let detail = detail.strip_prefix("DETAIL:  ").unwrap_or_default().to_owned();
                let (severity, code, message) = ("ERROR".to_owned(), code.to_owned(), message.to_owned());
                return Some(DemoReply::Refused { severity, code, message, detail });
            }
        });
        refusal.await.ok().flatten().ok_or_else(|| DemoError::Story("the old leader was not refused".into()))
    }

    async fn line(&mut self) -> Option<String> {
        let line = self.errors.next_line().await.ok()??;
        self.log += &format!("{line}\n");
        Some(line)
    }

    /// The complete log, once all processes of the node have ended.
    async fn rest_of_log(mut self) -> Result<String, DemoError> {
        let rest = timeout(PATIENCE, async { while self.line().await.is_some() {} });
        rest.await.map_err(|_| DemoError::Story("a process of a node does not end".into()))?;
        Ok(self.log)
    }

    async fn ended(&mut self) -> Result<Option<i32>, DemoError> {
        let stuck = |_| DemoError::Story("the deposed leader's client does not end".into());
        Ok(timeout(PATIENCE, self.child.wait()).await.map_err(stuck)??.code())
    }

    async fn stop(&mut self) -> Result<(), DemoError> {
        kill(self.pid()?, Signal::SIGTERM).ok();
        self.ended().await.map(drop)
    }
}

fn signal(pids: &[Pid], signal: Signal) {
    // A process that has just ended needs no signal.
    pids.iter().for_each(|pid| _ = kill(*pid, signal));
}

fn etcd_of(stage: &Stage) -> Result<Arc<Etcd>, DemoError> {
    Ok(Etcd::new(&EtcdSettings { members: vec![stage.etcd().to_owned()], ..EtcdSettings::default() })?)
}

async fn until_candidates(etcd: &Etcd, count: usize) -> Result<(), DemoError> {
    let election: ElectionName = ELECTION.parse().map_err(|error| DemoError::Story(format!("{error}")))?;
    let campaign = async || Ok((candidates(etcd, &election, Patience::USUAL).await?.len() >= count).then_some(()));
    until("a node does not campaign", campaign).await
}

/// Waits until a leader has written this many rows. Returns its token.
async fn beats_of(leader: &str, rows: usize, witness: &Participant) -> Result<i64, DemoError> {
    let look = format!("SELECT token FROM beats WHERE run_by = '{leader}'");
    let written = async || {
        let tokens = tokens(&witness.must(&look).await?);
        Ok(tokens.first().copied().filter(|_| tokens.len() >= rows))
    };
    until(&format!("{leader} does not come to write"), written).await
}

fn tokens(rows: &[SimpleQueryRow]) -> Vec<i64> {
    rows.iter().filter_map(|row| number(row, "token")).collect()
}

/// A socket of the stage: the number in its name.
#[derive(Clone, Copy)]
pub(super) enum Route {
    Direct = 5432,
    Proxy = 6432,
}

pub(super) struct Participant {
    client: Client,
    /// Name in the transcript.
    pub(super) name: String,
}

impl Participant {
    /// A leader that presents its token.
    pub(super) async fn leader(name: &str, token: i64, folder: &Path, route: Route) -> Result<Self, DemoError> {
        let options = format!("-c lease.fence={token}");
        let client = connect(folder, route, "scheduler", Some(&options)).await?;
        Ok(Participant { client, name: format!("{name} (token {token})") })
    }

    /// A participant without a token, connected directly to PostgreSQL.
    pub(super) async fn direct(name: &str, folder: &Path) -> Result<Self, DemoError> {
        let client = connect(folder, Route::Direct, "postgres", None).await?;
        Ok(Participant { client, name: name.to_owned() })
    }

    /// Runs one statement and prints it with its response.
    pub(super) async fn say(&self, transcript: &Transcript, sql: &str) -> DemoReply {
        self.timed(transcript, sql).await.0
    }

    /// Like [`Self::say`], and measures the duration.
    pub(super) async fn timed(&self, transcript: &Transcript, sql: &str) -> (DemoReply, Duration) {
        let start = Instant::now();
        let answer = self.run(sql).await;
        let took = start.elapsed();
        transcript.statement(&self.name, sql, &answer);
        (answer, took)
    }

    pub(super) async fn run(&self, sql: &str) -> DemoReply {
        match self.client.simple_query(sql).await {
            Ok(messages) => DemoReply::Done(summary(sql, &messages)),
            Err(error) => match error.as_db_error() {
                Some(refusal) => DemoReply::Refused {
                    severity: refusal.severity().to_owned(),
                    code: refusal.code().code().to_owned(),
                    message: refusal.message().to_owned(),
                    detail: refusal.detail().unwrap_or_default().to_owned(),
                },
                None => DemoReply::Lost(error.to_string()),
            },
        }
    }

    /// Runs a statement that must succeed for the demo to be meaningful.
    pub(super) async fn must(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, DemoError> {
        query_rows(&self.client, sql).await.map_err(DemoError::Database)
    }

    /// Reads a tick from the table.
    pub(super) async fn row(&self, tick: &str) -> Result<Row, DemoError> {
        let rows = self.must(&format!("SELECT run_by, token FROM public.ticks WHERE tick = '{tick}'")).await?;
        let row = rows.first().ok_or_else(|| DemoError::Story(format!("the tick {tick} is not in the table")))?;
        Ok(Row { run_by: text(row, "run_by"), token: number(row, "token") })
    }
}

async fn connect(folder: &Path, route: Route, user: &str, options: Option<&str>) -> Result<Client, DemoError> {
    let mut config = Config::new();
    config.host_path(folder).port(route as u16).user(user).dbname("app");
    if let Some(options) = options {
        config.options(options);
    }
    let (client, connection) = config.connect(NoTls).await.map_err(DemoError::Database)?;
    // The session's next statement reports an error of the connection.
    tokio::spawn(connection);
    Ok(client)
}

/// The command tag as psql shows it; for a query, its first value.
fn summary(sql: &str, messages: &[SimpleQueryMessage]) -> String {
    let mut command = sql.split_whitespace().next().unwrap_or_default().to_owned();
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => return row.get(0).unwrap_or("nobody").to_owned(),
            SimpleQueryMessage::CommandComplete(rows) if command == "UPDATE" => command = format!("UPDATE {rows}"),
            _ => {}
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(severity: &str, code: &str) -> DemoReply {
        let (severity, code) = (severity.to_owned(), code.to_owned());
        DemoReply::Refused { severity, code, message: String::new(), detail: String::new() }
    }

    #[test]
    fn each_claim_can_fail() {
        let late = refused("ERROR", "LF001");
        assert_eq!(contradictions(&late, Some(75), &[2, 2, 3], (2, 3)), Vec::<String>::new());
        assert_eq!(contradictions(&refused("FATAL", "LF001"), Some(75), &[2, 3], (2, 3)).len(), 1);
        assert_eq!(contradictions(&refused("ERROR", "LF006"), Some(75), &[2, 3], (2, 3)).len(), 1);
        assert_eq!(contradictions(&late, Some(0), &[2, 3], (2, 3)).len(), 1);
        assert_eq!(contradictions(&late, Some(75), &[2, 3, 2], (2, 3)).len(), 1);
    }
}
