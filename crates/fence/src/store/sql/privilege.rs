//! SQL for the privileges of a session's role.
//!
//! Must never name a relation except by its catalog row, because the control role may lack USAGE on its schema.

use super::FRAGMENTS;
use super::proxy::pairs;
use super::{Prepared, or_null};
use crate::store::{RequiredPrivilege, Role};
use fencegate_policy::Resource;
use fencegate_postgres::sql::{array, arrays, quote};
use fencegate_postgres::sql_file::Value::{self, Part, Sql, Text};
use fencegate_postgres::sql_file::fill;
use fencegate_statement::Operation;

/// One row for each privilege: `what` it applies to, and whether it is `permitted`.
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
        &array("name", privileges.iter().map(|(schema, ..)| *schema)),
        &array("name", privileges.iter().map(|(_, name, _)| *name)),
        &array("text", privileges.iter().map(|(.., operation)| *operation)),
    ])
}

pub(super) const PERMITS: Prepared = Prepared::new("permits", || {
    let any_write = |writer| fill(":any_write", FRAGMENTS, &[("writer", Sql(writer))]).text;
    let rows = |command| fill(":lets_rows_through", FRAGMENTS, &[("command", Text(command))]).text;
    sql_file!("privilege/permits.sql").with(&[
        ("inserts", Sql(&rows("a"))),
        ("updates", Sql(&rows("w"))),
        ("deletes", Sql(&rows("d"))),
        ("locks", Sql(&any_write("acting.oid"))),
        ("may_write", Sql(&any_write("acting.oid"))),
        ("writes", Sql(&any_write("p.oid"))),
    ])
});

/// One row for each of the databases that exists and that the role may not drop, rename or move.
pub fn foreign_databases(role: &Role, databases: &[String]) -> String {
    let databases: Vec<String> = databases.iter().map(|database| quote(database)).collect();
    let [acting, role_name] = acting(role);
    sql_file!("privilege/foreign_databases.sql").with(&[("databases", Sql(&databases.join(", "))), acting, role_name])
}

/// One row: whether the role may drop this database, or copy it as a template.
pub fn is_disposable(role: &Role) -> String {
    sql_file!("privilege/is_disposable.sql").with(&acting(role))
}

/// One row: whether the role may drop this database and terminate every process in it, except these and this connection's.
pub fn is_disposable_by_force(role: &Role, but: &[(String, String)]) -> String {
    let [acting, role_name] = acting(role);
    sql_file!("privilege/is_disposable_by_force.sql").with(&[("processes", Sql(&pairs(but))), acting, role_name])
}

/// The roles as which the session acts.
fn acting(role: &Role) -> [(&'static str, Value<'_>); 2] {
    match role {
        Role::Current(name) => [("acting", Part(":acting_is")), ("role_name", Text(name))],
        Role::AnyOf(login) => [("acting", Part(":acting_any")), ("role_name", Text(login))],
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
