//! The server caches the plan of the guard's query at a session's first writes. The plan must also be efficient later.

use super::world::World;
use crate::support::fenced::ok;
use crate::support::ticks::{WRITE, process};
use crate::support::{DEADLINE, wait_until};

const WRITES: u64 = 100;
const OTHERS: u64 = 1000;

#[test]
fn one_admission_is_read_by_index_despite_an_early_plan() {
    let world = World::start("one_admission_is_read_by_index_despite_an_early_plan");
    let number = |query: &str| world.postgres.value(query).parse::<u64>().unwrap();
    let mut others = [world.session(5), world.session(5)];
    others.iter_mut().for_each(|session| drop(ok(session, WRITE)));
    for look in ["SELECT", "VACUUM fencegate_state.admission", "ANALYZE fencegate_state.admission"] {
        world.postgres.sql(look);
        let mut leader = world.session(5);
        // Often enough that the server caches a plan.
        (0..10).for_each(|_| drop(ok(&mut leader, WRITE)));
        world.postgres.sql(&format!(
            "INSERT INTO fencegate_state.admission (pid, backend_start, resource, generation, token, proxy) \
             SELECT 1000000 + n, '2000-01-01', 'scheduler', 1, 5, 'gone' FROM generate_series(1, {OTHERS}) n"
        ));
        let read = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relid = 'fencegate_state.admission'::regclass";
        let before = number(read);
        (0..WRITES).for_each(|_| drop(ok(&mut leader, WRITE)));
        // A process reports its number of reads when it ends, at the latest.
        let process = process(&mut leader);
        drop(leader);
        wait_until("the leader has ended", DEADLINE, || {
            number(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}")) == 0
        });
        // Other processes also read the rows, a few times.
        let read = number(read) - before;
        assert!(read < WRITES * OTHERS / 4, "{look}: {read} rows for {WRITES} writes");
        world.postgres.sql("DELETE FROM fencegate_state.admission WHERE pid > 1000000");
    }
}
