//! The statements of the fence: a folder for each of its tables, and for server processes and their locks.
//!
//! Owns quoting and all text sent to the database. Each file is one simple Query, or one statement to prepare. Its first
//! comment says what its rows are. The statements of a Query are one READ COMMITTED transaction, and each statement has
//! its own snapshot. The same holds for an EXECUTE of a prepared statement: the server takes the snapshot when the EXECUTE
//! begins, after all locks of the earlier statements.
//! The rows of pg_stat_get_activity are fixed at the first read in a transaction. Reads that need current rows are
//! therefore separate Queries.

/// A file of SQL, with the fragments of the fence.
macro_rules! sql_file {
    ($path:literal) => {
        fencegate_postgres::sql_file::SqlFile::new(include_str!($path), $crate::store::FRAGMENTS)
    };
}
pub(crate) use sql_file;

pub mod admission;
pub mod catalog;
pub mod epoch;
pub mod init_lock;
pub mod lanes;
pub mod lease;
pub mod lock;
pub mod prepared;
pub mod privilege;
pub mod process;
pub mod proxy;
pub mod table_lock;

use fencegate_postgres::sql_file::Fragment;

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
    who_any,
    who_is,
    write_locks,
    write_or_row_locks,
];
