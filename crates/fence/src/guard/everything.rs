//! `fencegate remove`: removes all fencegate objects from a database.
//!
//! Owns the list of these objects and of the dependents that prevent removal. Must never drop other users' objects,
//! except temporary ones: each object is dropped separately, and with CASCADE only if temporary objects depend on it.

use super::catalog::{EVENT_TRIGGERS, is_guards, rows};
use super::functions::{GUARD_FUNCTIONS, NOTICE_FUNCTION};
use super::lock::{lock_tables, transaction};
use super::temporary::{cascade, is_temporary};
use super::{GuardError, open, run};
use crate::{FUNCTIONS, RELATIONS, is_newer, is_proxy};
use fencegate_postgres::sql::{column, is_true, quote, text};
use fencegate_postgres::tls::ControlConfig;
use std::fmt::Display;
use tokio_postgres::Client;

/// The schemas of fencegate, of any version.
const SCHEMAS: &str = "('fencegate', 'fencegate_state')";

/// The most users and dependents that an error names.
const MOST_NAMED: usize = 50;

/// The outcome of `remove`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The objects, as DROP names them. None: the database had none.
    pub objects: Vec<String>,
    /// The former control role with the memberships that it keeps: they count in all databases of the server.
    pub memberships: Option<(String, String)>,
}

/// Removes the schemas, the guard and all other fencegate objects from the database of `config`. `keep_token` keeps the
/// function `fencegate.token`. Repeatable.
///
/// Cancel-safe: all changes are one transaction.
///
/// # Errors
/// A proxy uses the database, or another user's object depends on a removed one. Nothing was removed.
pub async fn remove_everything(config: &ControlConfig, keep_token: bool) -> Result<Removed, GuardError> {
    if is_proxy(config).await {
        return Err(GuardError::Proxy);
    }
    let client = &open(config).await?;
    transaction(client, async || remove(client, &Parts { keep_token }).await).await
}

async fn remove(client: &Client, parts: &Parts) -> Result<Removed, GuardError> {
    let what = "read the catalog";
    // Checked before taking locks, so that a refused `remove` disturbs no session, and again afterwards, when nothing
    // new can begin.
    check(client, parts).await?;
    let tables = rows(client, what, &parts.tables()).await?;
    lock_tables(client, tables.iter().filter_map(|row| text(row, "name")), true).await?;
    check(client, parts).await?;
    let memberships = rows(client, what, &memberships()).await?;
    let membership = memberships.first().and_then(|row| Some((text(row, "role")?, text(row, "groups")?)));
    let mut removed = Removed::default();
    for row in &rows(client, what, &parts.removals()).await? {
        let (Some(object), Some(statement)) = (column(row, "object"), column(row, "statement")) else { continue };
        run(client, &format!("remove {object}"), statement).await?;
        removed.objects.push(object.to_owned());
    }
    removed.memberships = membership.filter(|_| !removed.objects.is_empty());
    Ok(removed)
}

async fn check(client: &Client, parts: &Parts) -> Result<(), GuardError> {
    let what = "read the catalog";
    let facts = rows(client, what, &parts.facts()).await?;
    let fact = |name| facts.first().and_then(|row| text(row, name));
    let [database, role] = ["database", "role"].map(|name| fact(name).unwrap_or_default());
    if let Some(version) = fact("version").filter(|version| is_newer(version)) {
        return Err(GuardError::Newer { database, version });
    }
    if fact("parts").as_deref() == Some("0") {
        return Ok(());
    }
    if let Some(others) = fact("others") {
        return Err(GuardError::NotAllowed { role, others });
    }
    if !facts.iter().any(|row| is_true(row, "sees")) {
        return Err(GuardError::Blind(role));
    }
    let users = list(&rows(client, "see who uses the database", &users(fact("admissions"))).await?, "who");
    if !users.is_empty() {
        return Err(GuardError::InUse { database, users });
    }
    let dependents = rows(client, what, &parts.dependents()).await?;
    if dependents.is_empty() {
        return Ok(());
    }
    let may_keep = dependents.iter().any(|row| is_true(row, "on_token"));
    Err(GuardError::Needed { database, dependents: list(&dependents, "what"), may_keep })
}

/// A line for each.
fn list(rows: &[tokio_postgres::SimpleQueryRow], name: &str) -> String {
    let line = |text: &dyn Display| format!("\n  {}", text.to_string().replace(char::is_control, " "));
    let named = rows.iter().take(MOST_NAMED).filter_map(|row| column(row, name)).map(|it| line(&it));
    let more = rows.len().saturating_sub(MOST_NAMED);
    named.chain((more > 0).then(|| line(&format!("{more} more")))).collect()
}

