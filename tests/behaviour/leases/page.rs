//! docs/leases.md is true: its `sh` blocks run, in their order, save that the port is that of a throwaway server.

use crate::support::guardian::Folder;
use crate::support::page::{blocks, shell};
use crate::support::{Options, Postgres, programs};

const PAGE: &str = include_str!("../../../docs/leases.md");

#[test]
fn every_command_runs() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE DATABASE app");
    postgres.sql("CREATE ROLE app LOGIN");
    postgres.sql_in("app", "GRANT CREATE ON SCHEMA public TO app");
    let blocks = blocks(PAGE, "sh");
    assert_eq!(blocks.len(), 6);
    let folder = Folder::new("page");
    for block in blocks {
        let script = block
            .replace("127.0.0.1:5432", &format!("127.0.0.1:{}", postgres.port()))
            .replace("port=5432", &format!("port={}", postgres.port()));
        programs::run(shell(&script).current_dir(folder.path()));
    }
    let kept =
        "SELECT string_agg(election || ' ' || token || ' ' || released, ', ' ORDER BY token) FROM fencegate.lease";
    let rows = postgres.sql_in("app", kept);
    assert_eq!(rows[0][0].as_deref(), Some("cron/scheduler 1 true, cron/nightly 2 false, cron/reports 3 true"));
    assert_eq!(postgres.sql_in("app", "SELECT count(*) FROM reports")[0][0].as_deref(), Some("1"));
}
