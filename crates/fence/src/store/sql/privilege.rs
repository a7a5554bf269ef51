//! SQL for the privileges of a session's role.
//!
//! Must never name a relation except by its catalog row, because the control role may lack USAGE on its schema.

use super::THIS_DATABASE;
use super::lock::NAMED;
use super::prepared::{Prepared, numbers, or_null, texts};
use super::process::is_one_of;
use crate::permission::{RequiredPrivilege, Role};
use fencegate_policy::Resource;
use fencegate_postgres::sql::{arrays, quote};
use fencegate_statement::Operation;

/// Kinds of relations that can be written.
const WRITABLE: &str = "('r', 'p', 'v', 'f', 'm')";

/// One row for each privilege: `what` it applies to, and whether it is `permitted`.
///
/// `step` follows the server: from the relation that a privilege names, which the role itself must be allowed to write, to the
/// relations that this write reaches.
/// - Relations below a rule or a view are written as its owner.
/// - Relations below a view with security_invoker, or written by an INSTEAD OF trigger of a view, are written as the role.
///   If that trigger's function is SECURITY DEFINER, the view's owner counts, not the function's: any role may use such a
///   function in its own view.
/// - The server checks no privileges for children, parents and changes by foreign keys.
///
/// A call starts at each fenced table, and at each relation that may lead to one (`start`). It acts as the role or as the
/// owner of a function that the role may call (`actor`). A relation that does not exist yet needs the privilege to create it
/// in its schema, or to create the schema.
pub fn permits(resource: &Resource, privileges: &[RequiredPrivilege], role: &Role) -> String {
    let [schemas, tables] = arrays(resource.tables.iter().map(|table| &table.name));
    let privileges: Vec<_> = privileges.iter().map(parts).collect();
    let (current, login) = match role {
        Role::Current(name) => (Some(quote(name)), None),
        Role::AnyOf(login) => (None, Some(quote(login))),
    };
    PERMITS.execute(&[
        &schemas,
        &tables,
        &or_null(current),
        &or_null(login),
        &numbers("name", privileges.iter().map(|(schema, ..)| or_null(schema.map(quote)))),
        &texts("name", privileges.iter().map(|(_, name, _)| *name)),
        &texts("text", privileges.iter().map(|(.., operation)| *operation)),
    ])
}

