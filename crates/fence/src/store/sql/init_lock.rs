//! SQL for the lock of `init`, see [`super::lock::INIT_LOCK`]. Any role can take this lock.
//!
//! Must never terminate a process that may be a fencegate command.

use fencegate_postgres::sql_file::Value::{Part, Sql};

/// The processes that hold the lock or wait for it, holders first. With `ends`, terminates those that cannot be commands. The
/// second statement's rows are prepared transactions that hold the lock.
pub fn holders(ends: bool) -> String {
    sql_file!("init_lock/holders.sql").with(&[
        ("key", Part(":init_key")),
        ("ends", Sql(&ends.to_string())),
        ("process", Sql("a")),
        ("role", Sql("t")),
    ])
}
