//! A leader that uses the library, in a separate process, so that it can be stopped and killed.
//!
//! It is as careless as real programs: once it leads, it writes until a write is refused, even after it was notified of
//! its loss. Its diary has a line for each write with a known outcome, as in the history.

use super::Way;
use super::history::{Outcome, Write as Entry, now};
use fencegate_leader::{Election, Leadership};
use fencegate_testing::dice::Dice;
use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

/// The shortest lease that etcd grants.
pub const TTL: Duration = Duration::from_secs(2);
/// Time limit of a connection. Longer than a takeover.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of writes by a session that fail or follow the loss of leadership.
const CARELESS: usize = 20;

/// Updates a row that all leaders share.
const PROGRESS: &str = "UPDATE progress SET writes = writes + 1";
/// Represents other work within a transaction, and its duration.
const PAUSE: &str = "";
const WORK: Duration = Duration::from_millis(30);

/// One of the sessions of a leader.
struct Writer {
    name: String,
    doors: Vec<u16>,
    way: Way,
    diary: File,
    dice: Dice,
    writes: usize,
}

/// Started by the torture, with settings in the environment. Does nothing without them.
#[tokio::test]
#[ignore = "a process of the torture"]
async fn leads() {
    let Ok(name) = env::var("TORTURE_NAME") else { return };
    let election = Election::etcd(list("TORTURE_ETCD")).name(super::ELECTION).holder(&name).ttl(TTL).build().unwrap();
    let mut writers = [1, 2, 3].map(|number| Writer::new(format!("{name}-{number}"), number));
    loop {
        match election.campaign().await {
            Ok(leadership) => {
                let [one, two, three] = &mut writers;
                tokio::join!(one.rule(&leadership), two.rule(&leadership), three.rule(&leadership));
            }
            // etcd is unavailable.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

fn setting(name: &str) -> String {
    env::var(name).unwrap()
}

fn list(name: &str) -> Vec<String> {
    setting(name).split(',').map(str::to_owned).collect()
}

impl Writer {
    fn new(name: String, number: u64) -> Self {
        let seed = setting("TORTURE_SEED").parse::<u64>().unwrap() + u64::from(std::process::id()) * 3 + number;
        Self {
            name,
            doors: list("TORTURE_DOORS").iter().map(|port| port.parse().unwrap()).collect(),
            way: setting("TORTURE_WAY").parse().unwrap(),
            diary: OpenOptions::new().append(true).create(true).open(setting("TORTURE_DIARY")).unwrap(),
            dice: Dice::new(seed),
            writes: 0,
        }
    }

    /// Writes as a leader. After the loss, returns only after several more attempts to write.
    async fn rule(&mut self, leadership: &Leadership) {
        let mut careless = CARELESS;
        while careless > 0 {
            let Some(client) = self.connect(leadership.token().get()).await else {
                careless -= usize::from(leadership.check().is_err());
                sleep(Duration::from_millis(50)).await;
                continue;
            };
            for _ in 0..self.dice.between(5, 60) {
                let written = self.write(&client, leadership.token().get()).await;
                if leadership.check().is_err() || written != Outcome::Ok {
                    careless = careless.saturating_sub(1);
                }
                if careless == 0 || matches!(written, Outcome::CutOff | Outcome::Unknown) {
                    break;
                }
                sleep(Duration::from_millis(self.dice.below(20) as u64)).await;
            }
            // Resign, but continue to write for a while.
            if self.dice.chance(20) {
                let _ = timeout(PATIENCE, leadership.resign()).await;
            }
        }
        let _ = timeout(PATIENCE, leadership.resign()).await;
    }

    async fn connect(&mut self, token: i64) -> Option<Client> {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(*self.dice.pick(&self.doors)).user("postgres").dbname("postgres");
        config.options(format!("-c lease.fence={token}"));
        let (client, connection) = timeout(PATIENCE, config.connect(NoTls)).await.ok()?.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    async fn write(&mut self, client: &Client, token: i64) -> Outcome {
        self.writes += 1;
        let invoke = now();
        let note = format!("{}/{invoke}/{}", self.name, self.writes);
        let insert = self.way.insert(token, &note);
        let write = async {
            match self.dice.below(6) {
                _ if self.way == Way::Checked => self.run(client, &["BEGIN", &insert, PAUSE, "COMMIT"]).await,
                0 => self.run(client, &[&insert]).await,
                1 => self.run(client, &[&insert.replace("INTO ticks", "INTO ticks_view")]).await,
                2 => self.run(client, &[&format!("BEGIN; {insert}; COMMIT")]).await,
                3 => self.run(client, &["BEGIN", &insert, PROGRESS, "COMMIT"]).await,
                4 => self.run(client, &["BEGIN", &insert, PAUSE, "COMMIT"]).await,
                _ => Outcome::of(
                    client.execute("INSERT INTO ticks (token, note) VALUES ($1, $2)", &[&token, &note]).await.err(),
                ),
            }
        };
        let outcome = timeout(PATIENCE, write).await.unwrap_or(Outcome::Unknown);
        if outcome != Outcome::Unknown {
            let (client, returned) = (self.name.clone(), Some(now()));
            let entry = Entry { client, token, value: note, invoke, returned, outcome, commit: None };
            // In one piece, because the process may be killed.
            self.diary.write_all((serde_json::to_string(&entry).unwrap() + "\n").as_bytes()).unwrap();
        }
        outcome
    }

    /// The last statement commits.
    async fn run(&self, client: &Client, statements: &[&str]) -> Outcome {
        for statement in statements {
            if *statement == PAUSE {
                sleep(WORK).await;
                continue;
            }
            if let Err(error) = client.batch_execute(statement).await {
                let _ = client.batch_execute("ROLLBACK").await;
                return Outcome::of(Some(error));
            }
        }
        Outcome::Ok
    }
}