pub(super) const PERMITS: Prepared = Prepared::new(
    "permits",
    "name[], name[], name, name, name[], name[], text[]",
    || {
        format!(
            "WITH RECURSIVE {NAMED}, \
         who(oid) AS (SELECT r.oid FROM pg_roles r WHERE r.rolname = $3 UNION ALL SELECT r.oid \
           FROM pg_roles l JOIN pg_roles r ON pg_has_role(l.oid, r.oid, 'MEMBER') WHERE l.rolname = $4), \
         privilege(schema, name, operation, number) AS (SELECT * FROM unnest($5, $6, $7) WITH ORDINALITY), \
         fenced(oid) AS (SELECT c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema \
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name), \
         start(number, operation, relation) AS ( \
           SELECT d.number, d.operation, c.oid FROM privilege d JOIN pg_class c ON c.relname = d.name \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
           WHERE d.operation <> 'call' AND (d.schema IS NULL OR n.nspname = d.schema) \
           UNION ALL SELECT d.number, d.operation, c.oid FROM privilege d CROSS JOIN pg_class c \
           WHERE d.operation = 'call' AND (c.oid IN (SELECT oid FROM fenced) OR c.relhasrules OR c.relhassubclass) \
             AND c.relnamespace NOT IN ({built_in})), \
         actor(number, oid) AS ( \
           SELECT d.number, who.oid FROM privilege d CROSS JOIN who UNION SELECT d.number, f.proowner FROM privilege d CROSS JOIN who \
             JOIN pg_proc f ON f.prosecdef AND f.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype) \
             JOIN pg_namespace n ON n.oid = f.pronamespace AND n.oid NOT IN ({built_in}) \
           WHERE d.operation = 'call' AND has_function_privilege(who.oid, f.oid, 'EXECUTE') AND {usable}), \
         step(number, relation, principal, who) AS ( \
           SELECT d.number, c.oid, who.oid, who.oid FROM start d JOIN actor who ON who.number = d.number \
             JOIN pg_class c ON c.oid = d.relation AND c.relkind IN {WRITABLE} JOIN pg_namespace n ON n.oid = c.relnamespace \
           WHERE {usable} AND CASE d.operation \
               WHEN 'call' THEN {may_write} AND ({inserts} OR {updates} OR {deletes}) \
               WHEN 'insert' THEN has_any_column_privilege(who.oid, c.oid, 'INSERT') AND {inserts} \
               WHEN 'update' THEN has_any_column_privilege(who.oid, c.oid, 'UPDATE') AND {updates} \
               WHEN 'delete' THEN has_table_privilege(who.oid, c.oid, 'DELETE') AND {deletes} \
               WHEN 'truncate' THEN has_table_privilege(who.oid, c.oid, 'TRUNCATE') \
               WHEN 'truncate cascade' THEN has_table_privilege(who.oid, c.oid, 'TRUNCATE') \
               WHEN 'lock' THEN {locks} \
               WHEN 'ddl' THEN {owns} OR has_table_privilege(who.oid, c.oid, 'TRIGGER') \
                 OR has_any_column_privilege(who.oid, c.oid, 'REFERENCES') \
               ELSE {owns} END \
           UNION SELECT step.number, next.relation, next.principal, step.who FROM step CROSS JOIN LATERAL ( \
             SELECT h.inhrelid, step.principal FROM pg_inherits h WHERE h.inhparent = step.relation \
             UNION ALL SELECT h.inhparent, step.principal FROM pg_inherits h WHERE h.inhrelid = step.relation \
             UNION ALL SELECT t.oid, t.relowner FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid \
               WHERE k.contype = 'f' AND k.confrelid = step.relation \
               AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')) \
             UNION ALL SELECT c.oid, p.oid FROM pg_class v JOIN pg_rewrite r ON r.ev_class = v.oid \
               JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid \
                 AND d.refclassid = 'pg_class'::regclass \
               JOIN pg_class c ON c.oid = d.refobjid AND c.oid <> v.oid AND c.relkind IN {WRITABLE} \
               CROSS JOIN LATERAL (SELECT CASE WHEN r.ev_type = '1' AND EXISTS (SELECT FROM unnest(v.reloptions) o \
                   WHERE o ~* '^security_invoker=(t|y|on|1)') THEN step.who ELSE v.relowner END \
                 UNION ALL SELECT CASE WHEN f.prosecdef THEN v.relowner ELSE step.who END \
                   FROM pg_trigger g JOIN pg_proc f ON f.oid = g.tgfoid WHERE g.tgrelid = v.oid AND g.tgtype & 64 <> 0) p(oid) \
               WHERE v.oid = step.relation AND {writes}) next(relation, principal)) \
         SELECT CASE d.operation WHEN 'call' THEN 'function ' ELSE 'table ' END || d.name AS what, CASE d.operation \
           WHEN 'call' THEN EXISTS (SELECT FROM who, pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace \
             WHERE n.nspname = d.schema AND f.proname = d.name AND has_function_privilege(who.oid, f.oid, 'EXECUTE') \
             AND {usable} AND (f.prosecdef OR NOT EXISTS (SELECT FROM fenced) OR EXISTS (SELECT FROM step s \
               WHERE s.number = d.number AND s.relation IN (SELECT oid FROM fenced)))) \
           ELSE EXISTS (SELECT FROM step s WHERE s.number = d.number \
               AND (s.relation IN (SELECT oid FROM fenced) OR d.operation LIKE '%cascade' AND NOT EXISTS ( \
                 SELECT FROM named WHERE named.name = d.name AND (d.schema IS NULL OR d.schema = named.schema)))) \
             OR EXISTS (SELECT FROM who, named JOIN pg_namespace n ON n.nspname = named.schema \
               WHERE named.name = d.name AND (d.schema IS NULL OR d.schema = named.schema) \
               AND has_schema_privilege(who.oid, n.oid, 'CREATE') AND NOT EXISTS (SELECT FROM pg_class c \
                 WHERE c.relnamespace = n.oid AND c.relname = named.name)) \
             OR EXISTS (SELECT FROM who, named WHERE named.name = d.name AND (d.schema IS NULL OR d.schema = named.schema) \
               AND has_database_privilege(who.oid, current_database(), 'CREATE') \
               AND NOT EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = named.schema)) \
           END AS permitted FROM privilege d ORDER BY d.number",
            inserts = lets_rows_through("a"),
            updates = lets_rows_through("w"),
            deletes = lets_rows_through("d"),
            locks = any_write("who.oid"),
            writes = any_write("p.oid"),
            may_write = any_write("who.oid"),
            // PostgreSQL reports USAGE on a temporary schema only to its own session.
            usable = "(starts_with(n.nspname, 'pg_temp_') OR has_schema_privilege(who.oid, n.oid, 'USAGE'))",
            built_in =
                "SELECT s.oid FROM pg_namespace s WHERE s.nspname IN ('pg_catalog', 'information_schema', 'fencegate')",
            owns = "(pg_has_role(who.oid, c.relowner, 'USAGE') OR pg_has_role(who.oid, n.nspowner, 'USAGE'))",
        )
    },
);

