//! The catalog as the guard needs it: the relations that the policies name, and the installed parts of the guard.
//!
//! Owns the queries. Must never change anything.

use super::functions::{GUARD_FUNCTIONS, NOTICE_FUNCTION, NOTICE_SIGNATURE, OWNERS_FUNCTION, SIGNATURES};
use super::lock::literals;
use super::temporary::cascade;
use super::trigger::{GuardedRelation, PREFIX};
use super::{GuardError, GuardState, refused};
use fencegate_policy::FencedTable;
use fencegate_postgres::sql::{column, is_true, named, query_rows, quote, text};
use std::collections::BTreeMap;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryRow};

pub(super) const EVENT_TRIGGERS: [&str; 2] = ["fencegate_guard_definition", "fencegate_guard_drop"];

pub(super) struct InstalledTrigger {
    pub(super) definition: String,
    pub(super) enabled: char,
    pub(super) is_copy: bool,
    pub(super) may_alter: bool,
}

/// Relation and name of a trigger.
pub(super) type TriggerName = (String, String);

/// Part of the guard, and the statement that removes it.
pub(super) struct Removal {
    pub(super) what: String,
    pub(super) statement: String,
}

/// Trigger `t` on relation `c` has the name and a function of the guard. Any role can make one on a table of its own. A temporary
/// table has no guard: only its own session writes to it.
pub(super) fn is_guards() -> String {
    format!(
        "(starts_with(t.tgname, '{PREFIX}') AND c.relpersistence <> 't' AND t.tgfoid IN ( \
           SELECT p.oid FROM pg_proc p JOIN pg_namespace f ON f.oid = p.pronamespace WHERE f.nspname = 'fencegate'))"
    )
}

/// The existing triggers, each with its relation. Omits copies, which are dropped with their original.
pub(super) async fn drops(client: &Client) -> Result<Vec<(String, Removal)>, GuardError> {
    let query = format!(
        "SELECT format('%I.%I', n.nspname, c.relname) AS relation, quote_ident(t.tgname) AS name \
         FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE {} AND t.tgparentid = 0 ORDER BY 1, 2",
        is_guards()
    );
    let rows = rows(client, "read the triggers", &query).await?;
    let drop = |row: &SimpleQueryRow| {
        let (relation, name) = (text(row, "relation")?, text(row, "name")?);
        let (what, statement) = (format!("trigger {name} on {relation}"), format!("DROP TRIGGER {name} ON {relation}"));
        Some((relation, Removal { what, statement }))
    };
    Ok(rows.iter().filter_map(drop).collect())
}

/// The event triggers, functions and leases of resources there are.
pub(super) async fn others(client: &Client) -> Result<Vec<Removal>, GuardError> {
    let names = EVENT_TRIGGERS.map(quote).join(", ");
    let query = format!("SELECT evtname AS name FROM pg_event_trigger WHERE evtname IN ({names}) ORDER BY evtname");
    let event_triggers = rows(client, "read the catalog", &query).await?;
    let event_triggers = event_triggers.iter().filter_map(|row| Some(format!("event trigger {}", text(row, "name")?)));
    let drop = |what: String, cascade: &str| Removal { statement: format!("DROP {what}{cascade}"), what };
    let mut others: Vec<Removal> = event_triggers.map(|what| drop(what, "")).collect();
    for signature in SIGNATURES.iter().rev().chain([&NOTICE_SIGNATURE]) {
        let query = format!(
            "SELECT {} AS cascade FROM (SELECT to_regprocedure({})::oid AS oid) it WHERE it.oid IS NOT NULL",
            cascade("'pg_proc'::regclass", "it.oid"),
            quote(signature)
        );
        let there = rows(client, "read the catalog", &query).await?;
        others.extend(
            there.first().map(|row| drop(format!("function {signature}"), column(row, "cascade").unwrap_or_default())),
        );
    }
    let is_there =
        rows(client, "read the catalog", "SELECT to_regprocedure('fencegate.leased_resources()') IS NOT NULL AS there");
    if is_there.await?.iter().any(|row| is_true(row, "there")) {
        let leases = leased(client).await?.into_keys();
        others.extend(leases.map(|resource| Removal {
            statement: format!("DELETE FROM fencegate_state.leased WHERE resource = {}", quote(&resource)),
            what: format!("the lease of resource {resource}"),
        }));
    }
    Ok(others)
}

