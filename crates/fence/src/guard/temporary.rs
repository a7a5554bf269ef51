//! Temporary objects of other sessions that depend on fencegate's functions, which PUBLIC may execute: a view, a default, a trigger.
//!
//! Owns finding them, and ending the sessions that keep them from being dropped. Must never end a session that holds no lock on a
//! temporary object of its own.

use super::GuardError;
use super::catalog::rows;
use crate::may_terminate;
use fencegate_postgres::sql::{column, is_true};
use tokio_postgres::Client;

/// Schema of the dependent object of row `d` of `pg_depend`. An object that belongs to a relation or a domain has the
/// schema of that.
const SCHEMA: &str = "coalesce( \
    (SELECT to_regnamespace(i.schema)::oid FROM pg_identify_object(d.classid, d.objid, d.objsubid) i), \
    (SELECT y.relnamespace FROM pg_class y WHERE y.oid = CASE d.classid \
      WHEN 'pg_rewrite'::regclass THEN (SELECT ev_class FROM pg_rewrite WHERE oid = d.objid) \
      WHEN 'pg_trigger'::regclass THEN (SELECT tgrelid FROM pg_trigger WHERE oid = d.objid) \
      WHEN 'pg_attrdef'::regclass THEN (SELECT adrelid FROM pg_attrdef WHERE oid = d.objid) \
      WHEN 'pg_constraint'::regclass THEN (SELECT conrelid FROM pg_constraint WHERE oid = d.objid) \
      WHEN 'pg_policy'::regclass THEN (SELECT polrelid FROM pg_policy WHERE oid = d.objid) END), \
    (SELECT x.typnamespace FROM pg_constraint k JOIN pg_type x ON x.oid = k.contypid \
      WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid))";

/// The dependent object of row `d` of `pg_depend` is temporary: it goes with CASCADE, and its session may go on.
pub(super) fn is_temporary() -> String {
    format!(
        "EXISTS (SELECT FROM pg_namespace z WHERE starts_with(z.nspname, 'pg_temp_') \
           AND z.oid <> pg_my_temp_schema() AND z.oid = {SCHEMA})"
    )
}

/// CASCADE for an object on which only temporary ones depend, as the checks before have found; otherwise nothing.
pub(super) fn cascade(class: &str, object: &str) -> String {
    format!(
        "CASE WHEN EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = {class} AND d.refobjid = {object} \
           AND d.deptype = 'n' AND {}) THEN ' CASCADE' ELSE '' END",
        is_temporary()
    )
}

/// The processes that hold locks on temporary objects in a schema that has such a dependent: only its own session uses these.
/// With `ends`, ends those that this role may end. Returns them; empty if there are none.
pub(super) async fn end_holders(client: &Client, ends: bool) -> Result<String, GuardError> {
    let query = format!(
        "WITH place AS MATERIALIZED (SELECT DISTINCT z.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
             JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid \
             JOIN pg_namespace z ON z.oid = {SCHEMA} \
           WHERE n.nspname = 'fencegate' AND starts_with(z.nspname, 'pg_temp_') AND z.oid <> pg_my_temp_schema()) \
         SELECT a.pid, coalesce(t.rolname, a.backend_type) AS role, a.application_name AS application, \
           CASE WHEN {ends} AND {may_end} THEN pg_terminate_backend(a.pid) END AS signalled \
         FROM (SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
             JOIN place ON place.oid = c.relnamespace WHERE l.locktype = 'relation' AND l.granted \
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.pid <> pg_backend_pid()) h \
         JOIN pg_stat_get_activity(NULL) a ON a.pid = h.pid LEFT JOIN pg_roles t ON t.oid = a.usesysid ORDER BY a.pid",
        may_end = may_terminate("a", "t"),
    );
    let mut found = Vec::new();
    for row in &rows(client, "see who holds locks", &query).await? {
        let [pid, role, application] = ["pid", "role", "application"].map(|name| column(row, name).unwrap_or_default());
        if is_true(row, "signalled") {
            tracing::warn!(pid, role, application, "temporary_holder_ended");
        }
        found.push(format!("process {pid} of role {role}, on a temporary object that depends on fencegate"));
    }
    Ok(found.join("; "))
}