/// One row for each of the databases that exists and that the role may not drop, rename or move.
pub fn foreign_databases(role: &Role, databases: &[String]) -> String {
    format!(
        "SELECT d.datname FROM pg_database d WHERE d.datname IN ({databases}) AND NOT EXISTS ( \
           SELECT FROM ({who}) who(oid) WHERE pg_has_role(who.oid, d.datdba, 'USAGE'))",
        databases = databases.iter().map(|database| quote(database)).collect::<Vec<_>>().join(", "),
        who = who(role)
    )
}

/// One row: whether the role may drop this database, or copy it as a template.
pub fn is_disposable(role: &Role) -> String {
    format!(
        "SELECT EXISTS (SELECT FROM ({who}) who(oid) JOIN pg_roles r ON r.oid = who.oid, pg_database d \
           WHERE d.datname = current_database() \
           AND (pg_has_role(who.oid, d.datdba, 'USAGE') OR d.datistemplate AND r.rolcreatedb)) AS disposable",
        who = who(role)
    )
}

/// One row: whether the role may drop this database and terminate every process in it, except these and this connection's.
/// False if there is a prepared transaction, a subscription or an active replication slot, because FORCE does not end them.
pub fn is_disposable_by_force(role: &Role, but: &[(String, String)]) -> String {
    format!(
        "SELECT EXISTS (SELECT FROM ({who}) who(oid) JOIN pg_roles r ON r.oid = who.oid, pg_database d \
           WHERE d.oid = {THIS_DATABASE} AND pg_has_role(who.oid, d.datdba, 'USAGE') AND NOT d.datistemplate \
           AND NOT EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.database = d.datname) \
           AND NOT EXISTS (SELECT s.subdbid FROM pg_subscription s WHERE s.subdbid = d.oid) \
           AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.database = d.datname AND s.active) \
           AND NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) a LEFT JOIN pg_roles t ON t.oid = a.usesysid \
             WHERE a.datid = d.oid AND a.pid <> pg_backend_pid() AND NOT ({but}) \
             AND (r.rolsuper OR NOT t.rolsuper AND (pg_has_role(who.oid, 'pg_signal_backend', 'USAGE') \
               OR pg_has_role(who.oid, t.oid, 'USAGE'))) IS NOT TRUE)) AS disposable",
        but = is_one_of(but),
        who = who(role)
    )
}

fn who(role: &Role) -> String {
    match role {
        Role::Current(name) => format!("SELECT r.oid FROM pg_roles r WHERE r.rolname = {}", quote(name)),
        Role::AnyOf(login) => format!(
            "SELECT r.oid FROM pg_roles l JOIN pg_roles r ON pg_has_role(l.oid, r.oid, 'MEMBER') WHERE l.rolname = {}",
            quote(login)
        ),
    }
}

/// Schema, name and operation.
fn parts(privilege: &RequiredPrivilege) -> (Option<&str>, &str, &'static str) {
    match privilege {
        RequiredPrivilege::Call(function) => (Some(&function.schema), &function.name, "call"),
        RequiredPrivilege::Write(relation, operation) => {
            let operation = match operation {
                Operation::Insert => "insert",
                Operation::Update => "update",
                Operation::Delete => "delete",
                Operation::Truncate => "truncate",
                Operation::TruncateCascade => "truncate cascade",
                Operation::Lock => "lock",
                Operation::Ddl => "ddl",
                Operation::Cascade => "cascade",
                // A read raises no token.
                Operation::Read => "read",
            };
            (relation.schema.as_deref(), &relation.name, operation)
        }
    }
}

/// True if the role may write relation `c` in any way.
fn any_write(role: &str) -> String {
    format!(
        "(has_table_privilege({role}, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') \
           OR has_any_column_privilege({role}, c.oid, 'INSERT, UPDATE'))"
    )
}

/// True if row security does not restrict the role `who` on relation `c`, or a permissive policy applies to the role and this
/// command.
fn lets_rows_through(command: &str) -> String {
    format!(
        "(NOT c.relrowsecurity OR NOT c.relforcerowsecurity AND pg_has_role(who.oid, c.relowner, 'USAGE') \
           OR EXISTS (SELECT FROM pg_roles b WHERE b.oid = who.oid AND (b.rolsuper OR b.rolbypassrls)) \
           OR EXISTS (SELECT FROM pg_policy y WHERE y.polrelid = c.oid AND y.polpermissive AND y.polcmd IN ('*', '{command}') \
             AND EXISTS (SELECT FROM unnest(y.polroles) t WHERE t = 0 OR pg_has_role(who.oid, t, 'USAGE'))))"
    )
}
