//! The facts that a new control connection reports, and whether the fence can work with them.
//!
//! Owns the first Query on a control connection, and the name of a privilege that the role lacks. Must never let a
//! connection pass on which a check has failed or was not made.

use super::StoreError;
use super::error::LIMIT;
use super::sql::{self, VERSION, version_number};
use fencegate_postgres::sql::{StatementResult, answers, column};
use fencegate_postgres::tls::ControlConfig;
use tokio::time::timeout;
use tokio_postgres::Client;

/// The facts that a new control connection reports about its server, its database and its role.
pub(super) struct Probed(pub(super) Vec<StatementResult>);

impl Probed {
    /// Applies the settings that the fence needs, and queries the facts. Not cancel-safe.
    pub(super) async fn of(
        config: &ControlConfig,
        client: &Client,
        synchronous_commit: &str,
    ) -> Result<Self, StoreError> {
        match client.simple_query(&sql::proxy::open(synchronous_commit)).await {
            Ok(opened) => Ok(Probed(answers(opened))),
            Err(error) => Err(name_privilege(client, StoreError::on_opening(config, error)).await),
        }
    }

    /// Checks that the server is not known to be another one than the primary.
    pub(super) fn is_of_primary(&self, config: &ControlConfig) -> Result<(), StoreError> {
        let [system_identifier, postmaster_start] = ["system_identifier", "postmaster_start"].map(|it| self.field(it));
        if config.is_superseded(&system_identifier, &postmaster_start) { Err(StoreError::Superseded) } else { Ok(()) }
    }

    /// Checks that the role has the privileges on the server that the fence needs.
    pub(super) fn may_fence(&self) -> Result<(), StoreError> {
        let (role, grant) = (self.field("role"), self.field("missing_grant"));
        if grant.is_empty() { Ok(()) } else { Err(StoreError::Privilege { role, grant }) }
    }

    /// As [`Probed::may_fence`]. Also checks that the role may use the tables of the schema.
    pub(super) fn has_privileges(&self) -> Result<(), StoreError> {
        self.may_fence()?;
        let (role, database, lacking) = (self.field("role"), self.field("database"), self.field("lacking"));
        if lacking.is_empty() { Ok(()) } else { Err(StoreError::SchemaPrivileges { role, database, lacking }) }
    }

    /// Checks that the database has the schema version that this program works with.
    pub(super) fn has_schema(&self) -> Result<(), StoreError> {
        let (database, found) = (self.field("database"), self.field("version"));
        match found.as_str() {
            VERSION => Ok(()),
            "" => Err(StoreError::Unprepared { database }),
            _ if version_number(&found) > version_number(VERSION) => Err(StoreError::Newer { database, found }),
            _ => Err(StoreError::Version { database, found }),
        }
    }

    pub(super) fn field(&self, name: &str) -> String {
        let row = self.0.last().and_then(|answer| answer.rows.first());
        row.and_then(|row| column(row, name)).unwrap_or_default().to_owned()
    }
}

/// Replaces a refusal by the privilege that the role lacks, if one is found. Returns other errors unchanged. Not cancel-safe.
pub(super) async fn name_privilege(client: &Client, error: StoreError) -> StoreError {
    if !matches!(error, StoreError::Denied(_)) {
        return error;
    }
    match timeout(LIMIT, client.simple_query(&sql::proxy::privileges())).await {
        Ok(Ok(messages)) => Probed(answers(messages)).has_privileges().err().unwrap_or(error),
        _ => error,
    }
}
