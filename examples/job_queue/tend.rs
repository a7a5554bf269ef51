//! Background work of each replica: takes back the jobs of dead workers, and generates jobs while the generator runs.
//!
//! Owns the reconciler and the generator. Like workers, must never write without a lease.

use crate::queue::{Queue, RETRY, Refusal, release};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(200);
const ACQUIRE: &str = "SELECT token FROM fencegate.acquire($1, $2, $3::text::interval)";
/// Locks the generator's row. Stopping the generator therefore waits for the job in progress, and no job follows.
const GENERATE: &str = "WITH wanted AS (SELECT FROM generator WHERE running FOR SHARE),
        made AS (INSERT INTO generated (token) SELECT fencegate.token('generator') FROM wanted RETURNING n)
    INSERT INTO job (idempotency_key, work) SELECT 'generated/' || n, '{\"amount\": 1}' FROM made";
/// Any replica can answer: the state of the generator and the replica that runs it are in the database.
pub const STATUS: &str = "SELECT json_build_object('running', running, 'made', (SELECT count(*) FROM generated),
    'by', (SELECT holder FROM fencegate.leader('generator')))::text FROM generator";
pub const SWITCH: &str = "UPDATE generator SET running = $1 RETURNING to_json(generator)::text";
const SILENT: &str = "SELECT id FROM job WHERE state = 'running' AND must_heartbeat_before < now() LIMIT 100";

/// Never returns.
pub async fn tend(queue: Arc<Queue>) {
    loop {
        for error in [queue.generate().await.err(), queue.reconcile().await.err()].into_iter().flatten() {
            queue.event("tending_failed", json!({"error": error.1}));
        }
        tokio::time::sleep(PERIOD).await;
    }
}

impl Queue {
    /// Generates a job on one of the replicas, if the generator runs.
    async fn generate(&self) -> Result<(), Refusal> {
        let db = self.connect("").await?;
        let Some(lease) = db.query_opt(ACQUIRE, &[&"generator", &self.replica, &self.ttl]).await? else {
            return Ok(());
        };
        let token: i64 = lease.get(0);
        db.batch_execute(&format!("SET lease.fence = 'generator={token}'")).await?;
        if db.execute(GENERATE, &[]).await? > 0 {
            self.event("job_generated", json!({"resource": "generator", "token": token}));
        }
        Ok(())
    }

    /// Takes back the jobs of workers that no longer report. The replica leads the job for that moment, so the worker
    /// can no longer write.
    async fn reconcile(&self) -> Result<(), Refusal> {
        let (db, holder) = (self.connect("").await?, format!("{}/reconciler", self.replica));
        for row in db.query(SILENT, &[]).await? {
            let (id, resource) = (row.get::<_, i64>(0), format!("job/{}", row.get::<_, i64>(0)));
            let Some(lease) = db.query_opt(ACQUIRE, &[&resource, &holder, &self.ttl]).await? else { continue };
            let token: i64 = lease.get(0);
            db.batch_execute(&format!("SET lease.fence = '{resource}={token}'")).await?;
            if let Some(row) = db.query_opt(RETRY, &[&id]).await? {
                let fields = json!({"resource": resource, "token": token});
                self.event("lease_expired", fields.clone());
                self.event(if row.get::<_, &str>(0) == "failed" { "job_failed" } else { "job_recovered" }, fields);
            }
            release(&db, id, token).await?;
        }
        Ok(())
    }
}