/// The leases of resources, as they are installed.
pub(super) async fn leased(client: &Client) -> Result<BTreeMap<String, String>, GuardError> {
    let rows = rows(client, "read the leases", "SELECT resource, lease FROM fencegate.leased_resources()").await?;
    Ok(rows.iter().filter_map(|row| Some((text(row, "resource")?, text(row, "lease")?))).collect())
}

/// An enabled subscription of this database to a guarded table.
pub(super) struct Subscription {
    pub(super) name: String,
    /// Its workers, of the initial copy too, write as this role.
    pub(super) owner: String,
    /// Its rows have no token, and some trigger rejects that.
    pub(super) is_rejected: bool,
}

/// The triggers' arguments are those of `guard.sql`: mode, on_missing, three more, the exempt roles.
pub(super) async fn subscriptions(client: &Client) -> Result<Vec<Subscription>, GuardError> {
    let query = format!(
        "WITH guarded AS (SELECT tgrelid, string_to_array(encode(tgargs, 'escape'), '\\000') AS arguments FROM pg_trigger \
           WHERE starts_with(tgname, '{PREFIX}') AND tgenabled IN ('A', 'R')) \
         SELECT s.subname AS name, r.rolname AS owner, \
           bool_or(g.arguments[1] <> 'observe' AND g.arguments[2] <> 'allow' \
             AND encode(convert_to(r.rolname, getdatabaseencoding()), 'escape') <> ALL (g.arguments[6:])) \
           AND NOT EXISTS (SELECT FROM pg_db_role_setting t, unnest(t.setconfig) c \
             WHERE t.setdatabase IN (0, s.subdbid) AND t.setrole IN (0, s.subowner) AND c LIKE 'lease.fence=_%') AS rejected \
         FROM pg_subscription s JOIN pg_roles r ON r.oid = s.subowner \
         JOIN pg_subscription_rel l ON l.srsubid = s.oid JOIN guarded g ON g.tgrelid = l.srrelid \
         WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND s.subenabled \
         GROUP BY s.subname, r.rolname, s.subdbid, s.subowner ORDER BY s.subname"
    );
    let rows = rows(client, "read the subscriptions", &query).await?;
    let subscription = |row: &SimpleQueryRow| {
        let (name, owner) = (text(row, "name")?, text(row, "owner")?);
        Some(Subscription { name, owner, is_rejected: is_true(row, "rejected") })
    };
    Ok(rows.iter().filter_map(subscription).collect())
}

/// One row about the current role and the objects other than triggers.
pub(super) fn facts() -> String {
    let names = EVENT_TRIGGERS.map(quote).join(", ");
    format!(
        "SELECT current_database() AS database, current_setting('server_version_num') AS version, \
           (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser, \
           (SELECT quote_ident(pg_get_userbyid(nspowner)) FROM pg_namespace WHERE nspname = 'fencegate') AS owner, \
           (SELECT pg_has_role(current_user, nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'fencegate') \
             AS owns_schema, \
           NOT EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate') \
             AND p.proname = 'leased_resources') AS outdated, {functions}, {notice}, \
           (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate') \
             AND p.proname IN ({guard_names}) AND p.proname <> '{OWNERS_FUNCTION}' AND NOT (has_function_privilege('public', p.oid, 'EXECUTE') \
               AND has_schema_privilege('public', p.pronamespace, 'USAGE'))) AS unusable, \
           (SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = 'fencegate' AND p.proname IN ({guard_names}) AND p.proowner <> n.nspowner) AS others, \
           (SELECT count(*) FROM pg_event_trigger WHERE evtname IN ({names})) AS event_triggers, \
           (SELECT count(*) FROM pg_event_trigger WHERE evtname IN ({names}) AND evtenabled = 'A') \
             AS enabled_event_triggers",
        functions = GUARD_FUNCTIONS.columns("content", "seal"),
        notice = NOTICE_FUNCTION.columns("notice_content", "notice_seal"),
        guard_names = GUARD_FUNCTIONS.names,
    )
}

/// The relations of a policy's entry: the table first.
pub(super) fn tree(table: &FencedTable) -> String {
    format!(
        "WITH RECURSIVE {named}, tree(oid, level) AS ( \
           SELECT c.oid, 0 FROM named JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name \
             WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') \
           UNION SELECT h.inhrelid, tree.level + 1 FROM tree JOIN pg_inherits h ON h.inhparent = tree.oid) \
         SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name, c.relkind AS kind, \
           c.relispartition AS is_partition, pg_partition_root(c.oid)::oid AS root, \
           pg_has_role(current_user, c.relowner, 'USAGE') AS may_alter, \
           EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid \
                   AND h.inhparent NOT IN (SELECT oid FROM tree)) AS has_foreign_parent \
         FROM (SELECT oid, min(level) AS level FROM tree GROUP BY oid) t JOIN pg_class c ON c.oid = t.oid \
         JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY t.level, c.oid",
        named = named([&table.name])
    )
}

