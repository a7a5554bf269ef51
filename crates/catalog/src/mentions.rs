//! Catalog queries that only explain policies: the database's name, the functions that the policies name, and those
//! that they should name.
//!
//! Owns these queries. A needlessly reported function costs the operator a look; a function that is not reported writes
//! unfenced.

use super::calls;
use super::subject::Functions;
use fencegate_policy::{FencedFunction, PolicySet};
use fencegate_postgres::sql::named;

/// The database's name, then the functions of the policies that exist.
pub fn database_and_functions(policies: &PolicySet) -> String {
    let functions: Vec<&FencedFunction> = policies.resources.iter().flat_map(|resource| &resource.functions).collect();
    format!(
        "SELECT current_database() AS database; \
         WITH {} SELECT DISTINCT n.nspname AS schema, p.proname AS name FROM fenced_function f \
         JOIN pg_proc p ON p.oid = f.oid JOIN pg_namespace n ON n.oid = p.pronamespace ORDER BY 1, 2",
        calls::fenced_functions(&Functions::of(&functions))
    )
}

/// The functions whose source mentions a fenced table by its name, or whose body depends on it; and those that mention or
/// need one of these, which are not `direct`. A name in a comment, or of a table in another schema, counts too.
pub fn functions_that_mention(policies: &PolicySet) -> String {
    let tables = policies.resources.iter().flat_map(|resource| resource.tables.iter().map(|table| &table.name));
    // A name, as a regular expression.
    let pattern =
        |name: &str| format!("'(^|[^[:alnum:]_$])' || regexp_replace(lower({name}::text), '[^[:alnum:]_]', '.', 'g')");
    format!(
        "WITH RECURSIVE {named}, source AS MATERIALIZED ( \
           SELECT p.oid, n.nspname AS schema, p.proname AS name, lower(p.prosrc) AS text \
           FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
           WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'fencegate')), \
         mention(oid, table_schema, table_name, direct) AS ( \
           SELECT s.oid, named.schema, named.name, true FROM source s \
           JOIN named ON strpos(s.text, lower(named.name)) > 0 AND s.text ~ ({table} || '($|[^[:alnum:]_$])') \
             OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = s.oid \
               AND d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(format('%I.%I', named.schema, named.name))) \
           UNION SELECT s.oid, m.table_schema, m.table_name, false FROM mention m JOIN source c ON c.oid = m.oid \
           JOIN source s ON s.oid <> c.oid AND (strpos(s.text, lower(c.name)) > 0 AND s.text ~ ({function} || '\"?\\s*\\(') \
             OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = s.oid \
               AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = c.oid))) \
         SELECT s.schema, s.name, m.table_schema, m.table_name, bool_or(m.direct) AS direct \
         FROM mention m JOIN source s ON s.oid = m.oid GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        named = named(tables),
        table = pattern("named.name"),
        function = pattern("c.name"),
    )
}
