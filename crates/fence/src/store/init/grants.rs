//! The privileges that `init` grants: to the control role, to itself for the creation of the schemas, and to leaders.
//!
//! Owns the statements and the facts that they depend on. Must never revoke a grant that existed before.

use super::error::{InitError, refused};
use crate::store::sql::sql_file;
use fencegate_postgres::sql::{column, is_true, query_rows, quote};
use fencegate_postgres::sql_file::Value::Text;
use tokio_postgres::Client;

/// Predefined roles that a control role needs to see and terminate other roles' processes. Each has an alternative that
/// includes it and that the master role of a managed service may be able to grant.
pub(super) const ROLES: [(&str, Option<&str>); 2] =
    [("pg_read_all_stats", Some("pg_monitor")), ("pg_signal_backend", None)];

/// Grants the first of `roles` that can be granted and that gives `role` the privilege.
pub(super) async fn grant_one_of(
    client: &Client,
    role: &str,
    privilege: &str,
    roles: [Option<&'static str>; 2],
) -> Result<Option<&'static str>, InitError> {
    for granted in roles.into_iter().flatten() {
        let grant = format!("GRANT {granted} TO {}", quote_name(role));
        // Success is not enough: a role with NOINHERIT would still lack the privilege.
        if client.batch_execute(&grant).await.is_ok() && has(client, role, privilege).await? {
            return Ok(Some(granted));
        }
    }
    Ok(None)
}

/// Grants the privilege, or the wider role that includes it.
pub(super) fn grant_script(privilege: &str, wider: Option<&str>, owner: &str) -> String {
    let grant = format!("GRANT {privilege} TO {owner};");
    match wider {
        Some(wider) => {
            let exception = format!("EXCEPTION WHEN insufficient_privilege THEN GRANT {wider} TO {owner};");
            format!("DO {};\n", quote(&format!("BEGIN {grant} {exception} END")))
        }
        None => format!("{grant}\n"),
    }
}

pub(super) async fn has(client: &Client, role: &str, privilege: &str) -> Result<bool, InitError> {
    let query = format!("SELECT pg_has_role({}, {}, 'USAGE') AS has", quote(role), quote(privilege));
    let rows = refused("read the role's privileges", query_rows(client, &query).await)?;
    Ok(rows.iter().any(|row| is_true(row, "has")))
}

/// Temporary grants to the connecting role and the control role during the creation of the schema, and the statements that
/// revoke them. Only a superuser can transfer objects without them: other roles must be members of the new owner, which needs
/// CREATE on the database.
pub(super) struct TemporaryGrants {
    pub(super) grants: Vec<String>,
    pub(super) revokes: Vec<String>,
}

pub(super) async fn temporary_grants(client: &Client, role: &str) -> Result<TemporaryGrants, InitError> {
    // Never repeat an existing grant: the later REVOKE would remove it.
    let facts = sql_file!("privileges.sql").with(&[("owner_role", Text(role))]);
    let facts = refused("read the role's privileges", query_rows(client, &facts).await)?;
    let is = |name| facts.iter().any(|row| is_true(row, name));
    let mut temporary = TemporaryGrants { grants: Vec::new(), revokes: Vec::new() };
    if is("is_enough") {
        return Ok(temporary);
    }
    let fact = |name| facts.first().and_then(|row| column(row, name)).unwrap_or_default();
    let (owner, me, database) = (quote_name(role), fact("me"), fact("database"));
    if !is("acts") {
        // Membership in a superuser's role would give the connecting role every privilege.
        if is("is_superuser") {
            return Err(InitError::Superuser(role.to_owned()));
        }
        temporary.grants.push(format!("GRANT {owner} TO {me}"));
        temporary.revokes.push(format!("REVOKE {owner} FROM {me}"));
    }
    if !is("creates") {
        temporary.grants.push(format!("GRANT CREATE ON DATABASE {database} TO {owner}"));
        temporary.revokes.push(format!("REVOKE CREATE ON DATABASE {database} FROM {owner}"));
    }
    Ok(temporary)
}

/// The statements that permit the role to lead elections whose names match the pattern.
pub(super) fn lease_grants(role: &str, elections: &str) -> String {
    let (name, grantee, pattern) = (quote_name(role), quote(&quote_name(role)), quote(elections));
    format!(
        "GRANT EXECUTE ON FUNCTION fencegate.acquire(text, text, interval), fencegate.renew(text, bigint, interval), \
           fencegate.renew_all(text[], bigint[], interval), fencegate.release(text, bigint), fencegate.proclaim(text, bigint, text), \
           fencegate.leader(text), fencegate.leases() TO {name}; \
         INSERT INTO fencegate_state.lease_grant (role, pattern) VALUES ({grantee}, {pattern}) ON CONFLICT DO NOTHING; "
    )
}

pub(super) fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_names_cannot_end_an_identifier() {
        assert_eq!(quote_name("plain"), "\"plain\"");
        assert_eq!(quote_name("o\"dd\"; --"), "\"o\"\"dd\"\"; --\"");
    }
}
