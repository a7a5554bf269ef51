//! The reasons for LF006 other than a failure of the database, their remedies, and the processes that a refused write waits for.

use super::session::{IdentityError, MOST_AT_ONCE};
use fencegate_leader::ElectionName;

/// Why the highest token, or the end of all processes below it, cannot be proved although the database answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Obstacle {
    /// The session's server process is unknown.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The session's server process is known, but no drain could terminate it.
    #[error("the session's server process {pid} cannot be fenced: {fault}")]
    Process { pid: i32, fault: ProcessFault },
    /// The session has ended in the meantime.
    #[error("the session is not registered, so its admission could not be revoked")]
    Unregistered,
    /// The Admit has inserted no row.
    #[error("the database did not admit the session's server process")]
    NotAdmitted,
    /// Each look found a different epoch.
    #[error("tokens are raised faster than sessions can be admitted")]
    RaisedTooFast,
    /// The wait for the session that raises the epoch took too long.
    #[error("another session did not finish raising the token in time")]
    OtherAdvance,
    /// The open transaction is admitted to the maximum number of resources.
    #[error("a transaction may write to at most {MOST_AT_ONCE} resources")]
    TooManyResources,
    /// The database has recorded policies that were loaded later.
    #[error("another proxy has since loaded different policies: reload this proxy")]
    NewerPolicies,
    /// Nothing was published, because the policies differ.
    #[error("the database has recorded different policies")]
    OtherPolicies,
    /// The statement no longer affects the resource.
    #[error("the catalog has changed in the meantime")]
    CatalogChanged,
    /// The policies were reloaded in the meantime.
    #[error("the policies no longer name an issuer of its tokens")]
    NoIssuer,
    /// The reason is the report of etcd's client.
    #[error("cannot query etcd for the leader of {election}: {reason}")]
    Etcd { election: ElectionName, reason: String },
    /// The proxy's settings name no etcd.
    #[error("no etcd is set for election {0}")]
    NoEtcd(ElectionName),
    /// The global identifiers of transactions that were prepared below the epoch.
    #[error("prepared transactions hold write locks on it: {}", .0.join(", "))]
    PreparedTransactions(Vec<String>),
    /// Processes that have not ended after their termination was requested.
    #[error("{}", not_ended(.0))]
    NotEnded(Vec<Blocker>),
    /// The server was about to end the session. Its Admit continues, and waits for these processes, if known.
    #[error("{}; stopped waiting, because {setting} ({value}) would end the session", wait(.waits_for))]
    ServerTimeout { setting: &'static str, value: String, waits_for: Vec<Blocker> },
    /// A bug in the proxy.
    #[error("the proxy's task that determines it has failed")]
    TaskFailed,
    /// An observed write was not checked.
    #[error("too many writes are observed at once")]
    TooManyObserved,
}

impl Obstacle {
    /// The remedy for this obstacle.
    pub fn remedy(&self) -> Remedy {
        match self {
            Obstacle::Process { fault, .. } => fault.remedy(),
            Obstacle::TooManyResources => Remedy::Split,
            Obstacle::NewerPolicies | Obstacle::OtherPolicies => Remedy::Reload,
            Obstacle::Identity(
                IdentityError::OtherProcess | IdentityError::NotNotified | IdentityError::Unproved(_),
            ) => Remedy::SameServer,
            Obstacle::Etcd { .. } | Obstacle::NoEtcd(_) => Remedy::Etcd,
            Obstacle::PreparedTransactions(_) | Obstacle::NotEnded(_) => Remedy::EndThem,
            Obstacle::ServerTimeout { setting, .. } => Remedy::ServerTimeout(setting),
            Obstacle::Identity(_)
            | Obstacle::Unregistered
            | Obstacle::NotAdmitted
            | Obstacle::RaisedTooFast
            | Obstacle::OtherAdvance
            | Obstacle::CatalogChanged
            | Obstacle::NoIssuer
            | Obstacle::TaskFailed
            | Obstacle::TooManyObserved => Remedy::TryAgain,
        }
    }

    /// The processes that the write waits for.
    pub fn blockers(&self) -> &[Blocker] {
        match self {
            Obstacle::NotEnded(by) | Obstacle::ServerTimeout { waits_for: by, .. } => by,
            _ => &[],
        }
    }
}

fn not_ended(by: &[Blocker]) -> String {
    named("processes admitted under lower tokens have not ended", by)
}

