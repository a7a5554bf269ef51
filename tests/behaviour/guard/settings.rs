//! The settings of a policy: mode, on_missing, operations, exempt_roles.

use super::world::{LEVELS, World, attempt, without_token};
use crate::support::fenced::{code, ok};
use crate::support::ticks::WRITE;
use crate::support::{DEADLINE, Wire, wait_until};

#[test]
fn a_fence_that_observes() {
    let policies = "
version: 1
resources:
  - {name: scheduler, mode: observe, tables: [public.ticks]}
opaque: allow
";
    let world = World::start_with("a_fence_that_observes", policies, Default::default());
    // An observing fence records a token concurrently with the write, which does not wait for it.
    let noted = || world.postgres.value("SELECT token FROM fencegate_state.epoch WHERE resource = 'scheduler'") == "5";
    wait_until("token 5 is noted", DEADLINE, noted);
    for level in LEVELS {
        assert_eq!(attempt(&mut without_token(&world.postgres.socket()), level, &["SELECT unnamed()"]), "");
        assert_eq!(attempt(&mut world.around(4), level, &["SELECT unnamed()"]), "");
    }
    for said in ["would reject a write with LF002", "would reject a write with LF001, presented=4 highest=5"] {
        wait_until(said, DEADLINE, || world.postgres.log().contains(said));
    }
}

#[test]
fn sessions_without_a_token_may_write() {
    let policies = "
version: 1
resources:
  - {name: scheduler, on_missing: allow, tables: [public.ticks]}
opaque: allow
";
    let world = World::start_with("sessions_without_a_token_may_write", policies, Default::default());
    for level in LEVELS {
        assert_eq!(attempt(&mut without_token(&world.postgres.socket()), level, &["SELECT unnamed()"]), "");
        assert_eq!(attempt(&mut world.around(4), level, &["SELECT unnamed()"]), "LF001");
    }
}

#[test]
fn operations_and_exempt_roles() {
    let policies = "
version: 1
resources:
  - name: scheduler
    tables:
      - {name: public.ticks, operations: [insert]}
      - {name: public.parts, operations: [update, truncate]}
exempt_roles: [migrator]
opaque: allow
";
    let world = World::start_with("operations_and_exempt_roles", policies, Default::default());
    world.postgres.sql("CREATE ROLE migrator LOGIN; GRANT ALL ON ticks, parts TO migrator");
    let mut stale = world.around(4);
    for level in LEVELS {
        for (sql, expected) in [
            (WRITE, "LF001"),
            ("UPDATE ticks SET note = ''", ""),
            ("DELETE FROM ticks", ""),
            ("TRUNCATE ticks", ""),
            ("INSERT INTO part VALUES (1, '')", ""),
            ("UPDATE part SET note = ''", "LF001"),
            ("DELETE FROM part", ""),
            ("TRUNCATE part", "LF001"),
        ] {
            assert_eq!(attempt(&mut stale, level, &[sql]), expected, "{level}: {sql}");
        }
        let mut migrator = Wire::login(&world.postgres.socket(), "migrator", "postgres");
        assert_eq!(attempt(&mut migrator, level, &[WRITE, "UPDATE parts SET note = ''"]), "");
        ok(&mut migrator, "SET lease.fence = 'none'");
        assert_eq!(attempt(&mut migrator, level, &[WRITE, "UPDATE parts SET note = ''"]), "", "with any token");
    }
    // The login role decides whether a session is exempt.
    ok(&mut stale, "SET ROLE migrator");
    assert_eq!(code(&mut stale, WRITE), "LF001");
}

/// The list form of the parameter, which the gate also reads.
#[test]
fn tokens_by_name() {
    let world = World::start("tokens_by_name");
    let mut session = without_token(&world.postgres.socket());
    for (value, expected) in [
        ("scheduler=5", ""),
        (" other = 9 , scheduler = 5 ", ""),
        ("0000000000000000005", ""),
        ("other=9", "LF002"),
        ("", "LF002"),
        ("scheduler=4, other=9", "LF001"),
        ("scheduler=5, scheduler=5", "LF003"),
        ("scheduler=0", "LF003"),
        ("scheduler=99999999999999999999", "LF003"),
        ("9999999999999999999", "LF003"),
        ("-5", "LF003"),
        ("scheduler=5,", "LF003"),
        ("scheduler=5, other=0", "LF003"),
        ("other=000, scheduler=5", "LF003"),
        ("scheduler=5, other=9223372036854775808", "LF003"),
        ("scheduler=5, other=9223372036854775807", ""),
        ("other=9223372036854775808", "LF003"),
        ("scheduler=5, other=10, scheduler.b=4, b.scheduler=4", ""),
        ("scheduler.b=5, b.scheduler=5", "LF002"),
        ("scheduler=5 5", "LF003"),
    ] {
        ok(&mut session, &format!("SET lease.fence = '{value}'"));
        assert_eq!(code(&mut session, WRITE), expected, "{value:?}");
    }
}
