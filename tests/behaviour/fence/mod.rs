//! The fence against real server processes: the holes of its first version, and recovery.
mod admit;
mod advance;
mod control;
mod deleted;
mod held;
mod init;
mod keys;
mod late;
mod overtake;
mod prune;
pub mod server;
mod store;
mod tables;
mod way_back;

use fencegate_fence::FenceError;
use fencegate_wire::client_error::{ClientError, ErrorKind};

fn reason(result: Result<(), FenceError>) -> String {
    match result {
        Err(error) if error.kind() == ErrorKind::Unavailable => error.log_reason(),
        other => panic!("expected LF006, got {other:?}"),
    }
}

fn stale_below(result: Result<(), FenceError>, highest: i64) {
    match result {
        Err(FenceError::Stale { highest: epoch, .. }) => assert_eq!(epoch.token, highest),
        other => panic!("expected LF001, got {other:?}"),
    }
}