fn wait(waits_for: &[Blocker]) -> String {
    match waits_for {
        [] => "the session has not been admitted yet".to_owned(),
        by => not_ended(by),
    }
}

/// Why no drain could terminate the session's server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessFault {
    /// The system identifiers differ.
    #[error("it is on a different server than the control connection (a failover or a proxy in between)")]
    OtherServer,
    /// The start times of the postmaster differ.
    #[error("the server was restarted after the session began")]
    Restarted,
    /// The control connection's server is in recovery.
    #[error("the server is in recovery")]
    Standby,
    /// pg_stat_activity has no row of that pid.
    #[error("the control connection sees no such server process (a pooler in between, or it has ended)")]
    Unseen,
    /// The start times of the process differ.
    #[error("the process ID now belongs to another process")]
    OtherProcess,
    /// The databases differ.
    #[error("it is connected to another database")]
    OtherDatabase,
    /// The server would refuse `pg_terminate_backend`.
    #[error("the control role may not terminate it: a superuser's session needs a superuser as control role")]
    NotTerminable,
}

impl ProcessFault {
    fn remedy(self) -> Remedy {
        match self {
            ProcessFault::OtherServer | ProcessFault::Unseen => Remedy::SameServer,
            ProcessFault::NotTerminable => Remedy::Superuser,
            ProcessFault::Restarted
            | ProcessFault::Standby
            | ProcessFault::OtherProcess
            | ProcessFault::OtherDatabase => Remedy::TryAgain,
        }
    }
}

/// The remedy for LF006.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Retry: the error may be temporary.
    TryAgain,
    /// Restore the control connection.
    Connect,
    /// Run `fencegate init`, for the schema or for the control role's privileges in it.
    Init,
    /// Upgrade this program: the schema is newer.
    Upgrade,
    /// Use another server.
    Engine,
    /// Grant the named privileges to the control role.
    Grant,
    /// Use a superuser as control role.
    Superuser,
    /// Connect sessions and control connections directly to the same server.
    SameServer,
    /// Reload this proxy with the policies of the other proxies.
    Reload,
    /// End the named processes.
    EndThem,
    /// Make etcd reachable.
    Etcd,
    /// Split the transaction.
    Split,
    /// Raise this timeout of the server, which was about to end the session.
    ServerTimeout(&'static str),
}

impl Remedy {
    /// The hint of LF006.
    pub fn hint(self) -> String {
        let what = match self {
            Remedy::ServerTimeout(setting) => {
                return format!("Nothing was written. Retry. To let writes wait longer, raise {setting}.");
            }
            Remedy::TryAgain => "Retry. If the error persists, see the proxy's log.",
            Remedy::Connect => {
                "Retry. If the error persists, check that the server is up and that the proxy's `control` setting and its \
             password are correct. The proxy's log has the details."
            }
            Remedy::Init => {
                "Retrying will not help. Run fencegate init --control URL --role ROLE, where URL connects to this database as a superuser and ROLE is the proxy's control role."
            }
            Remedy::Upgrade => {
                "Retrying will not help. The database has the schema of a newer version. Upgrade this proxy, or run the fencegate init of its version to downgrade the schema."
            }
            Remedy::Engine => {
                "Retrying will not help. fencegate works with PostgreSQL and with services that are PostgreSQL."
            }
            Remedy::Grant => "Retrying will not help. Run the GRANT as a superuser.",
            Remedy::Superuser => {
                "Retrying will not help. Give the proxy a superuser as its control role, or write as a role that is not a superuser."
            }
            Remedy::SameServer => {
                "Connect again. If the error persists, check that the proxy's `upstream` and `control` settings lead to the \
             same server, without a pooler in between."
            }
            Remedy::Reload => {
                "Retrying will not help. Give this proxy the same policies as the other proxies, and reload it (SIGHUP, or RELOAD in its console)."
            }
            Remedy::EndThem => {
                "Retry. If the error persists, terminate these processes with pg_terminate_backend, and end prepared transactions with ROLLBACK PREPARED."
            }
            Remedy::Etcd => {
                "Retry. If the error persists, check that etcd is reachable and that the proxy's `etcd` setting is correct."
            }
            Remedy::Split => "Write to fewer resources in one transaction.",
        };
        format!("Nothing was written. {what}")
    }
}

/// A reason with the descriptions of its blockers.
pub(super) fn named(how: &str, by: &[Blocker]) -> String {
    let holders: Vec<_> = by.iter().map(|blocker| blocker.holder.as_str()).collect();
    format!("{how}: {}", holders.join("; "))
}