/// The objects that fencegate created.
struct Parts {
    keep_token: bool,
}

impl Parts {
    /// Common table expressions: `kept`, the function that stays, with its schema; `part`, a row per object. `object`
    /// is null for an object that is dropped with another one. Order: functions precede tables, because an argument may
    /// have a table's type; functions of defaults and triggers follow the tables.
    fn named(&self) -> String {
        let names = |names: &[&str]| names.iter().map(|it| quote(it)).collect::<Vec<_>>().join(", ");
        format!(
            "place(oid, name) AS (SELECT oid, nspname FROM pg_namespace WHERE nspname IN {SCHEMAS}), \
             kept(oid, schema) AS (SELECT p.oid, p.pronamespace FROM pg_proc p JOIN place n ON n.oid = p.pronamespace \
               WHERE {keep_token} AND n.name = 'fencegate' AND p.proname = 'token'), \
             part(rank, classid, objid, relation, object) AS ( \
               SELECT 1, 'pg_event_trigger'::regclass, e.oid, NULL::oid, 'event trigger ' || quote_ident(e.evtname) \
               FROM pg_event_trigger e WHERE e.evtname IN ({events}) \
               UNION ALL SELECT 2, 'pg_trigger'::regclass, t.oid, t.tgrelid, \
                 CASE WHEN t.tgparentid = 0 THEN format('trigger %I on %s', t.tgname, t.tgrelid::regclass) END \
               FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE {is_guards} AND NOT t.tgisinternal \
               UNION ALL SELECT CASE WHEN EXISTS (SELECT FROM pg_depend d \
                   WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid) THEN 5 ELSE 3 END, \
                 'pg_proc'::regclass, p.oid, NULL, 'function ' || p.oid::regprocedure \
               FROM pg_proc p JOIN place n ON n.oid = p.pronamespace WHERE p.prokind = 'f' AND p.oid NOT IN (SELECT oid FROM kept) \
                 AND p.proname IN ({functions}, {guard}, {notice}) \
               UNION ALL SELECT 4, 'pg_class'::regclass, c.oid, c.oid, \
                 CASE c.relkind WHEN 'S' THEN 'sequence ' ELSE 'table ' END || c.oid::regclass \
               FROM pg_class c JOIN place n ON n.oid = c.relnamespace \
               WHERE c.relkind IN ('r', 'S') AND c.relname IN ({relations}) \
               UNION ALL SELECT 4, 'pg_type'::regclass, t.oid, NULL, 'type ' || t.oid::regtype \
               FROM pg_type t JOIN place n ON n.oid = t.typnamespace WHERE t.typtype = 'e' AND t.typname = 'epoch' \
               UNION ALL SELECT 6, 'pg_namespace'::regclass, n.oid, NULL, 'schema ' || quote_ident(n.name) FROM place n \
               WHERE n.oid NOT IN (SELECT schema FROM kept))",
            keep_token = self.keep_token,
            is_guards = is_guards(),
            events = names(&EVENT_TRIGGERS),
            functions = names(&FUNCTIONS),
            guard = GUARD_FUNCTIONS.names,
            notice = NOTICE_FUNCTION.names,
            relations = names(&RELATIONS),
        )
    }

    /// One row: the current role, and whether it has all required privileges.
    fn facts(&self) -> String {
        format!(
            "WITH {named} SELECT current_database() AS database, current_user AS role, \
               (SELECT obj_description(oid, 'pg_namespace') FROM place WHERE name = 'fencegate') AS version, \
               (SELECT count(*) FROM part) AS parts, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees, \
               (SELECT c.oid::regclass FROM pg_class c JOIN place n ON n.oid = c.relnamespace \
                 WHERE c.relname = 'admission' AND c.relkind = 'r') AS admissions, \
               (SELECT string_agg(format('%s (owner of %s%s)', role, first, CASE WHEN n > 1 THEN format(' and %s more', n - 1) END), ', ') \
                 FROM (SELECT quote_ident(r.rolname), min(o.what), count(DISTINCT o.what) FROM ( \
                   SELECT nspowner, 'schema ' || quote_ident(nspname) FROM pg_namespace WHERE nspname IN {SCHEMAS} \
                   UNION ALL SELECT e.evtowner, 'the event triggers' FROM part p JOIN pg_event_trigger e ON e.oid = p.objid \
                     WHERE p.classid = 'pg_event_trigger'::regclass \
                   UNION ALL SELECT c.relowner, c.oid::regclass::text FROM part p JOIN pg_class c ON c.oid = p.relation \
                     WHERE p.classid = 'pg_trigger'::regclass) \
                 o(owner, what) JOIN pg_roles r ON r.oid = o.owner WHERE NOT pg_has_role(current_user, r.oid, 'USAGE') \
                 GROUP BY 1) owner(role, first, n)) AS others",
            named = self.named()
        )
    }

