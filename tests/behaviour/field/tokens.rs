//! Tokens with weaker guarantees than expected, and stores that lose tokens.

use super::{Field, NEW, OLD, commits};
use crate::authority::world::World;
use crate::support::ticks::{WRITE, ok, out_of_order, refused, session};
use crate::support::{DEADLINE, Via, wait_until};

/// A counter that is read after the lock was taken, with a pause in between.
mod counter_read_after_the_lock {
    use super::*;

    /// The token of the process that lost the lock before it read the counter, and the token of the leader.
    fn tokens(world: &World) -> (i64, i64) {
        world.stand("old");
        world.depose("old");
        let new = world.stand("new");
        // The counter of etcdctl lock: etcd's revision when the command reads it.
        let old = world.etcd.lease_and_put("/elsewhere");
        assert!(old > new);
        (old, new)
    }

    #[test]
    fn the_loser_locks_the_leader_out_where_any_token_is_taken() {
        let world = World::start();
        let proxy = world.proxy_with(crate::authority::world::WITHOUT_ELECTION);
        let (old, new) = tokens(&world);
        ok(&mut session(&proxy.address(), old), WRITE);
        refused(&mut session(&proxy.address(), new), WRITE, "LF001");
    }

    #[test]
    fn a_token_that_was_never_issued_is_refused() {
        let world = World::start();
        let proxy = world.proxy();
        let (old, new) = tokens(&world);
        refused(&mut session(&proxy.address(), old), WRITE, "LF005");
        ok(&mut session(&proxy.address(), new), WRITE);
    }
}

/// The highest token is kept in memory, and memory is lost.
mod memory_that_is_lost {
    use super::*;

    /// A gate that keeps the highest token only in memory.
    #[derive(Default)]
    struct Gate(i64);

    impl Gate {
        fn write(&mut self, field: &Field, token: i64) {
            if token >= self.0 {
                self.0 = token;
                ok(&mut session(&field.address(), token), WRITE);
            }
        }
    }

    #[test]
    fn a_restarted_gate_admits_a_stale_write() {
        let tokens = commits(Via::Direct, |field| {
            let mut gate = Gate::default();
            [OLD, NEW, OLD].into_iter().for_each(|token| gate.write(field, token));
            let mut started_again = Gate::default();
            started_again.write(field, OLD);
        });
        assert_eq!(tokens, [OLD, NEW, OLD]);
    }

    #[test]
    fn a_restarted_proxy_does_not() {
        let tokens = commits(Via::Proxy, |field| {
            ok(&mut session(&field.address(), OLD), WRITE);
            ok(&mut session(&field.address(), NEW), WRITE);
            field.proxy.as_mut().unwrap().kill9();
            field.proxy = Some(crate::support::ticks::proxy(&field.postgres));
            refused(&mut session(&field.address(), OLD), WRITE, "LF001");
        });
        assert_eq!(tokens, [OLD, NEW]);
    }

    #[test]
    fn nor_does_a_server_that_has_crashed() {
        let tokens = commits(Via::Proxy, |field| {
            ok(&mut session(&field.address(), NEW), WRITE);
            field.postgres.crash_restart();
            let mut verdict = String::new();
            wait_until("the proxy reaches the server again", DEADLINE, || {
                let mut old = session(&field.address(), OLD);
                let error = old.rows(WRITE).expect_err("it is stale");
                verdict = error.code().to_owned();
                verdict != "LF006"
            });
            assert_eq!(verdict, "LF001");
        });
        assert_eq!(tokens, [NEW]);
    }
}

/// UNIQUE (job, token) prevents a second write with the same token, but not a late write with an old one.
mod unique_job_and_token {
    use super::*;

    const UNIQUE: &str = "CREATE UNIQUE INDEX ON ticks (note, token)";

    fn scenario(field: &mut Field) {
        let mut old = session(&field.address(), OLD);
        ok(&mut session(&field.address(), NEW), WRITE);
        let _ = old.query(WRITE);
    }

    #[test]
    fn both_tokens_of_a_job_are_admitted() {
        let tokens = commits(Via::Direct, |field| {
            field.postgres.sql(UNIQUE);
            scenario(field);
        });
        assert_eq!(tokens, [NEW, OLD]);
    }

    #[test]
    fn a_fenced_write_is_kept_out() {
        assert_eq!(commits(Via::Proxy, scenario), [NEW]);
    }
}

/// `WHERE row.fence < token` protects only existing rows. A late tick has a new key, and no row.
mod guard_by_row {
    use super::*;

    fn upsert(token: i64, tick: i64) -> String {
        format!(
            "INSERT INTO ticks (note, token) VALUES ('tick {tick}', {token}) \
             ON CONFLICT (note) DO UPDATE SET token = {token} WHERE ticks.token < {token}"
        )
    }

    #[test]
    fn a_late_tick_lands() {
        let tokens = commits(Via::Direct, |field| {
            field.postgres.sql("CREATE UNIQUE INDEX ON ticks (note)");
            ok(&mut session(&field.address(), NEW), &upsert(NEW, 2));
            let mut old = session(&field.address(), OLD);
            ok(&mut old, &upsert(OLD, 2));
            ok(&mut old, &upsert(OLD, 1));
        });
        assert_eq!(tokens, [NEW, OLD]);
        assert!(out_of_order(&tokens) > 0);
    }

    #[test]
    fn a_fenced_tick_is_kept_out() {
        let tokens = commits(Via::Proxy, |field| {
            field.postgres.sql("CREATE UNIQUE INDEX ON ticks (note)");
            ok(&mut session(&field.address(), NEW), &upsert(NEW, 2));
            refused(&mut session(&field.address(), OLD), &upsert(OLD, 1), "LF001");
        });
        assert_eq!(tokens, [NEW]);
    }
}