/// A blocking process or prepared transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its description, for messages.
    pub holder: String,
    /// Its query. Empty for a prepared transaction.
    pub query: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FenceError;
    use fencegate_wire::client_error::ClientError;

    #[test]
    fn each_obstacle_reaches_the_client_with_its_remedy() {
        let election = || "/jobs".parse().expect("a name");
        let by = || vec![Blocker { holder: "process 7".to_owned(), query: "LOCK TABLE t".to_owned() }];
        let process = |fault| Obstacle::Process { pid: 3, fault };
        let timeout = |waits_for| {
            let value = "5s".to_owned();
            Obstacle::ServerTimeout { setting: "idle_in_transaction_session_timeout", value, waits_for }
        };
        for (obstacle, reason, remedy) in [
            (IdentityError::NoAnswer.into(), "did not identify the session's process", Remedy::TryAgain),
            (IdentityError::OtherProcess.into(), "is there a pooler", Remedy::SameServer),
            (IdentityError::NotNotified.into(), "did not reach the idle session", Remedy::SameServer),
            (IdentityError::Unproved("why".to_owned()).into(), "keeps its server process: why", Remedy::SameServer),
            (process(ProcessFault::OtherServer), "3 cannot be fenced: it is on a different server", Remedy::SameServer),
            (process(ProcessFault::Restarted), "the server was restarted", Remedy::TryAgain),
            (process(ProcessFault::Standby), "the server is in recovery", Remedy::TryAgain),
            (process(ProcessFault::Unseen), "sees no such server process", Remedy::SameServer),
            (process(ProcessFault::OtherProcess), "belongs to another process", Remedy::TryAgain),
            (process(ProcessFault::OtherDatabase), "connected to another database", Remedy::TryAgain),
            (process(ProcessFault::NotTerminable), "may not terminate it", Remedy::Superuser),
            (Obstacle::Unregistered, "is not registered", Remedy::TryAgain),
            (Obstacle::NotAdmitted, "did not admit", Remedy::TryAgain),
            (Obstacle::RaisedTooFast, "raised faster", Remedy::TryAgain),
            (Obstacle::OtherAdvance, "did not finish raising the token", Remedy::TryAgain),
            (Obstacle::TooManyResources, "at most 10000 resources", Remedy::Split),
            (Obstacle::NewerPolicies, "reload this proxy", Remedy::Reload),
            (Obstacle::OtherPolicies, "has recorded different policies", Remedy::Reload),
            (Obstacle::CatalogChanged, "the catalog has changed in the meantime", Remedy::TryAgain),
            (Obstacle::NoIssuer, "no longer name an issuer", Remedy::TryAgain),
            (
                Obstacle::Etcd { election: election(), reason: "no answer".to_owned() },
                "the leader of /jobs: no answer",
                Remedy::Etcd,
            ),
            (Obstacle::NoEtcd(election()), "no etcd is set for election /jobs", Remedy::Etcd),
            (
                Obstacle::PreparedTransactions(vec!["one".to_owned(), "two".to_owned()]),
                "on it: one, two",
                Remedy::EndThem,
            ),
            (Obstacle::NotEnded(by()), "not ended: process 7, query: LOCK TABLE t", Remedy::EndThem),
            (
                timeout(by()),
                "not ended: process 7; stopped waiting, because idle_in_transaction_session_timeout (5s) would end the \
                 session, query: LOCK TABLE t",
                Remedy::ServerTimeout("idle_in_transaction_session_timeout"),
            ),
            (
                timeout(Vec::new()),
                "the session has not been admitted yet; stopped waiting",
                Remedy::ServerTimeout("idle_in_transaction_session_timeout"),
            ),
            (Obstacle::TaskFailed, "the proxy's task that determines it has failed", Remedy::TryAgain),
            (Obstacle::TooManyObserved, "too many writes are observed at once", Remedy::TryAgain),
        ] {
            let refused = FenceError::unavailable("jobs", obstacle);
            let text = refused.text();
            let proof = "cannot prove which token for resource \"jobs\" is the highest: ";
            assert!(text.message.starts_with(proof) && text.message.contains(reason), "{text:?}");
            assert_eq!((text.code, refused.kind().label()), ("LF006", "unavailable"));
            assert_eq!((text.detail.as_str(), text.hint), ("resource=jobs", remedy.hint()));
            assert!(!refused.log_reason().contains("LOCK TABLE"), "the log contains no query");
        }
    }
}
