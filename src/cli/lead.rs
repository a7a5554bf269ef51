//! `fencegate lead`: wins an election, runs a command while leadership lasts, then resigns. `fencegate leases`: lists the leaders,
//! as a database with leases or etcd reports them.

use super::output::{Ended, database, failed, print, runtime, table, unusable};
use crate::config::{Address, EtcdAccess, EtcdArguments, SettingError, duration, http_address};
use crate::metrics::{LeaderMetrics, http};
use clap::builder::NonEmptyStringValueParser;
use fencegate_leader::command::{self, Access, CommandError, CommandOutcome, Signals, Terms};
use fencegate_leader::coordinator::Coordinator;
use fencegate_leader::etcd::{Etcd, leaders};
use fencegate_leader::{
    BuildError, Election, ElectionBuilder, ElectionName, Error, Leader, Leadership, Leases, Patience, RunningLease,
};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Builder;
use tokio::time::timeout;
use x509_cert::der::DateTime;

/// The coordinator cannot be reached (EX_UNAVAILABLE of sysexits.h).
const EXIT_UNREACHABLE: u8 = 69;
/// Leadership was lost and the command was ended. A retry may succeed (EX_TEMPFAIL).
const EXIT_LOST: u8 = 75;

const COORDINATOR: &str = "FENCEGATE_COORDINATOR";
/// Default exit code when another candidate leads and the wait is over.
const EXIT_CONFLICT: &str = "73";

/// The coordinator, and how to reach it.
#[derive(clap::Args)]
struct CoordinatorArguments {
    #[command(flatten)]
    etcd: EtcdArguments,
    /// Use a database with leases instead of etcd: postgres://user@host/database
    #[arg(long, env = COORDINATOR, hide_env_values = true, value_name = "URL", conflicts_with = "etcd")]
    coordinator: Option<String>,
}

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    coordinator: CoordinatorArguments,
    /// Name of the election; candidates with the same name compete
    #[arg(long, env = "FENCEGATE_ELECTION", value_name = "NAME")]
    election: ElectionName,
    /// Lease TTL in whole seconds: another candidate can lead after this time if this machine fails
    #[arg(long, env = "FENCEGATE_TTL", value_name = "TIME", default_value = "10s", value_parser = duration)]
    ttl: Duration,
    /// Name of this candidate [default: host name and process ID]
    #[arg(long, env = "FENCEGATE_ID", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// Time between SIGTERM and SIGKILL for a command that must end immediately
    #[arg(long, env = "FENCEGATE_KILL_AFTER", value_name = "TIME", default_value = "1s", value_parser = seconds)]
    kill_after: Duration,
    /// Exit immediately if another candidate leads
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Exit if another candidate still leads after this time
    #[arg(long, env = "FENCEGATE_WAIT", value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// Exit code for --no-wait and --wait
    #[arg(long, env = "FENCEGATE_CONFLICT_EXIT_CODE", value_name = "N", default_value = EXIT_CONFLICT)]
    conflict_exit_code: u8,
    /// Address for metrics and health: /metrics, /healthz, /readyz
    #[arg(long, env = "FENCEGATE_HTTP", value_name = "HOST:PORT", value_parser = http_address)]
    http: Option<Address>,
    /// Command to run, with the token in FENCE_TOKEN and PGOPTIONS
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Arguments of the process that ends the command and releases the lease when `lead` has been killed.
#[derive(clap::Args)]
pub(super) struct GuardArguments {
    #[command(flatten)]
    coordinator: CoordinatorArguments,
    #[command(flatten)]
    lease: command::LeaseArguments,
}

/// Arguments of the process that becomes the command.
#[derive(clap::Args)]
pub(super) struct StartArguments {
    parent: i32,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Parses a duration, or seconds with a fraction.
fn seconds(text: &str) -> Result<Duration, SettingError> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map_or_else(|| duration(text), Ok)
}

/// Replaces this process with the command.
pub(super) fn start(arguments: &StartArguments) -> ExitCode {
    command::replace_this_process(arguments.parent, &arguments.command)
}

/// Runs the guard of the command.
pub(super) fn guard(GuardArguments { coordinator, lease }: GuardArguments) -> ExitCode {
    command::keep_guard(|| {
        // If this fails, the lease expires. No process remains to report the failure to.
        let _ = match &coordinator.coordinator {
            Some(url) => database("--coordinator", url).map(|database| withdraw(&*Leases::new(database), lease)),
            None => etcd(&coordinator.etcd).map(|etcd| withdraw(&*etcd, lease)),
        };
    })
}

