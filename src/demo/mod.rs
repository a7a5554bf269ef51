//! `fencegate demo`: the effect of a deposed leader's late write, without and with the proxy.
//!
//! Owns the sequence of the demo. Its proxy is this program, started as a user would start it.
//! The zombie's write succeeds without the proxy, and fails with it in four variants.
//! Must never claim a result that was not read from the table, print one before `check` has examined it, or leave anything
//! behind.
//!
//! Unless documented otherwise, functions are not cancel-safe: dropping a scene leaves it unfinished.

mod check;
mod takeover;
mod transcript;

pub use transcript::DemoError;

use crate::stage::Stage;
use check::{DemoReply, Fate, Row, Scene, contradictions};
use std::time::Duration;
use takeover::{Participant, Route, Takeover};
use tokio::time::sleep;
use transcript::{PATIENCE, Transcript, milliseconds, until};

/// Policies of the demo's proxy.
const POLICIES: &str = "version: 1
resources:
  - name: scheduler
    tables:
      - public.ticks
  - name: beats
    election: /demo/leader
    tables:
      - public.beats
";

/// Runs the demo.
/// Cancel-safe: when dropped, it stops its servers and removes its folder.
pub async fn run() -> Result<Played, DemoError> {
    let mut transcript = Transcript::new();
    transcript.line("fencegate demo: a cron scheduler on two nodes, A and B. Only the leader may run a tick.");
    transcript.line("Each election gives its winner a higher token; public.ticks says who ran each tick.");
    transcript.line("Starting a throwaway PostgreSQL, etcd, and fencegate in front ...");
    let stage = Stage::start(&std::env::current_exe()?, POLICIES).await?;
    play(&stage, &mut transcript).await
}

/// Result of the demo.
#[derive(Debug)]
pub struct Played {
    /// Failed expectations; empty on success.
    pub failures: Vec<String>,
    /// The events of the last scene, for `fencegate timeline`.
    pub events: String,
}

/// Duration of a leader's pause, as in a garbage collection, a paused machine or a full disk.
const PAUSE: Duration = Duration::from_millis(300);

const SETUP: &str = "CREATE ROLE scheduler LOGIN; \
    CREATE TABLE public.ticks (tick text PRIMARY KEY, run_by text, token bigint); \
    GRANT SELECT, UPDATE ON public.ticks TO scheduler; \
    INSERT INTO public.ticks VALUES ('11:59'), ('12:00'), ('12:01'), ('12:02'), ('12:03')";

/// Runs all scenes.
async fn play(stage: &Stage, transcript: &mut Transcript) -> Result<Played, DemoError> {
    let witness = Participant::direct("witness", stage.folder()).await?;
    witness.must(SETUP).await?;
    let mut failures = Vec::new();
    let mut takeovers = Vec::new();

    transcript.scene("1. Without fencegate: both leaders write to PostgreSQL directly");
    let (scene, _) = late_write("12:00", Route::Direct, Fate::Lands, stage, transcript).await?;
    failures.extend(verify(1, scene, &witness, transcript).await?);

    transcript.scene("2. With fencegate: the same");
    let (scene, took) = late_write("12:01", Route::Proxy, Fate::Rejected, stage, transcript).await?;
    failures.extend(verify(2, scene, &witness, transcript).await?);
    takeovers.push(took);

    transcript.scene("3. With fencegate: the old leader's UPDATE is already running, and waits for a lock");
    let scene = waiting_write("12:02", &witness, stage, transcript).await?;
    failures.extend(verify(3, scene, &witness, transcript).await?);

    transcript.scene("4. With fencegate: the old leader has written, not committed, and hangs");
    let (scene, took) = open_transaction("12:03", stage, transcript).await?;
    failures.extend(verify(4, scene, &witness, transcript).await?);
    takeovers.push(took);

    transcript.scene("5. With fencegate and etcd: the leader's machine freezes, then wakes up");
    let before = stage.log().len();
    let Takeover { contradictions: found, took: failover, log } = takeover::play(stage, &witness, transcript).await?;
    let events = events(&log) + &events(stage.log().get(before..).unwrap_or_default());
    let right = "RIGHT: the stale write was rejected; no row has a lower token than one before it.";
    transcript.result(found.is_empty(), if found.is_empty() { right } else { "FAILED: not as claimed" });
    failures.extend(found.into_iter().map(|what| format!("scene 5: {what}")));

    if failures.is_empty() {
        let takeovers: Vec<String> = takeovers.into_iter().map(milliseconds).collect();
        transcript.line("");
        transcript.line("Without fencegate the zombie's write landed over its successor's. With it, 4 of 4 did not.");
        transcript
            .line(&format!("Takeover, from the new leader's first write to its success: {}.", takeovers.join(", ")));
        transcript.line(&format!(
            "Failover, from the leader's freeze to its successor's first write, with a lease of 2 s: {}.",
            milliseconds(failover)
        ));
    }
    Ok(Played { failures, events })
}

/// The events in a log, without lines of other programs.
fn events(log: &str) -> String {
    log.lines().filter(|line| line.starts_with("{\"timestamp\"")).map(|line| format!("{line}\n")).collect()
}

