//! The columns by which tables are keyed, as the catalog describes them.
//!
//! Owns which columns can tell rows apart by the text of a value. Must never accept a column with two texts for equal
//! values, or one that stores another value than the given one.

use super::subject::Keys;
use fencegate_policy::guard_arguments;
use fencegate_policy::{FencedTable, QualifiedName, Resource};
use fencegate_postgres::sql::quote;
use fencegate_postgres::sql::{StatementResult, column, is_true, number};
use fencegate_statement::rows::{ColumnValue, KEY_TYPES, ValueType};
use std::collections::HashMap;

/// The key column of a fenced table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// The type of its values; or why they cannot be keys.
    pub kind: Result<ValueType, &'static str>,
    /// Its place among the columns, from 0.
    pub place: usize,
    /// Maximum length in bytes of a text that is certainly stored whole. Longer ones may be truncated, because the
    /// length of a character depends on the server's encoding.
    longest: Option<usize>,
    /// The guard looks at the key of every row that is written.
    pub is_guarded: bool,
    /// A trigger that may give a row another value in it than the statement does.
    pub(super) changed_by: Option<String>,
}

impl KeyColumn {
    /// The first column, an integer.
    pub(super) fn integer() -> Self {
        KeyColumn { kind: Ok(ValueType::Integer), place: 0, longest: None, is_guarded: false, changed_by: None }
    }

    /// The one text of a value in this column, if it has one.
    pub fn key(&self, value: &ColumnValue) -> Option<String> {
        let key = value.in_column(self.kind.ok()?)?;
        self.longest.is_none_or(|longest| key.len() <= longest).then_some(key)
    }
}

/// The existing key columns. Includes the definition of the column in child tables and in their unique indexes, because
/// a write to the table writes to its children.
pub(super) fn query(Keys(keys): &Keys) -> String {
    format!(
        "WITH RECURSIVE named(schema, name, key, arguments) AS (SELECT * FROM unnest({})), \
         family(root, oid) AS ( \
           SELECT c.oid, c.oid FROM named JOIN pg_namespace n ON n.nspname = named.schema \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name \
           UNION SELECT family.root, h.inhrelid FROM family JOIN pg_inherits h ON h.inhparent = family.oid) \
         SELECT named.schema, named.name, \
           b.oid AS type, \
           CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier, \
           EXISTS (SELECT FROM family JOIN pg_attribute o ON o.attrelid = family.oid AND o.attname = named.key \
             WHERE family.root = c.oid AND o.attgenerated <> '') AS generated, \
           EXISTS (SELECT FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic) \
             OR EXISTS (SELECT FROM family JOIN pg_attribute o ON o.attrelid = family.oid AND o.attname = named.key \
               JOIN pg_index i ON i.indrelid = family.oid AND i.indisunique \
               CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[]) AS k(attnum, opclass, indcollation) \
               JOIN pg_opclass p ON p.oid = k.opclass LEFT JOIN pg_collation l ON l.oid = k.indcollation \
               WHERE family.root = c.oid AND k.attnum = o.attnum AND (NOT l.collisdeterministic OR NOT p.opcdefault \
                 OR p.opcnamespace <> 'pg_catalog'::regnamespace \
                 OR p.opcintype <> CASE b.oid WHEN {VARCHAR} THEN {TEXT} ELSE b.oid END)) AS folds, \
           EXISTS (SELECT FROM pg_cast k WHERE k.oid >= {FIRST_OWN} AND k.castmethod = 'f' \
             AND k.castsource IN ({KINDS}) AND k.casttarget IN ({KINDS})) AS recast, \
           (SELECT count(*) FROM pg_attribute p WHERE p.attrelid = c.oid AND p.attnum BETWEEN 1 AND a.attnum - 1 \
             AND NOT p.attisdropped) AS place, \
           EXISTS (SELECT FROM pg_trigger g JOIN pg_proc f ON f.oid = g.tgfoid AND f.proname = 'guard' \
             JOIN pg_namespace s ON s.oid = f.pronamespace AND s.nspname = 'fencegate' \
             WHERE g.tgrelid = c.oid AND g.tgenabled = 'A' AND g.tgqual IS NULL AND g.tgtype & {ROW_INSERT} = {ROW_INSERT} \
             AND substring(g.tgargs FROM 1 FOR octet_length(named.arguments)) = named.arguments) AS guarded, \
           (SELECT min(g.tgname) FROM family JOIN pg_trigger g ON g.tgrelid = family.oid WHERE family.root = c.oid \
             AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & {ROW_BEFORE} = {ROW_BEFORE} \
             AND g.tgtype & {INSERT_OR_UPDATE} <> 0) AS changed_by \
         FROM named JOIN pg_namespace n ON n.nspname = named.schema \
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name \
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = named.key AND a.attnum > 0 AND NOT a.attisdropped \
         JOIN pg_type t ON t.oid = a.atttypid \
         JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END",
        keys.join(", ")
    )
}