fn withdraw(coordinator: &impl Coordinator, lease: command::LeaseArguments) {
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
    let _ = runtime.block_on(coordinator.withdraw(&lease.candidate(), Patience::USUAL));
    // Do not wait for a pending name resolution.
    runtime.shutdown_background();
}

pub(super) fn run(arguments: Arguments) -> Ended {
    let election = match &arguments.coordinator.coordinator {
        Some(url) => Election::on(Leases::new(database("--coordinator", url)?)),
        None => Election::on(etcd(&arguments.coordinator.etcd)?),
    };
    let access = arguments.coordinator.access();
    let Setup { election, terms, waiting, http, metrics, command } = prepare(election, arguments)?;
    command::check_program(&command[0])?;
    // Runs on the main thread, because the command dies with that thread.
    let led = async {
        let _served = serve(http, metrics).await?;
        lead(election, terms, waiting, &access, &command).await
    };
    runtime()?.block_on(led).map(ExitCode::from).map_err(|error: LeadError| {
        tracing::error!("{error}");
        ExitCode::from(error.exit_code())
    })
}

impl CoordinatorArguments {
    /// Environment of the guard.
    fn access(&self) -> Access {
        let mut access = self.etcd.variables();
        access.push((COORDINATOR, self.coordinator.as_ref().map(Into::into)));
        access
    }
}

fn etcd(arguments: &EtcdArguments) -> Result<Arc<Etcd>, ExitCode> {
    let settings = arguments.settings().map_err(unusable)?;
    let settings = settings.ok_or_else(|| unusable("--etcd or --coordinator is required"))?;
    Etcd::new(&settings).map_err(unusable)
}

/// How long to wait while another candidate leads, and the exit code afterwards.
struct Waiting {
    /// None: no limit.
    limit: Option<Duration>,
    conflict: u8,
}

/// Everything that a campaign needs.
struct Setup {
    election: Election,
    terms: Terms,
    waiting: Waiting,
    http: Option<Address>,
    metrics: Arc<LeaderMetrics>,
    command: Vec<OsString>,
}

fn prepare(election: ElectionBuilder, arguments: Arguments) -> Result<Setup, ExitCode> {
    let Arguments { election: name, ttl, id, kill_after, no_wait, wait, conflict_exit_code, http, command, .. } =
        arguments;
    let metrics = Arc::new(LeaderMetrics::new().map_err(unusable)?);
    let mut election = election.name(name).ttl(ttl).meter(metrics.clone());
    if let Some(id) = id {
        election = election.holder(id);
    }
    let election = election.build().map_err(|error| match error {
        BuildError::Timings(error) => unusable(format!("--ttl: {error}")),
        error => unusable(error),
    })?;
    let limit = if no_wait { Some(Duration::ZERO) } else { wait };
    let waiting = Waiting { limit, conflict: conflict_exit_code };
    Ok(Setup { election, terms: Terms { ttl, kill_after }, waiting, http, metrics, command })
}

/// Why `lead` ends without an exit code of the command.
#[derive(Debug, thiserror::Error)]
enum LeadError {
    #[error("cannot set up signal handling: {0}")]
    Signals(procfs::ProcError),
    #[error("cannot listen on {host}:{port}: {error}")]
    Listen { host: String, port: u16, error: std::io::Error },
    #[error(transparent)]
    Campaign(Error),
    #[error(transparent)]
    Command(CommandError),
}

impl LeadError {
    fn exit_code(&self) -> u8 {
        match self {
            LeadError::Campaign(Error::Unreachable { .. }) => EXIT_UNREACHABLE,
            _ => 1,
        }
    }
}

/// Serves the metrics if an address is set. Cancel-safe.
async fn serve(address: Option<Address>, metrics: Arc<LeaderMetrics>) -> Result<Option<http::Server>, LeadError> {
    let Some(Address::Tcp { host, port }) = address else { return Ok(None) };
    match http::Endpoint::bind(&host, port).await {
        Ok(listener) => Ok(Some(listener.serve(metrics))),
        Err(error) => Err(LeadError::Listen { host, port, error }),
    }
}

