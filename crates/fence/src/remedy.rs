//! The remedy for LF006, and the hint that describes it.

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
                "Retry. If the error persists, end them on the server: pg_terminate_backend, or ROLLBACK PREPARED for what is prepared."
            }
            Remedy::Etcd => {
                "Retry. If the error persists, check that etcd is reachable and that the proxy's `etcd` setting is correct."
            }
            Remedy::Split => "Write to fewer resources in one transaction.",
        };
        format!("Nothing was written. {what}")
    }
}
