//! One node of the cron. Start your own program from here.
//!
//! Campaigns in an election. As leader, the node writes one row per tick, in a session with its fencing token.

use fencegate::config::{Address, EtcdArguments, http_address};
use fencegate::metrics::LeaderMetrics;
use fencegate::metrics::http;
use fencegate_leader::etcd::Etcd;
use fencegate_leader::{Election, ElectionBuilder, ElectionName, Leadership, Ticker};
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{Client, Config, NoTls};

/// Raises the fence and shuts out every older leader before anything is read, so that the data behind a decision cannot
/// change.
const LOCK: &str = "LOCK TABLE ticks IN SHARE ROW EXCLUSIVE MODE";
const LAST: &str = "SELECT max(tick) FROM ticks";
const WRITE: &str = "INSERT INTO ticks (tick, node) VALUES ($1, $2)";

/// Options of every node.
#[derive(clap::Args)]
pub struct Member {
    #[command(flatten)]
    etcd: EtcdArguments,
    /// Name of this node
    #[arg(long)]
    pub id: String,
    /// Lease TTL in seconds
    #[arg(long)]
    pub ttl: u64,
    /// Time between two ticks, in seconds
    #[arg(long)]
    pub period: u64,
    /// Connection string of the database for the ticks
    #[arg(long)]
    pub database: Config,
}

impl Member {
    pub fn election(&self) -> Result<ElectionBuilder, Box<dyn Error>> {
        let settings = self.etcd.settings()?;
        let etcd = Etcd::new(&settings.ok_or("--etcd is missing")?)?;
        Ok(Election::on(etcd).holder(&self.id).ttl(Duration::from_secs(self.ttl)))
    }

    /// Continues after the last tick, if there is one.
    pub fn ticker(&self, last: Option<SystemTime>) -> Ticker {
        let period = Duration::from_secs(self.period);
        last.map_or_else(|| Ticker::new(period), |last| Ticker::after(period, last))
    }
}

#[derive(clap::Args)]
pub struct Node {
    #[command(flatten)]
    member: Member,
    #[arg(long)]
    election: ElectionName,
    /// Address for metrics: host:port
    #[arg(long, value_parser = http_address)]
    http: Option<Address>,
    /// Keep writing after leadership is lost, like a program that was paused or rarely checks
    #[arg(long)]
    oblivious: bool,
}

impl Node {
    /// Campaigns until SIGTERM.
    pub async fn run(self) -> Result<(), Box<dyn Error>> {
        let metrics = Arc::new(LeaderMetrics::new()?);
        let election = self.member.election()?.name(&self.election).meter(metrics.clone()).build()?;
        let _served = match &self.http {
            Some(Address::Tcp { host, port }) => Some(http::Endpoint::bind(host, *port).await?.serve(metrics)),
            _ => None,
        };
        let mut terminate = signal(SignalKind::terminate())?;
        loop {
            let leadership = tokio::select! {
                won = election.campaign() => won?,
                _ = terminate.recv() => return Ok(()),
            };
            self.say(&format!("leads under token {}", leadership.token()));
            tokio::select! {
                Err(error) = self.work(&leadership) => self.say(&format!("stops: {error}")),
                loss = leadership.lost(), if !self.oblivious => self.say(&format!("lost: {loss}")),
                _ = terminate.recv() => {
                    // `select!` has dropped the work, so the next leader may begin.
                    leadership.resign().await?;
                    self.say("resigned");
                    return Ok(());
                }
            }
            leadership.resign().await.ok();
        }
    }

    /// Writes one row per tick. Returns only on an error.
    async fn work(&self, leadership: &Leadership) -> Result<Infallible, Box<dyn Error>> {
        if self.oblivious {
            let client = self.connect_for_ever(leadership).await?;
            return self.tick(&client).await;
        }
        // The library closes this connection when leadership is lost.
        let client = leadership.connect(&self.member.database, NoTls).await?;
        self.tick(&client).await
    }

    async fn tick(&self, client: &Client) -> Result<Infallible, Box<dyn Error>> {
        client.batch_execute("BEGIN").await?;
        client.batch_execute(LOCK).await?;
        let last: Option<SystemTime> = client.query_one(LAST, &[]).await?.try_get(0)?;
        client.batch_execute("COMMIT").await?;
        let mut ticker = self.member.ticker(last);
        loop {
            let tick = ticker.tick().await;
            if tick.skipped > 0 {
                self.say(&format!("skipped {}", tick.skipped));
            }
            match client.execute(WRITE, &[&tick.at, &self.member.id]).await {
                Ok(_) => self.say(&format!("tick {}", time_of_day(tick.at))),
                Err(error) => match error.code() {
                    Some(code) if self.oblivious && code.code() == "LF001" => {
                        self.say(&format!("late write for {} rejected: LF001", time_of_day(tick.at)));
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// Opens a session with the token, like `leadership.connect`, but one that outlives the leadership.
    async fn connect_for_ever(&self, leadership: &Leadership) -> Result<Client, tokio_postgres::Error> {
        let mut config = self.member.database.clone();
        let (client, connection) =
            config.options(format!("-c lease.fence={}", leadership.token())).connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    fn say(&self, what: &str) {
        println!("{} {what}", self.member.id);
    }
}

/// In UTC.
pub fn time_of_day(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