    /// The tables to be locked.
    fn tables(&self) -> String {
        format!(
            "WITH {} SELECT DISTINCT format('%I.%I', n.nspname, c.relname) AS name FROM part p \
             JOIN pg_class c ON c.oid = p.relation JOIN pg_namespace n ON n.oid = c.relnamespace",
            self.named()
        )
    }

    /// A row per other object that depends on one of these, as far as PostgreSQL records dependencies. Objects that
    /// belong to a table, such as indexes, are dropped with it; nothing belongs to a function.
    fn dependents(&self) -> String {
        format!(
            "WITH RECURSIVE {}, ours(classid, objid) AS (SELECT classid::oid, objid FROM part UNION SELECT d.classid, d.objid \
               FROM ours o JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid \
                 AND d.deptype IN ('a', 'i') AND d.refclassid <> 'pg_proc'::regclass) \
             SELECT DISTINCT format('%s depends on %s', pg_describe_object(d.classid, d.objid, d.objsubid), \
               pg_describe_object(d.refclassid, d.refobjid, 0)) AS what, \
               d.refclassid = 'pg_proc'::regclass AND EXISTS (SELECT FROM pg_proc p JOIN place n ON n.oid = p.pronamespace \
                 WHERE p.oid = d.refobjid AND p.proname = 'token' AND n.name = 'fencegate') AS on_token \
             FROM ours o JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid \
             WHERE NOT EXISTS (SELECT FROM ours WHERE ours.classid = d.classid AND ours.objid = d.objid) \
               AND NOT {} ORDER BY 1",
            self.named(),
            is_temporary()
        )
    }

    /// The objects, and the statements that remove them, in order. A schema that stays loses its version: it is none that a proxy
    /// could use.
    fn removals(&self) -> String {
        format!(
            "WITH {} SELECT object, statement FROM ( \
               SELECT rank, object, 'DROP ' || object || {} AS statement FROM part WHERE object IS NOT NULL \
               UNION ALL SELECT 7, 'version of schema fencegate', 'COMMENT ON SCHEMA fencegate IS NULL' FROM kept \
               WHERE obj_description(schema, 'pg_namespace') IS NOT NULL) r ORDER BY rank, object",
            self.named(),
            cascade("part.classid", "part.objid")
        )
    }
}

/// A row for each live user: a proxy's control connection, or a session that a proxy has admitted. In the second answer, since
/// the first makes it new. `admissions`: the table. Any client can have the name of a control connection, but not write there.
fn users(admissions: Option<String>) -> String {
    let here =
        "a.datid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND a.pid <> pg_backend_pid()";
    let may_admit = admissions.as_ref().map_or_else(
        || "true".to_owned(),
        |table| format!("has_table_privilege(a.usesysid, {}::regclass, 'INSERT')", quote(table)),
    );
    let admitted = admissions.map(|table| {
        format!(
            " UNION SELECT format('process %s, a session that is admitted to %s', a.pid, m.resource) FROM {table} m \
             JOIN pg_stat_activity a ON a.pid = m.pid AND a.backend_start = m.backend_start WHERE {here}"
        )
    });
    format!(
        "SELECT pg_stat_clear_snapshot(); \
         SELECT format('process %s, a control connection of role %s', a.pid, a.usename) AS who FROM pg_stat_activity a \
         WHERE a.application_name = 'fencegate control' AND {may_admit} AND {here}{}",
        admitted.unwrap_or_default()
    )
}

/// The row: the owner of the schema, and which of the roles that `init` grants it is a member of.
fn memberships() -> String {
    "SELECT quote_ident(r.rolname) AS role, string_agg(DISTINCT g.rolname, ', ') AS groups FROM pg_namespace n \
     JOIN pg_roles r ON r.oid = n.nspowner JOIN pg_auth_members m ON m.member = r.oid JOIN pg_roles g ON g.oid = m.roleid \
     WHERE n.nspname = 'fencegate' AND g.rolname IN ('pg_read_all_stats', 'pg_monitor', 'pg_signal_backend') GROUP BY 1"
        .to_owned()
}
