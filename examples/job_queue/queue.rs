//! The queue in the database: assigns jobs to workers and stores their reports.
//!
//! Owns the SQL of the jobs, the events and the metrics. Must never write a job without the token of its lease.

use hyper::StatusCode;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The oldest due job, and a lease on it. Other sessions skip the row while it is locked and while its lease runs.
/// Uncommitted entries of the ledger refer to the row but do not block this lock.
const CLAIM: &str = "WITH next AS MATERIALIZED (
        SELECT id FROM job WHERE state = 'queued' AND next_run_at <= now()
            AND NOT EXISTS (SELECT FROM fencegate.leader('job/' || id))
        ORDER BY next_run_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
    SELECT id, token, expires::text FROM next, fencegate.acquire('job/' || id, $1, $2::text::interval)";
/// Runs under the token: older holders can no longer write. Returns no row if another worker has just finished the job.
const START: &str = "UPDATE job SET state = 'running', attempts = attempts + 1, worker = $2,
        last_heartbeat_at = now(), must_heartbeat_before = $3::text::timestamptz
    WHERE id = $1 AND state = 'queued' AND next_run_at <= now()
    RETURNING json_build_object('id', id, 'token', fencegate.token('job/' || id), 'work', work,
        'attempts', attempts, 'must_heartbeat_before', must_heartbeat_before,
        'heartbeat_every', extract(epoch FROM $4::text::interval) / 3)::text";
const LOOK: &str = "SELECT state IN ('succeeded', 'failed') FROM job WHERE id = $1 AND worker = $2";
/// Records that the job is running or has succeeded, and renews its lease in the same transaction.
const REPORT: &str = "UPDATE job SET last_heartbeat_at = now(),
        must_heartbeat_before = fencegate.renew('job/' || id, $2, $3::text::interval), state = $4,
        output = $5::text::jsonb, processed_at = CASE $4 WHEN 'succeeded' THEN now() END
    WHERE id = $1 AND state = 'running' RETURNING state, must_heartbeat_before::text";
/// Retries after a delay that doubles, and gives up after the fourth attempt.
pub const RETRY: &str = "UPDATE job SET state = CASE WHEN attempts < 4 THEN 'queued' ELSE 'failed' END,
        next_run_at = now() + interval '100 ms' * 2 ^ attempts
    WHERE id = $1 AND state = 'running' RETURNING state, must_heartbeat_before::text";
const GAUGES: &str = "SELECT format(E'job_queue_depth %s\\njob_queue_running %s\\n'
        'job_queue_latency_seconds_sum %s\\njob_queue_latency_seconds_count %s\\n',
        count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'running'),
        coalesce(extract(epoch FROM sum(processed_at - enqueued_at)), 0), count(processed_at)) FROM job";
/// Active, expired, renewed or released leases.
pub const LIST: &str = "SELECT coalesce(json_agg(lease ORDER BY token), '[]')::text FROM lease
    WHERE status = $1 OR $1 = 'renewed' AND status = 'active' AND renewed > acquired";

pub type Answer = (StatusCode, Value);

/// An error response: status and reason.
pub struct Refusal(pub StatusCode, pub String);

/// Parameters of requests.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub struct Body {
    idempotency_key: String,
    work: Value,
    pub worker: String,
    token: i64,
    output: Value,
    pub running: bool,
}

pub struct Queue {
    pub replica: String,
    pub database: Config,
    pub ttl: String,
    /// Number of events of each kind on this replica.
    pub events: Mutex<BTreeMap<&'static str, u64>>,
}