/// A pauses between the decision to write and the write; B takes over and writes; A resumes.
async fn late_write(
    tick: &'static str,
    route: Route,
    fate: Fate,
    stage: &Stage,
    transcript: &Transcript,
) -> Result<(Scene, Duration), DemoError> {
    let a = Participant::leader("A", 41, stage.folder(), route).await?;
    let b = Participant::leader("B", 42, stage.folder(), route).await?;
    done(a.say(transcript, &run_tick("11:59", "A", 41)).await)?;
    done(a.say(transcript, "BEGIN").await)?;
    done(a.say(transcript, &format!("SELECT run_by FROM ticks WHERE tick='{tick}'")).await)?;
    transcript.event(&a.name, "... hangs; its lease expires, and B is elected");
    sleep(PAUSE).await;
    let (successor, took) = b.timed(transcript, &run_tick(tick, "B", 42)).await;
    transcript.event(&a.name, "wakes up, and still believes that it leads");
    let mut zombie = a.say(transcript, &run_tick(tick, "A", 41)).await;
    if let DemoReply::Done(_) = zombie {
        zombie = a.say(transcript, "COMMIT").await;
    } else {
        done(a.say(transcript, "ROLLBACK").await)?;
    }
    Ok((Scene { tick, fate, expected: row_for(fate, (41, 42)), successor, zombie }, took))
}

/// A's UPDATE is waiting for a row lock when B takes over.
async fn waiting_write(
    tick: &'static str,
    witness: &Participant,
    stage: &Stage,
    transcript: &Transcript,
) -> Result<Scene, DemoError> {
    let a = Participant::leader("A", 43, stage.folder(), Route::Proxy).await?;
    let b = Participant::leader("B", 44, stage.folder(), Route::Proxy).await?;
    let report = Participant::direct("a report", stage.folder()).await?;
    done(report.say(transcript, "BEGIN").await)?;
    done(report.say(transcript, &format!("SELECT 'locked' FROM ticks WHERE tick='{tick}' FOR SHARE")).await)?;
    transcript.event(&a.name, &format!("{} ... waits", run_tick(tick, "A", 43)));
    let zombie = async {
        let sql = run_tick(tick, "A", 43);
        let answer = a.run(&sql).await;
        transcript.statement(&a.name, "the UPDATE that waited", &answer);
        // A's lock is gone with its session, so another session can continue.
        report.say(transcript, "COMMIT").await;
        answer
    };
    let successor = async {
        until_waiting(witness).await?;
        transcript.event(&b.name, &format!("is elected: {}", run_tick(tick, "B", 44)));
        let answer = b.run(&run_tick(tick, "B", 44)).await;
        transcript.statement(&b.name, "its UPDATE, once the report has ended", &answer);
        Ok::<_, DemoError>(answer)
    };
    let both = async { tokio::join!(zombie, successor) };
    let stuck = |_| DemoError::Story("the waiting UPDATE was not ended".to_owned());
    let (zombie, successor) = tokio::time::timeout(PATIENCE, both).await.map_err(stuck)?;
    let fate = Fate::CutOff("unknown");
    Ok(Scene { tick, fate, expected: row_for(fate, (43, 44)), successor: successor?, zombie })
}

/// A pauses with an uncommitted write; B takes over and writes the same row.
async fn open_transaction(
    tick: &'static str,
    stage: &Stage,
    transcript: &Transcript,
) -> Result<(Scene, Duration), DemoError> {
    let a = Participant::leader("A", 45, stage.folder(), Route::Proxy).await?;
    let b = Participant::leader("B", 46, stage.folder(), Route::Proxy).await?;
    done(a.say(transcript, "BEGIN").await)?;
    done(a.say(transcript, &run_tick(tick, "A", 45)).await)?;
    transcript.event(&a.name, "... hangs, and holds the row's lock; B is elected");
    sleep(PAUSE).await;
    let (successor, took) = b.timed(transcript, &run_tick(tick, "B", 46)).await;
    transcript.event(&a.name, "wakes up");
    let zombie = a.say(transcript, "COMMIT").await;
    let fate = Fate::CutOff("rolled_back");
    Ok((Scene { tick, fate, expected: row_for(fate, (45, 46)), successor, zombie }, took))
}

/// Reads the row through a separate connection, compares it, and prints the result.
async fn verify(
    number: usize,
    scene: Scene,
    witness: &Participant,
    transcript: &Transcript,
) -> Result<Vec<String>, DemoError> {
    let row = witness.row(scene.tick).await?;
    transcript.event("public.ticks", &format!("{}: {row}", scene.tick));
    let found = contradictions(&scene, &row);
    match scene.fate {
        _ if !found.is_empty() => transcript.result(false, "FAILED: not as claimed"),
        Fate::Lands => transcript.result(false, "WRONG: the deposed leader's write is the one that stands."),
        Fate::Rejected => transcript.result(true, "RIGHT: the stale write was rejected; the successor's stands."),
        Fate::CutOff(_) => {
            transcript.result(true, "RIGHT: the old leader was cut off; only the successor's write stands.")
        }
    }
    Ok(found.into_iter().map(|what| format!("scene {number}: {what}")).collect())
}

/// Waits until the server shows that a leader's UPDATE is waiting for a lock.
async fn until_waiting(witness: &Participant) -> Result<(), DemoError> {
    let look = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'scheduler' AND wait_event_type = 'Lock'";
    let waits = async || Ok((witness.run(look).await == DemoReply::Done("1".to_owned())).then_some(()));
    until("the old leader's UPDATE does not wait for a lock", waits).await
}

/// A leader's work: it records that it ran the tick, and its token.
fn run_tick(tick: &str, leader: &str, token: i64) -> String {
    format!("UPDATE ticks SET run_by='{leader}', token={token} WHERE tick='{tick}'")
}

fn row_for(fate: Fate, (old, new): (i64, i64)) -> Row {
    match fate {
        Fate::Lands => Row::of("A", old),
        Fate::Rejected | Fate::CutOff(_) => Row::of("B", new),
    }
}

/// Checks a statement that must succeed before the story can continue.
fn done(answer: DemoReply) -> Result<(), DemoError> {
    match answer {
        DemoReply::Done(_) => Ok(()),
        other => Err(DemoError::Story(other.to_string())),
    }
}