/// The schemas that have an operator `=` which may be taken for that of a key's type, or a type of such a name. Where one of them
/// is in a session's search path, the text alone does not tell its keys. Of domains, operators of the type below may be taken.
pub fn shadows() -> String {
    let names: Vec<String> = KEY_TYPES.iter().map(|name| quote(name)).collect();
    format!(
        "SELECT DISTINCT 'shadow' AS part, n.nspname AS schema FROM pg_namespace n JOIN ( \
           SELECT o.oprnamespace FROM pg_operator o JOIN pg_type l ON l.oid = o.oprleft JOIN pg_type r ON r.oid = o.oprright \
             WHERE o.oprname = '=' AND o.oid >= {FIRST_OWN} \
             AND (l.oid < {FIRST_OWN} OR l.typtype = 'd' OR r.oid < {FIRST_OWN} OR r.typtype = 'd') \
           UNION ALL SELECT t.typnamespace FROM pg_type t WHERE t.typname IN ({}) AND t.oid >= {FIRST_OWN}) made(schema) \
         ON n.oid = made.schema LIMIT {MOST_SHADOWS}",
        names.join(", ")
    )
}

/// As many schemas are all of them.
pub(super) const MOST_SHADOWS: usize = 1000;

/// Objects with a lower OID came with the server (`FirstNormalObjectId`).
const FIRST_OWN: u32 = 16384;

/// `pg_type.oid` of the types that tell a key.
const KINDS: &str = "20, 21, 23, 25, 1043, 2950";

/// `pg_type.oid`. The operator class of varchar is that of text.
const VARCHAR: u32 = 1043;
const TEXT: u32 = 25;

/// Bits of `pg_trigger.tgtype`: for each row, on INSERT.
const ROW_INSERT: u32 = 1 | 4;
/// For each row, before the event.
const ROW_BEFORE: u32 = 1 | 2;
const INSERT_OR_UPDATE: u32 = 4 | 16;

/// The arguments of the guard's trigger, as `pg_trigger.tgargs` has them: a bytea.
pub(super) fn guard_bytes(resource: &Resource, table: &FencedTable) -> String {
    let bytes = guard_arguments(resource, table).into_iter().flat_map(|argument| argument.bytes().chain([0]));
    format!("\\x{}", bytes.map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// The answer to [`query`], by table.
pub(super) fn read(answers: &[StatementResult]) -> HashMap<QualifiedName, KeyColumn> {
    let rows = answers.iter().flat_map(|answer| &answer.rows);
    rows.filter_map(|row| {
        let name = QualifiedName { schema: column(row, "schema")?.to_owned(), name: column(row, "name")?.to_owned() };
        let kind = match column(row, "type")? {
            _ if is_true(row, "generated") => Err("it is a generated column"),
            _ if is_true(row, "recast") => Err("a cast that was made here may make another value of it"),
            "20" | "21" | "23" => Ok(ValueType::Integer),
            _ if is_true(row, "folds") => {
                Err("its collation, or a unique index on it, takes different values for equal")
            }
            "25" | "1043" => Ok(ValueType::Text),
            "2950" => Ok(ValueType::Uuid),
            _ => Err("its type is not an integer, text, varchar or uuid"),
        };
        // A modifier of varchar is its length and the 4 bytes of a header.
        let longest = number::<i64>(row, "modifier").and_then(|modifier| usize::try_from(modifier - 4).ok());
        let place = number(row, "place")?;
        let changed_by = column(row, "changed_by").map(str::to_owned);
        Some((name, KeyColumn { kind, place, longest, is_guarded: is_true(row, "guarded"), changed_by }))
    })
    .collect()
}