impl Queue {
    /// Opens a session for each request, so there is nothing to repair after a crash of the server. A busier service
    /// would use a pool and run `SET lease.fence` when it takes a connection.
    pub async fn connect(&self, fence: &str) -> Result<Client, tokio_postgres::Error> {
        let mut config = self.database.clone();
        config.application_name(&self.replica).options(format!("-c lease.fence={fence}"));
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Creates the job once per idempotency key, however often the request is sent.
    pub async fn enqueue(&self, body: &Body) -> Result<Answer, Refusal> {
        let db = self.connect("").await?;
        let insert =
            "INSERT INTO job (idempotency_key, work) VALUES ($1, $2::text::jsonb) ON CONFLICT DO NOTHING RETURNING id";
        if let Some(row) = db.query_opt(insert, &[&body.idempotency_key, &body.work.to_string()]).await? {
            self.event("job_enqueued", json!({"resource": format!("job/{}", row.get::<_, i64>(0))}));
            return Ok((StatusCode::CREATED, json!({"id": row.get::<_, i64>(0)})));
        }
        let row = db.query_one("SELECT id FROM job WHERE idempotency_key = $1", &[&body.idempotency_key]).await?;
        Ok((StatusCode::OK, json!({"id": row.get::<_, i64>(0)})))
    }

    /// Returns a job with the token of its lease; 204 if there is none.
    pub async fn next(&self, worker: &str) -> Result<Answer, Refusal> {
        let db = self.connect("").await?;
        if let Some(claimed) = db.query_opt(CLAIM, &[&worker, &self.ttl]).await? {
            let (id, token, expires): (i64, i64, String) = (claimed.get(0), claimed.get(1), claimed.get(2));
            db.batch_execute(&format!("SET lease.fence = 'job/{id}={token}'")).await?;
            if let Some(job) = db.query_opt(START, &[&id, &worker, &expires, &self.ttl]).await? {
                let resource = format!("job/{id}");
                self.event("lease_acquired", json!({"resource": resource, "token": token, "worker": worker}));
                return Ok((StatusCode::OK, serde_json::from_str(job.get(0)).map_err(Refusal::request)?));
            }
            release(&db, id, token).await?;
        }
        Ok((StatusCode::NO_CONTENT, Value::Null))
    }

    /// Handles a heartbeat, success or failure. 202: accepted. 200: the worker has no such job. 409: the job has been
    /// processed already, or the lease is lost; the worker then discards its work.
    pub async fn report(&self, id: i64, report: &str, body: &Body) -> Result<Answer, Refusal> {
        let refuse = |status, message: &str| Err(Refusal(status, message.into()));
        let (Body { worker, token, .. }, output) = (body, body.output.to_string());
        let db = self.connect(&format!("job/{id}={token}")).await?;
        match db.query_opt(LOOK, &[&id, worker]).await?.map(|job| job.get(0)) {
            None => return refuse(StatusCode::OK, "this worker has no such job"),
            Some(true) => return refuse(StatusCode::CONFLICT, "the job has been processed already"),
            Some(false) => {}
        }
        let (sql, parameters): (_, &[&(dyn ToSql + Sync)]) = match report {
            "heartbeat" => (REPORT, &[&id, token, &self.ttl, &"running", &output]),
            "complete" => (REPORT, &[&id, token, &self.ttl, &"succeeded", &output]),
            _ => (RETRY, &[&id]),
        };
        let fields = json!({"resource": format!("job/{id}"), "token": token, "worker": worker});
        let row = match db.query_opt(sql, parameters).await {
            Ok(Some(row)) => row,
            Err(error) if !is_stale(&error) => return Err(error.into()),
            _ => {
                self.event("stale_write_blocked", fields);
                return refuse(StatusCode::CONFLICT, "the lease has expired");
            }
        };
        let (state, deadline): (&str, &str) = (row.get(0), row.get(1));
        let event = match state {
            "running" => "lease_renewed",
            "queued" => "job_retried",
            "failed" => "job_failed",
            _ => "job_succeeded",
        };
        self.event(event, fields);
        if state != "running" {
            release(&db, id, *token).await?;
        }
        Ok((StatusCode::ACCEPTED, json!({"state": state, "must_heartbeat_before": deadline})))
    }

    /// Returns the JSON of a single row.
    pub async fn ask(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Answer, Refusal> {
        let row = self.connect("").await?.query_one(sql, parameters).await?;
        Ok((StatusCode::OK, serde_json::from_str(row.get(0)).map_err(Refusal::request)?))
    }

    /// Metrics for Prometheus. The gauges describe the queue and are the same on all replicas; the counters are of this
    /// replica.
    pub async fn metrics(&self) -> Result<Answer, Refusal> {
        let mut page: String = self.connect("").await?.query_one(GAUGES, &[]).await?.get(0);
        for (event, count) in &*self.events.lock().unwrap_or_else(PoisonError::into_inner) {
            page += &format!("job_queue_events_total{{event=\"{event}\"}} {count}\n");
        }
        Ok((StatusCode::OK, Value::String(page)))
    }

    /// Prints a line in the format of the proxy's log, and counts the event.
    pub fn event(&self, event: &'static str, fields: Value) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner).entry(event).or_default() += 1;
        let mut timestamp = String::new();
        // Writing to a String cannot fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        let (replica, fields) = (json!(self.replica), fields.to_string());
        println!("{{\"timestamp\":\"{timestamp}\",\"event\":\"{event}\",\"replica\":{replica},{}", &fields[1..]);
    }
}

/// True if the lease has ended: another worker has a higher token, or no worker has one.
fn is_stale(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| ["LF001", "LF005"].contains(&code.code()))
}

/// Releases the lease, so that other workers need not wait until it expires.
pub async fn release(db: &Client, id: i64, token: i64) -> Result<(), tokio_postgres::Error> {
    db.execute("SELECT fencegate.release('job/' || $1::bigint, $2)", &[&id, &token]).await.map(drop)
}

impl Refusal {
    pub fn request(error: impl std::fmt::Display) -> Self {
        Refusal(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl From<tokio_postgres::Error> for Refusal {
    fn from(error: tokio_postgres::Error) -> Self {
        let message = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().into());
        Refusal(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}
