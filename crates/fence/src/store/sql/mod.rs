//! The statements of the fence: a folder for each of its tables, and for server processes and their locks.
//!
//! Owns quoting and all text sent to the database. Each file is one simple Query, or one statement to prepare. Its
//! first comment describes its rows. The statements of a Query are one READ COMMITTED transaction, and each statement
//! has its own snapshot. The same holds for an EXECUTE of a prepared statement: the server takes the snapshot when the
//! EXECUTE begins, after all locks of the earlier statements. The rows of pg_stat_get_activity are fixed at the first
//! read in a transaction. Reads that need current rows are therefore separate Queries.
//!
//! A connection prepares the frequent statements when it opens, because planning one takes up to fifty times as long as
//! executing it. Must never put external input into a prepared statement's text: such input is an argument.

/// A file of SQL, with the fragments of the fence.
macro_rules! sql_file {
    ($path:literal) => {
        fencegate_postgres::sql_file::SqlFile::new(include_str!($path), $crate::store::FRAGMENTS)
    };
}
use fencegate_postgres::sql_file::Fragment;
pub(crate) use sql_file;

pub mod admission;
pub mod epoch;
pub mod lanes;
pub mod lock;
pub mod privilege;
pub mod proxy;

macro_rules! fragments {
    ($($name:ident,)*) => {
        &[
            $((stringify!($name), include_str!(concat!("fragments/", stringify!($name), ".sql"))),)*
            ("fenced_kinds", fencegate_catalog::FENCED_KINDS),
        ]
    };
}

/// The SQL that several files, or several places of one, include by its name.
pub const FRAGMENTS: &[Fragment] = fragments![
    acting_any,
    acting_is,
    any_write,
    built_in,
    control_awaits,
    control_is_blocked,
    fence_columns,
    granted,
    guarded_admissions,
    has_prepared,
    higher_admissions,
    holds_lock,
    identity,
    identity_columns,
    in_force,
    init_key,
    init_schemas,
    is_called,
    is_control_connection,
    is_due_in_page,
    is_exclusive_lock,
    is_identified,
    is_lock,
    is_lock_here,
    is_of_this_database,
    is_older,
    is_one_of,
    lacking,
    lets_rows_through,
    living,
    lost_proxy_counts,
    may_terminate,
    named,
    now,
    own,
    owns,
    page_of_keys,
    prepared_owner,
    recorded_policy,
    relations,
    resource_key,
    this_database,
    usable,
    write_locks,
    write_or_row_locks,
];

/// A statement with parameters.
#[derive(Debug)]
pub struct Prepared {
    name: &'static str,
    /// The PREPARE statement.
    text: fn() -> String,
}

impl Prepared {
    const fn new(name: &'static str, text: fn() -> String) -> Self {
        Prepared { name, text }
    }

    /// The EXECUTE statement. The arguments are SQL, one for each parameter.
    fn execute(&self, arguments: &[&str]) -> String {
        let arguments = arguments.join(", ");
        // SQL permits no empty list.
        if arguments.is_empty() {
            format!("EXECUTE {}", self.name)
        } else {
            format!("EXECUTE {}({arguments})", self.name)
        }
    }
}

/// The Query that prepares these statements.
pub fn prepare(statements: &[&Prepared]) -> String {
    statements.iter().map(|it| (it.text)()).collect::<Vec<_>>().join("; ")
}

/// An SQL array of numbers.
fn numbers<T: ToString>(of: &str, elements: impl IntoIterator<Item = T>) -> String {
    let elements: Vec<String> = elements.into_iter().map(|it| it.to_string()).collect();
    format!("'{{{}}}'::{of}[]", elements.join(","))
}

/// An argument that may be null.
fn or_null(text: Option<String>) -> String {
    text.unwrap_or_else(|| "NULL".to_owned())
}

/// The schema version that this program works with; `schema.sql` has the same.
pub(crate) const VERSION: &str = "fencegate schema version 6";

/// The version number in the schema's comment, if it is fencegate's.
pub(crate) fn version_number(comment: &str) -> Option<u32> {
    comment.rsplit(' ').next()?.parse().ok()
}

/// Returns true if the comment on the schema is that of a newer program.
pub fn is_newer(comment: &str) -> bool {
    version_number(comment) > version_number(VERSION)
}
