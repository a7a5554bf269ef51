//! Query plans of control connections: an operation reads only its own rows, whatever statistics ANALYZE and VACUUM
//! collected.

use super::store_in;
use crate::fence::keys::family;
use crate::fence::server::World;
use crate::support::identity::identity;
use crate::support::until;
use fencegate_fence::First;
use fencegate_fence::session::{Epoch, Identity};
use fencegate_fence::store::{AdmissionRow, Key, Postgres, Store};

/// Number of rows of a kind. A plan that reads all rows for each row exceeds the limit a hundredfold.
const ROWS: usize = 1000;
const FIRSTS: usize = 50;
const NEWER: Epoch = Epoch { generation: 1, token: 8 };

/// The server's statistics of the admissions: a name, pid and resource of each row (by its number `n`), and the command
/// that collects statistics.
const SEEN: [(&str, Option<&str>, &str); 6] = [
    ("nothing", None, "SELECT"),
    ("that there are none", None, "VACUUM fencegate_state.admission"),
    ("a process for each resource", Some("n, 'alone/' || n"), "ANALYZE fencegate_state.admission"),
    ("one process for all resources", Some("1, 'alone/' || n"), "ANALYZE fencegate_state.admission"),
    ("one resource for all processes", Some("n, 'alone'"), "ANALYZE fencegate_state.admission"),
    ("few of both", Some("n % 10, 'alone/' || n % 10"), "ANALYZE fencegate_state.admission"),
];

#[tokio::test]
async fn an_operation_reads_only_its_own_rows() {
    for (what, rows, look) in SEEN {
        let world = World::new().await;
        if let Some(rows) = rows {
            world.run(&admissions(rows, LONG_AGO)).await;
        }
        world.run(look).await;
        world.run("DELETE FROM fencegate_state.admission").await;
        let operated = operate(&world).await;
        let read = read(&world).await;
        assert!(
            read < 20 * operated,
            "after the server had seen {what}: {read} index entries for {operated} admissions"
        );
    }
}

const LONG_AGO: &str = "'2000-01-01'::timestamptz + n * interval '1 ms'";

/// A statement that adds admissions under token 7, with this pid and resource, and this start of the process.
fn admissions(of: &str, started: &str) -> String {
    format!(
        "INSERT INTO fencegate_state.admission (pid, resource, backend_start, generation, token, proxy) \
         SELECT {of}, {started}, 1, 7, 'lost' FROM generate_series(1, {ROWS}) n"
    )
}

/// Runs all operations on admissions, for a process and for a resource with many of them. Returns the number of
/// admissions involved.
async fn operate(world: &World) -> usize {
    let store = store_in(world.control_config(&world.control()));
    // Make the plans now, when statistics are misleading.
    let identity = identity(&world.root).await;
    operate_on(world, &store, &identity, "none").await;
    let since = "(SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid()))";
    world.run(&admissions("pg_backend_pid(), 'key/' || n", since)).await;
    world.run(&admissions("1000000 + n, 'one'", LONG_AGO)).await;
    let operated = operate_on(world, &store, &identity, "one").await;
    store.close(true).await;
    operated
}

async fn operate_on(world: &World, store: &Postgres, identity: &Identity, resource: &str) -> usize {
    let keyed = family();
    let firsts: Vec<First> = (0..FIRSTS)
        .map(|key| First {
            identity: identity.clone(),
            resource: keyed.of_key(&format!("{resource}{key}")).unwrap(),
            token: 7,
            loaded: 0,
        })
        .collect();
    store.admit_first(&firsts.iter().collect::<Vec<_>>()).await.unwrap();
    let of_process = store.admissions_of(identity).await.unwrap();
    let holders = store.holders(resource, NEWER).await.unwrap();
    let keys: Vec<Key> = holders.iter().map(|it| it.row.key()).collect();
    store.terminate(&keys, resource, NEWER).await.unwrap();
    let half: Vec<AdmissionRow> = holders.iter().skip(ROWS / 2).map(|it| it.row.clone()).collect();
    let rows: Vec<(&AdmissionRow, &str)> = of_process.iter().chain(&half).map(|row| (row, "family")).collect();
    let deleted = if rows.is_empty() { 0 } else { store.delete(&rows).await.unwrap().len() };
    assert_eq!(deleted, rows.len());
    let dead = store.delete_dead(Some((resource, NEWER))).await.unwrap().len();
    assert_eq!(dead, holders.len() - half.len());
    assert_eq!(world.ask("SELECT count(*) FROM fencegate_state.admission").await, "0");
    rows.len() + dead
}

/// Number of index entries of admissions that were read. A process reports its number when it ends.
async fn read(world: &World) -> usize {
    let control =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    until("the control connections have ended", async || world.ask(control).await == "0").await;
    let read = "SELECT sum(idx_tup_read)::text FROM pg_stat_user_indexes \
                WHERE schemaname = 'fencegate_state' AND relname = 'admission'";
    world.ask(read).await.parse().unwrap()
}