/// Returns the exit code. Not cancel-safe: the command is killed, but not awaited.
async fn lead(
    election: Election,
    terms: Terms,
    waiting: Waiting,
    access: &Access,
    command: &[OsString],
) -> Result<u8, LeadError> {
    let mut signals = Signals::listen().map_err(LeadError::Signals)?;
    let mut ended = None;
    let won = campaign(&election, &waiting, &mut signals, &mut ended).await.map_err(LeadError::Campaign)?;
    let leadership = match (won, ended) {
        (Some(leadership), _) => leadership,
        (None, Some(signal)) => return Ok(command::exit_code_of_signal(signal)),
        (None, None) => {
            tracing::info!(election = %election.name(), reason = "another candidate leads", "command_not_run");
            return Ok(waiting.conflict);
        }
    };
    match command::run(&leadership, command, terms, access, &mut signals).await {
        Ok(outcome) => {
            give_up(&leadership).await;
            Ok(match outcome {
                CommandOutcome::Ended(status) => command::exit_code_of(status),
                CommandOutcome::Lost => EXIT_LOST,
            })
        }
        Err(error) => {
            // Do not resign: the end of the command is not confirmed. The lease expires by itself.
            std::mem::forget(leadership);
            Err(LeadError::Command(error))
        }
    }
}

/// Campaigns until the wait limit, or a signal, which it stores. Cancel-safe: the candidate withdraws.
async fn campaign(
    election: &Election,
    waiting: &Waiting,
    signals: &mut Signals,
    ended: &mut Option<Signal>,
) -> Result<Option<Leadership>, Error> {
    let signal = async { *ended = Some(end_of_campaign(signals).await) };
    match waiting.limit {
        None => election.campaign_until(signal).await,
        Some(Duration::ZERO) => election.try_campaign_until(signal).await,
        // Err: timed out.
        Some(limit) => election.campaign_until(timeout(limit, signal)).await,
    }
}

/// The signal that ends the campaign. SIGTSTP does not: a suspended candidate would lose its place.
async fn end_of_campaign(signals: &mut Signals) -> Signal {
    loop {
        match signals.next().await {
            Signal::SIGTSTP => {
                tracing::warn!(reason = "a suspended candidate would lose its place", "suspension_refused")
            }
            signal => return signal,
        }
    }
}

/// Resigns within 5 s, because the sender of a signal waits. Cancel-safe: resigning continues.
async fn give_up(leadership: &Leadership) {
    match timeout(Patience::USUAL.limit, leadership.resign()).await {
        Ok(Ok(()) | Err(Error::Lost(_))) => {}
        Ok(Err(error)) => tracing::warn!(%error, "lease_not_released"),
        Err(late) => tracing::warn!(error = %late, "lease_not_released"),
    }
}

#[derive(clap::Args)]
pub(super) struct LeasesArguments {
    /// URL of a database with leases, postgres://user@host/database; or the etcd members, http://host:2379 or
    /// https://host:2379, separated by commas
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    access: EtcdAccess,
}

pub(super) fn run_leases(LeasesArguments { url, access }: LeasesArguments) -> Ended {
    let is_etcd = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    let lines = if is_etcd { in_etcd(url, access) } else { in_database(&url) }?;
    let header = ["ELECTION", "HOLDER", "TOKEN", "EXPIRES"];
    let cells = lines.iter().map(|line| line.each_ref().map(String::as_str));
    print(&table(&std::iter::once(header).chain(cells).collect::<Vec<_>>()));
    Ok(ExitCode::SUCCESS)
}

fn in_database(url: &str) -> Result<Vec<[String; 4]>, ExitCode> {
    let config = database("URL", url)?;
    let leases = Leases::new(config);
    let running = runtime()?.block_on(leases.running(Patience::USUAL)).map_err(failed)?;
    let line = |it: RunningLease| [shown(it.election), shown(it.holder), it.token.to_string(), utc(it.expires)];
    Ok(running.into_iter().map(line).collect())
}

/// Omits expiry times: etcd reports them only for one lease at a time.
fn in_etcd(url: String, access: EtcdAccess) -> Result<Vec<[String; 4]>, ExitCode> {
    let etcd = url.split(',').map(str::to_owned).collect();
    let settings = EtcdArguments { etcd, access }.settings();
    let settings = settings.map_err(unusable)?.unwrap_or_default();
    let etcd = Etcd::new(&settings).map_err(unusable)?;
    let leaders = runtime()?.block_on(leaders(&etcd, Patience::USUAL)).map_err(failed)?;
    let line = |(election, leader): (ElectionName, Leader)| {
        [shown(election), shown(String::from_utf8_lossy(&leader.value)), leader.token.to_string(), String::new()]
    };
    Ok(leaders.into_iter().map(line).collect())
}

/// UTC, in RFC 3339 format with milliseconds. Empty for a year after 9999.
fn utc(time: SystemTime) -> String {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let Ok(date) = DateTime::from_unix_duration(since_epoch) else { return String::new() };
    format!("{}.{:03}Z", date.to_string().trim_end_matches('Z'), since_epoch.subsec_millis())
}

/// Escapes line breaks.
fn shown(text: impl std::fmt::Display) -> String {
    text.to_string().replace(char::is_control, " ")
}