pub(super) fn relation(row: &SimpleQueryRow) -> GuardedRelation {
    let text = |name| column(row, name).unwrap_or_default().to_owned();
    GuardedRelation {
        oid: text("oid"),
        name: text("name"),
        kind: text("kind").chars().next().unwrap_or_default(),
        is_partition: is_true(row, "is_partition"),
        root: column(row, "root").map(str::to_owned),
        may_alter: is_true(row, "may_alter"),
        has_foreign_parent: is_true(row, "has_foreign_parent"),
    }
}

/// The guard's triggers, as far as they belong to it: on these relations, which the policies fence, those of that name. Elsewhere
/// those that a role may have left that has to do with fencegate or with these relations. The second are the relations of others.
pub(super) async fn found(
    client: &Client,
    fenced: &[GuardedRelation],
) -> Result<(BTreeMap<TriggerName, InstalledTrigger>, Vec<String>), GuardError> {
    let oids: Vec<&str> = fenced.iter().map(|it| it.oid.as_str()).collect();
    // pg_get_triggerdef locks the table.
    let query = format!(
        "WITH fenced AS (SELECT oid, relowner FROM pg_class WHERE oid = ANY ('{{{oids}}}'::oid[])) SELECT format('%I.%I', n.nspname, c.relname) AS relation, quote_ident(t.tgname) AS name, \
           t.tgenabled AS enabled, t.tgparentid <> 0 AS is_copy, \
           CASE WHEN t.tgrelid IN (SELECT oid FROM fenced) THEN pg_get_triggerdef(t.oid) END AS definition, \
           pg_has_role(current_user, c.relowner, 'USAGE') AS may_alter, \
           t.tgrelid IN (SELECT oid FROM fenced) OR c.relowner IN (SELECT relowner FROM fenced) \
             OR pg_has_role(c.relowner, n.nspowner, 'USAGE') OR pg_has_role(c.relowner, own.nspowner, 'USAGE') \
             OR NOT me.rolsuper AND pg_has_role(me.oid, c.relowner, 'USAGE') AS belongs \
         FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_roles me ON me.rolname = current_user JOIN pg_namespace own ON own.nspname = 'fencegate' \
         WHERE {is_guards} OR starts_with(t.tgname, '{PREFIX}') AND t.tgrelid IN (SELECT oid FROM fenced)",
        oids = oids.join(","),
        is_guards = is_guards(),
    );
    let rows = query_rows(client, &query).await.map_err(|source| match source.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            let relations = literals(fenced.iter().map(|it| it.name.clone()));
            GuardError::HeldUp { relations, by: String::new(), source }
        }
        _ => GuardError::Refused("read the triggers".to_owned(), source),
    })?;
    let (ours, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| is_true(row, "belongs"));
    let mut others: Vec<String> = others.into_iter().filter_map(|row| text(row, "relation")).collect();
    others.sort();
    others.dedup();
    let found = ours.into_iter().map(|row| {
        let text = |name| column(row, name).unwrap_or_default().to_owned();
        let found = InstalledTrigger {
            definition: text("definition"),
            enabled: text("enabled").chars().next().unwrap_or_default(),
            is_copy: is_true(row, "is_copy"),
            may_alter: is_true(row, "may_alter"),
        };
        ((text("relation"), text("name")), found)
    });
    Ok((found.collect(), others))
}

/// State of the event triggers and their function. They are required once a superuser has created them, which the
/// function shows.
pub(super) fn event_triggers_state(there: &str, enabled: &str, function: GuardState) -> GuardState {
    let all = EVENT_TRIGGERS.len().to_string();
    match (there, enabled) {
        ("0", _) if function == GuardState::Missing => GuardState::NotMade,
        _ if there != all => GuardState::Missing,
        _ if enabled != all => GuardState::Disabled,
        _ => function,
    }
}

pub(super) async fn rows(client: &Client, what: &str, query: &str) -> Result<Vec<SimpleQueryRow>, GuardError> {
    refused(what, query_rows(client, query).await)
}
