//! The cron in shards: each shard of the jobs has its own election and token. One lease covers all elections that this
//! process leads.

use crate::node::{Member, time_of_day};
use fencegate_leader::{Election, Leadership};
use futures_util::future::try_join_all;
use std::convert::Infallible;
use std::error::Error;
use std::time::{Duration, SystemTime};
use tokio::time::sleep;
use tokio_postgres::NoTls;

/// Raises the shard's fence before reading its last tick.
const LAST: &str = "SELECT last FROM shards WHERE shard = $1 FOR UPDATE";
const WRITE: &str = "INSERT INTO shard_ticks (shard, job, tick, node) VALUES ($1, $2, $3, $4)";
const DONE: &str = "UPDATE shards SET last = $2 WHERE shard = $1";

#[derive(clap::Args)]
pub struct Shards {
    #[command(flatten)]
    member: Member,
    /// Number of shards; must never change
    #[arg(long)]
    shards: i32,
    /// Shards to campaign for immediately; the others follow after a TTL
    #[arg(long, value_delimiter = ',')]
    home: Vec<i32>,
    /// Jobs to run at each tick
    jobs: Vec<String>,
}

impl Shards {
    /// Campaigns for all shards until the process ends.
    pub async fn run(self) -> Result<Infallible, Box<dyn Error>> {
        let session = self.member.election()?.session()?;
        let elections = (0..self.shards).map(|shard| Ok((shard, session.election(format!("/cron/shard/{shard}"))?)));
        let elections: Vec<_> = elections.collect::<Result<_, Box<dyn Error>>>()?;
        try_join_all(elections.iter().map(|(shard, election)| self.campaign(*shard, election))).await?;
        Err("there are no shards".into())
    }

    async fn campaign(&self, shard: i32, election: &Election) -> Result<Infallible, Box<dyn Error>> {
        if !self.home.contains(&shard) {
            sleep(Duration::from_secs(self.member.ttl)).await;
        }
        loop {
            let leadership = election.campaign().await?;
            println!("{} leads shard {shard} under token {}", self.member.id, leadership.token());
            match leadership.run(self.work(shard, &leadership)).await {
                Ok(Ok(never)) => match never {},
                Ok(Err(error)) => println!("{} stops in shard {shard}: {error}", self.member.id),
                Err(lost) => println!("{} lost shard {shard}: {lost}", self.member.id),
            }
            leadership.resign().await.ok();
        }
    }

    /// Writes one row per tick for each job of the shard. Returns only on an error.
    async fn work(&self, shard: i32, leadership: &Leadership) -> Result<Infallible, Box<dyn Error>> {
        let client = leadership.connect(&self.member.database, NoTls).await?;
        let last: Option<SystemTime> = client.query_one(LAST, &[&shard]).await?.try_get(0)?;
        let mut ticker = self.member.ticker(last);
        loop {
            let tick = ticker.tick().await.at;
            client.batch_execute("BEGIN").await?;
            for job in self.jobs.iter().filter(|job| hash(job) % self.shards.unsigned_abs() == shard.unsigned_abs()) {
                client.execute(WRITE, &[&shard, job, &tick, &self.member.id]).await?;
            }
            client.execute(DONE, &[&shard, &tick]).await?;
            client.batch_execute("COMMIT").await?;
            println!("{} ran shard {shard} at {}", self.member.id, time_of_day(tick));
        }
    }
}

/// FNV-1a: the same result in every process and version.
fn hash(job: &str) -> u32 {
    job.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
